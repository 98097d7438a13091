"""`lockstep explain-hang`: which rank of a hung job stands where, and what the others wait for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from lockstep.cli.files import readable
from lockstep.errors import UsageError

WANT = "flight-recorder dumps, or the folder of a run with LOCKSTEP_TRACE_CALLS=1"


def explain_hang(
    dumps: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="DUMPS")] = (
        Path("runs/latest"),
    ),
    /,
    artifact: tyro.conf.UseAppendAction[tuple[Path, ...]] = (),
    world_size: Annotated[int, tyro.conf.arg(metavar="INT")] = 0,
) -> int:
    """Say which rank of a hung job stands at which collective of how many, and who waits for whom.

    Nothing of the dumps is executed. Exit code 1: something hangs; 0: every call has ended.

    Args:
        dumps: torch's flight-recorder dumps, pickled or as JSON, one a rank, or a folder of them;
            or a run's folder, where its job ran with LOCKSTEP_TRACE_CALLS=1.
        artifact: a program of the job: its collectives are told by the user's lines.
        world_size: ranks of the job, where the dumps do not tell.
    """
    from lockstep.report.hang.dumps import read_dumps
    from lockstep.report.hang.judge import judge
    from lockstep.report.hang.text import lines
    from lockstep.report.hang.traced import SUFFIX, read_traced

    world = world_size
    if len(dumps) == 1 and dumps[0].is_dir() and list(dumps[0].glob(f"*{SUFFIX}")):
        ranks, found = read_traced(dumps[0])
        world = world or found
    else:
        programs = {}
        if artifact:
            from lockstep.report.hang.program import lines_of

            programs = lines_of([readable(path, "an artifact") for path in artifact])
        ranks = read_dumps(_files(dumps), programs)
    hang = judge(ranks, world or None)
    print("\n".join(lines(hang)))
    return 1 if hang.culprits or any(stand.waits for stand in hang.stands) else 0


def _files(dumps: tuple[Path, ...]) -> list[Path]:
    """The files that are meant: those named, and those in folders that are."""
    found: list[Path] = []
    for path in dumps:
        if path.is_dir():
            found += [file for file in sorted(path.iterdir()) if file.is_file()]
        else:
            found.append(readable(path, WANT))
    if not found:
        raise UsageError(f"{', '.join(map(str, dumps))} holds no dump", want=WANT)
    return found
