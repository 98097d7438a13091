"""A Llama trained in stages on real gloo ranks, beside the same in one process of plain PyTorch.

    python -m tests.pipeline [WORD]

WORD: those cases alone whose name holds it. Exits 0 where every loss and gradient is within 1e-5
of one process', a second start loads both roles from one file and builds nothing, and the
example runs.
"""

from __future__ import annotations

import math
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from lockstep.build.bundle import Bundle, pack_bundle
from lockstep.report.job import run_job
from tests.pipeline.compare import LIMIT, apart, ends_agree
from tests.ranks.launch import ROOT, Ended, Torchrun

LAYERS, LIMIT_S = 4, 900.0


@dataclass(frozen=True)
class Case:
    """A mesh beside its stages, a schedule and a back end.

    Args:
        beside: axis -> ranks, of the axes beside two stages.
        words: of the plan, and "tied" where embedding and output share their weight.
    """

    beside: dict[str, int]
    chunks: int
    micro: int
    words: tuple[str, ...]
    backend: str

    @property
    def name(self) -> str:
        mesh = " x ".join(["pp2", *(f"{axis}{size}" for axis, size in self.beside.items())])
        how = "1F1B" if self.chunks == 1 else f"interleaved, {self.chunks} chunks"
        return ", ".join([mesh, *self.words, how, f"{self.micro} micro-batches", self.backend])

    @property
    def world(self) -> int:
        return 2 * math.prod(self.beside.values())

    @property
    def text(self) -> str:
        """As `tests.pipeline.train` reads it."""
        axes = ",".join(f"{axis}={size}" for axis, size in {"pp": 2, **self.beside}.items())
        return f"{axes} {self.chunks} {self.backend} {LAYERS} {self.micro} {' '.join(self.words)}"


Shape = tuple[dict[str, int], int, int, tuple[str, ...]]
DP, TP, FSDP, CP = {"dp": 2}, {"tp": 2}, {"fsdp": 2}, {"cp": 2}
SHAPES: list[Shape] = [
    ({}, 1, 4, ()),
    (DP, 1, 2, ()),
    ({}, 2, 4, ()),
    (DP, 2, 4, ()),
    ({}, 1, 4, ("tied",)),
    (TP, 1, 4, ("sequence", "tied")),
    (FSDP, 1, 4, ("tied",)),
    (CP, 1, 2, ()),
]
# What only some plans and schedules do.
MORE: list[Shape] = [
    (TP, 1, 4, ()),
    (TP, 2, 4, ("sequence", "recompute", "tied")),
    (FSDP, 2, 4, ("regather",)),
    (CP, 2, 4, ("tied",)),
    ({**DP, **TP}, 1, 2, ("sequence", "tied")),
]
CASES = [Case(*shape, "graph") for shape in SHAPES + MORE]
CASES += [Case(*shape, "inductor") for shape in SHAPES]


def judge(torchrun: Torchrun, case: Case, folder: Path) -> tuple[bool, list[str]]:
    """Build, then load from one file; gives whether all holds, and the figures."""
    built = _run(torchrun, case, folder / "built", {})
    files = (folder / "built" / "store").glob("*.lockstep")
    bundle = folder / "step.lockstep"
    bundle.write_bytes(pack_bundle({path.name: path.read_bytes() for path in files}))
    loaded = _run(torchrun, case, folder / "loaded", {"LOCKSTEP_STORE": str(bundle)})
    if built.code or loaded.code or not all(built.results + loaded.results):
        return False, [(built if built.code else loaded).report()[-3000:]]
    with bundle.open("rb") as stream:
        roles = sorted(Bundle(bundle, stream).roles.values())
    results = [one for (one,) in built.results + loaded.results]
    worst = max(map(apart, results))
    losses = [loss for loss, _ in results[0]["told"]]
    again = len(loaded.of("stage"))
    holds = worst < LIMIT and roles == ["pp=0", "pp=1"] and not again
    holds &= built.results == loaded.results and losses[-1] < losses[0]
    holds &= ends_agree([one for (one,) in built.results])
    told = f"{losses[0]:.4f} -> {losses[-1]:.4f}"
    return holds, [told, f"{worst:.1e}", ", ".join(roles), str(again)]


def _run(torchrun: Torchrun, case: Case, folder: Path, env: dict[str, str]) -> Ended:
    script = "tests.pipeline.train"
    return torchrun.run(script, case.text, folder=folder, world=case.world, limit=LIMIT_S, env=env)


def example(folder: Path) -> bool:
    """Whether the example trains."""
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words = [str(ROOT / "examples" / "pipeline.py"), "--steps", "2", "--backend", "graph"]
    store = {"LOCKSTEP_STORE": str(folder / "store"), "LOCKSTEP_RUNS": str(folder / "runs")}
    done = run_job([sys.executable, *launch, *words], {**os.environ, **store}, LIMIT_S)
    print(done.output if done.code else "examples/pipeline.py runs")
    return done.code == 0 and "step 1: loss" in done.output


def main(word: str = "") -> int:
    """Print a row a case."""
    table = Table("stages", "loss", "from one process", "roles of one file", "built at 2nd start")
    holds, count = True, 0
    with tempfile.TemporaryDirectory() as place, Torchrun() as torchrun:
        for case in CASES:
            if word in case.name:
                good, told = judge(torchrun, case, Path(place) / str(count))
                print(case.name, *told, "" if good else "FAILS", flush=True)
                table.add_row(case.name, *told[:4])
                holds, count = holds and good, count + 1
        holds &= example(Path(place) / "example")
    Console(width=120).print(table)
    print(f"{count} cases, {'all' if holds else 'NOT all'} within {LIMIT:.0e} of one process")
    return 0 if holds and count else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
