"""`lockstep explain`: type and gradient type of every value on a line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from lockstep.cli.check import ranks_of
from lockstep.cli.files import readable
from lockstep.errors import UsageError


def explain(
    line: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="FILE:LINE")],
    script: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="SCRIPT")],
    arguments: Annotated[
        tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="-- ARGS")
    ] = (),
    /,
    world_size: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None,
    mesh: str = "",
    calls: int = 1,
    timeout: float = 600.0,
) -> int:
    """Print type and gradient type of every value that a script's steps compute on a line.

    The script's set-up runs as in `lockstep check`; no step communicates.

    Args:
        line: the line, such as model.py:27.
        script: the training script that comes to it.
        arguments: its own arguments, after --.
        world_size: ranks of the job; 2 unless the mesh says it.
        mesh: sizes in place of those that the script gives ls.mesh, such as dp=2,tp=2.
        calls: of steps, after which the script is left.
        timeout: seconds after which it is stopped.
    """
    name, _, number = line.rpartition(":")
    if not number.isdecimal() or int(number) < 1:
        raise UsageError(f"{line!r} is no line", want="a file and a line, such as model.py:27")
    file, path = readable(Path(name), "a source file"), readable(script, "a training script")
    from lockstep.spmd.mesh import parse_sizes

    sizes = parse_sizes(mesh, "--mesh")
    ranks = ranks_of(world_size, sizes, 2)
    if ranks < 1 or calls < 1 or timeout <= 0:
        raise UsageError(
            f"--world-size {ranks} --calls {calls} --timeout {timeout:g}",
            want="1 rank, 1 call, 1 s, or more",
        )
    from lockstep.report.check_world import Job
    from lockstep.report.explain import as_text, explain

    found = explain(Job(path, arguments, ranks, sizes, calls, timeout), file, int(number))
    print(as_text(file, int(number), found))
    return 0
