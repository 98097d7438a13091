"""Measure programs: each is started twice on real gloo ranks, and its gradients are checked.

Those of one module and mesh share a start, so that their package is imported once a rank; what is
left after a refusal is started anew.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from clients.judged import FAILED, Check, Row, Start, judge
from clients.program import Program
from lockstep.build.artifact import Artifact
from tests.ranks.launch import Ended, Torchrun

LIMIT_S = 900.0  # of a launch, on a machine that does other things too
OFF = {"LOCKSTEP": "off"}
Starts = dict[str, Start]


def measure(torchrun: Torchrun, home: str, programs: Sequence[Program]) -> Iterator[Row]:
    """Run a module's programs of one mesh from an empty store, then again with a check."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store = {"LOCKSTEP_STORE": str(folder / "store")}
        first = started(torchrun, home, programs, folder / "first", store)
        refused = [program for program in programs if first[program.name].refusals]
        built = [program for program in programs if not first[program.name].code]
        again = started(torchrun, home, refused, folder / "eager", OFF)
        again |= started(torchrun, home, built, folder / "again", store, "--check")
        for program in programs:
            row = Row(program.name, program.package, FAILED, noted=program.noted)
            second = again.get(program.name, Start(1, []))
            yield judge(row, first[program.name], second, check_of(second))


def started(
    torchrun: Torchrun,
    home: str,
    programs: Sequence[Program],
    folder: Path,
    env: dict[str, str],
    *words: str,
) -> Starts:
    """Run programs on their ranks, in as many launches as it takes until each has ended somehow."""
    found: Starts = {}
    left = list(programs)
    while left:
        names = [program.name for program in left]
        ended = launched(torchrun, [home, *words, *names], left[0].ranks, folder / names[0], env)
        told = {name: as_start(ended, name) for name in names if any_of(ended, name)}
        found |= told or {names[0]: as_start(ended, names[0])}
        left = [program for program in left if program.name not in found]
    return found


def launched(
    torchrun: Torchrun, words: list[str], world: int, folder: Path, env: dict[str, str]
) -> Ended:
    """One launch; one that hangs has left what it left."""
    try:
        options: dict[str, Any] = dict(folder=folder, world=world, limit=LIMIT_S, env=env)
        return torchrun.run("clients.rank", *words, **options)
    except TimeoutError as error:
        return Ended(1, {}, [str(error)], LIMIT_S, None, left_by(folder, world), [], "")


def left_by(folder: Path, world: int) -> list[Any]:
    """By rank the results of those programs that had ended before a launch hung."""
    paths = [folder / f"result{rank}" for rank in range(world)]
    return [json.loads(path.read_text()) if path.exists() else None for path in paths]


def any_of(ended: Ended, name: str) -> bool:
    """Whether some rank has left something of a program."""
    return any(name in (result or {}) for result in ended.results)


def as_start(ended: Ended, name: str) -> Start:
    """What is judged of a program's part in a launch."""
    results = [(result or {}).get(name) for result in ended.results]
    whole = all(result and "calls" in result for result in results)
    step = (results[0] or {}).get("step")
    ready = sorted(ended.of("ready", step=step), key=lambda event: event["rank"])
    paths = {event["path"] for event in ready}
    manifest = manifest_of(paths.pop()) if len(paths) == 1 else {}
    return Start(
        code=0 if whole else ended.code or 1,
        results=results,
        roles=[event["role"] for event in ready],
        digests=[event["digest"] for event in ready],
        likeness=manifest.get("compared"),
        eager=manifest.get("eager", {}),
        text="" if whole else "\n".join(map(tail, ended.texts)),
    )


def tail(text: str, lines: int = 12) -> str:
    """The end of what a rank has printed."""
    return "\n".join(text.strip().splitlines()[-lines:])


def manifest_of(path: str) -> dict[str, Any]:
    """The manifest of an artifact, read with all that holds it together."""
    return Artifact.from_bytes(Path(path).read_bytes(), path).manifest


def check_of(second: Start) -> Check | None:
    """What rank 0 left of a check; None where there was none."""
    left = (second.results[0] or {}).get("check") if second.results else None
    return Check(tuple(left["findings"]), tuple(left["undecided"])) if left else None
