"""What it costs to start: every rank compiling for itself, against one rank building for all.

    python bench/startup.py --ranks 4 --repeat 3

The step is forward, loss, backward and gradient reduction of a Llama of 4 layers. Every start is
a fresh job under torchrun. "cold" has empty caches, "warm" is the start after it.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import tyro
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))  # run as a script

from bench.measure import as_installed, spread  # noqa: E402  (the path comes first)
from lockstep.report.job import run_job  # noqa: E402

LIMIT_S = 900


@dataclass(frozen=True)
class Way:
    """One way to run the step: the back end, and whether each rank has a cache of its own."""

    name: str
    backend: str
    own_caches: bool = False


OWN = Way("torch.compile, a cache for each rank", "torch", own_caches=True)
SHARED = Way("torch.compile, one cache for all", "torch")
OURS = Way("Lockstep, inductor", "inductor")
GRAPH = Way("Lockstep, graph", "graph")


@dataclass
class Starts:
    """The starts of one way with one number of ranks, in the order they were made."""

    cpu_s: list[float] = field(default_factory=list)
    """CPU seconds of the first call, summed over the ranks."""
    wall_s: list[float] = field(default_factory=list)
    """Seconds from the start of the process to the end of the first step, of the slowest rank."""
    start_s: list[float] = field(default_factory=list)
    """Seconds of the first call and of `import lockstep`, of the slowest rank."""

    def add(self, ranks: list[dict[str, float]]) -> None:
        """Add one start by what its ranks wrote."""
        self.cpu_s.append(sum(rank["cpu_s"] for rank in ranks))
        self.wall_s.append(max(rank["wall_s"] for rank in ranks))
        self.start_s.append(max(rank["start_s"] for rank in ranks))


def start(way: Way, ranks: int, layers: int, caches: Path) -> list[dict[str, float]]:
    """Start one job with these caches and return what each rank measured.

    Raises:
        SystemExit: the job failed; its output is shown.
    """
    out = caches / "out"
    out.mkdir(parents=True, exist_ok=True)
    environment = {key: value for key, value in os.environ.items() if key[:8] != "LOCKSTEP"}
    environment |= {
        "LOCKSTEP_STORE": str(caches / "store"),
        "LOCKSTEP_RUNS": str(caches / "runs"),
        "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
    }
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    flags = ["--out", str(out), "--backend", way.backend, "--layers", str(layers)]
    script = [str(ROOT / "bench" / "start_rank.py"), *flags]
    script += ["--own-caches"] if way.own_caches else []
    done = run_job([sys.executable, *torchrun, *script], environment, LIMIT_S)
    if done.code != 0:
        raise SystemExit(f"{done.output}\n{way.name}: the job ended with {done.code}")
    seen = [json.loads(path.read_text()) for path in sorted(out.glob("rank*.json"))]
    shutil.rmtree(out)
    return seen


def cold_and_warm(
    way: Way, ranks: int, layers: int, cold: Starts, warm: Starts | None, warm_starts: int = 1
) -> None:
    """Start a job on empty caches, and then again on what it left."""
    with tempfile.TemporaryDirectory() as folder:
        cold.add(start(way, ranks, layers, Path(folder)))
        if warm is not None:
            for _ in range(warm_starts):
                warm.add(start(way, ranks, layers, Path(folder)))


def median(values: list[float]) -> float:
    return statistics.median(values)


def judge(cold: dict[str, Starts], warm: dict[str, Starts], ranks: int) -> list[tuple[bool, str]]:
    """Return each line with whether it holds.

    Args:
        cold: by a way's name, and "one rank, " before it for the world of one.
        warm: by a way's name.
        ranks: of the job.
    """
    ours, own, shared = cold[OURS.name], cold[OWN.name], cold[SHARED.name]
    limit = 1 / (0.8 * ranks)
    cpu = median(ours.cpu_s) / median(own.cpu_s)
    faster = median(own.wall_s) / median(ours.wall_s)
    alone = median(cold[f"one rank, {OURS.name}"].wall_s) / median(
        cold[f"one rank, {OWN.name}"].wall_s
    )
    again = {way.name: median(warm[way.name].start_s) for way in (OWN, SHARED, OURS, GRAPH)}
    times = again[OWN.name] / again[OURS.name]
    return [
        (
            cpu <= limit,
            f"(a) compile CPU seconds over {ranks} ranks: {cpu:.3f} of every rank's own, at most"
            f" {limit:.3f}; of a shared cache {median(ours.cpu_s) / median(shared.cpu_s):.3f}",
        ),
        (
            faster >= 2.5,
            f"(b) wall to the end of the first step, {ranks} ranks share these {os.cpu_count()}"
            f" cores: {faster:.2f} times faster, at least 2.5; than a shared cache"
            f" {median(shared.wall_s) / median(ours.wall_s):.2f}",
        ),
        (alone <= 1.3, f"(c) one rank alone: {alone:.2f} times torch.compile's wall, at most 1.3"),
        (
            times >= 15,
            f"(d) restart, slowest rank: {again[OURS.name]:.3f} s, {times:.1f} times faster than"
            f" warm torch.compile, at least 15; graph {again[GRAPH.name]:.3f} s; warm own caches"
            f" {again[OWN.name]:.2f} s, a shared one {again[SHARED.name]:.2f} s",
        ),
    ]


def table(cold: dict[str, Starts], warm: dict[str, Starts], ranks: int) -> Table:
    """Return medians and spreads of all starts."""
    title = f"Starts of {ranks} ranks that share these {os.cpu_count()} cores: median (low-high) s"
    made = Table("", "CPU, all ranks", "wall to the end of step 1", "first call", title=title)
    for label, part in (("cold", cold), ("warm", warm)):
        for name, starts in part.items():
            cells = (starts.cpu_s, starts.wall_s, starts.start_s)
            made.add_row(f"{label}: {name}", *(spread(values) for values in cells))
    return made


def main(ranks: int = 4, repeat: int = 3, layers: int = 4) -> int:
    """Measure, print, and return 0 where every line holds.

    Args:
        ranks: of the job; the world of one is measured beside it.
        repeat: cold starts of each way; each is followed by a warm one.
        layers: of the model.
    """
    console = Console()
    as_installed()
    cold: dict[str, Starts] = {}
    warm: dict[str, Starts] = {}
    for number in range(repeat):
        for way in (OURS, OWN, SHARED, GRAPH):
            console.print(f"{number + 1} of {repeat}: {way.name}", style="dim")
            starts = cold.setdefault(way.name, Starts()), warm.setdefault(way.name, Starts())
            cold_and_warm(way, ranks, layers, *starts)
        for way in (OURS, OWN):
            console.print(f"{number + 1} of {repeat}: one rank, {way.name}", style="dim")
            name = f"one rank, {way.name}"
            cold_and_warm(way, 1, layers, cold.setdefault(name, Starts()), None)
    console.print(table(cold, warm, ranks))
    lines = judge(cold, warm, ranks)
    for holds, line in lines:
        console.print(f"{'holds' if holds else 'FAILS'}  {line}", markup=False, highlight=False)
    held = sum(holds for holds, _ in lines)
    console.print(f"{held} of {len(lines)} lines hold; medians of {repeat}")
    return 0 if held == len(lines) else 1


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
