"""Show that loading ranks and restarts trace, lower and compile nothing, and start no compiler.

    python -m tests.nothing_compiles

Four jobs of two real ranks share one store: the first builds, where rank 1 traces once too, for the
builder to compare; then a restart with calls of torch's compiler counted, one with a recording
compiler of every name first on PATH, and one with an empty PATH. Exits with 0 only where all of it
holds; the figures stand last.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.counters import recorded_calls, recording_compilers
from tests.ranks.launch import Ended, Torchrun

SCRIPT = "tests.ranks.quiet_step"
QUIET = {"traces": 0, "frames": 0, "lowerings": 0, "builds": 0, "processes": 0}


def jobs(root: Path) -> list[tuple[str, Ended]]:
    """Run the four jobs; returns each with its name."""
    (root / "empty").mkdir()
    recording = recording_compilers(root / "compilers")
    plans: list[tuple[str, str, dict[str, str]]] = [
        ("first start", "methods", {}),
        ("restart, methods counted", "methods", {}),
        ("restart, recording compilers", "imports", recording),
        ("restart, empty PATH", "imports", {"PATH": str(root / "empty")}),
    ]
    ended = []
    with Torchrun() as torchrun:
        for i, (name, how, env) in enumerate(plans):
            # A compiler's cache of its own: what an earlier run left would be hits, not lowerings.
            own = {"LOCKSTEP_STORE": str(root / "store")}
            own["TORCHINDUCTOR_CACHE_DIR"] = str(root / "inductor")
            env = {**own, **env}
            got = torchrun.run(SCRIPT, how, folder=root / f"job{i}", limit=300, env=env)
            if got.code:
                raise SystemExit(f"{name} failed\n{got.report()}")
            ended.append((name, got))
    return ended


def problems(ended: list[tuple[str, Ended]], compilers: list[str]) -> list[str]:
    """Everything that does not hold, in words; empty where all holds."""
    found = [f"a compiler was started: {line}" for line in compilers]
    first = ended[0][1].results
    if first[0]["counts"]["lowerings"] == 0 or first[0]["counts"]["traces"] == 0:
        found.append("the first start's builder counted nothing: the counters are broken")
    for name, job in ended:
        roles = {event["rank"]: event["role"] for event in job.of("ready")}
        want = {0: "built" if name == "first start" else "loaded", 1: "loaded"}
        if roles != want:
            found.append(f"{name}: roles {roles}, wanted {want}")
        for rank, result in enumerate(job.results):
            counts = dict(result["counts"])
            if name == "first start" and rank:  # it captures the step too, to be compared
                counts["traces"] -= 1
            if want[rank] == "loaded" and counts != QUIET:
                found.append(f"{name}, rank {rank}: {result['counts']}")
            if name.endswith(("compilers", "PATH")) and result["inductor modules"]:
                found.append(f"{name}, rank {rank}: {result['inductor modules']} Inductor modules")
            if result["bound"] != first[rank]["bound"]:
                found.append(f"{name}, rank {rank}: other parameters than at the first start")
    return found


def _row(name: str, rank: int, role: str, result: dict[str, Any]) -> list[str]:
    counts = [str(value) for value in result["counts"].values()]
    return [name, str(rank), role, *counts, str(result["inductor modules"])]


def main() -> int:
    """Run the jobs and print the table."""
    with tempfile.TemporaryDirectory() as folder:
        ended = jobs(Path(folder))
        wrong = problems(ended, recorded_calls(Path(folder) / "compilers"))
    table = Table("job", "rank", "role", *QUIET, "inductor modules")
    for name, job in ended:
        roles = {event["rank"]: event["role"] for event in job.of("ready")}
        for rank, result in enumerate(job.results):
            table.add_row(*_row(name, rank, roles[rank], result))
    Console(width=120).print(table)
    for text in wrong:
        print(text)
    loaded = sum(len(job.results) for _, job in ended) - 1
    print(f"{loaded} loading ranks: 0 frames, lowerings, builds, processes: {not wrong}")
    print("0 traces, but for one on rank 1 that rank 0 compares with its own before it publishes")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
