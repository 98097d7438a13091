"""What the project claims, each by the command that shows it, as one table.

    python -m bench.bars                 # all of them
    python -m bench.bars --only startup  # those whose line or command holds a word

A command shows its line when it exits with 0; what it prints last is its figure.
"""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.console import Console
from rich.table import Table

from lockstep.report.job import run_job

ROOT = Path(__file__).parent.parent
TAIL = 30  # lines of a failing command's output that are shown


@dataclass(frozen=True)
class Bar:
    """One claim, the words after `python` that show it, and how long they may take."""

    line: str
    command: str
    limit_s: float = 1200.0


NO_COMPILER, BAD_INPUT = "tests/ranks/test_nothing_compiles.py", "tests/ranks/test_bad_input.py"
FINETUNE = "examples/finetune_hf_llama.py"
TORCHRUN = "-m torch.distributed.run --standalone --nproc-per-node 2"
BARS = [
    Bar("rank 0 builds, rank 1 loads; the loss ends below a bigram table's", "-m bench.demo"),
    Bar("a loading rank traces, lowers and compiles nothing", f"-m pytest -q {NO_COMPILER}"),
    Bar("bad input: its error on every rank, every process gone", f"-m pytest -q {BAD_INPUT}"),
    Bar(
        "all other tests",
        f"-m pytest -q --ignore {NO_COMPILER} --ignore {BAD_INPUT}",
        limit_s=3600,
    ),
    Bar(
        "graph is bitwise equal to eager, inductor to each rank for itself",
        "-m tests.bitwise --ranks 2 4",
        limit_s=3600,
    ),
    Bar(
        "each layout: graph as eager, inductor as its own compile, both as one process",
        "-m tests.bitwise --all",
        limit_s=5400,
    ),
    Bar("stages of a pipeline train as one process, from one file", "-m tests.pipeline", 3600),
    Bar("what a capture could lose is right to the bit, or refused", "-m tests.faithful"),
    Bar("a Llama in torch's DDP: as the wrapper's own run, to the bit", "-m tests.wrapped"),
    Bar("uneven data train as one process would, jagged in one artifact", "-m tests.uneven"),
    Bar("a forgotten conversion is named at its line, its printed fix passes", "-m tests.flagship"),
    Bar(
        "right programs of 15 parallelisms: no finding, 2 % of nodes unknown at most",
        "-m tests.silent",
    ),
    Bar(
        "transformers' and megatron-core's layers: right silent, each left-out collective found",
        "-m tests.clients",
    ),
    Bar(
        "wrong programs flagged at their lines, right ones silent, fixes right on real ranks",
        "-m tests.faults",
    ),
    Bar("each typed collective of lockstep.parallel left out is found", "-m tests.mutants"),
    Bar("megatron-core's layers in a built step: bitwise as eager", "-m tests.clients.built"),
    Bar(
        "other people's programs: each established, or refused with its line and a way on",
        "-m clients",
        limit_s=3600,
    ),
    Bar(
        "those programs without one collective or mark: found at a line",
        "-m clients.removed",
        limit_s=3600,
    ),
    Bar("no way to look at the rank is baked: portable, or refused", "-m tests.rank_reads"),
    Bar(
        "changed and forged artifacts: all refused in words, none of them runs",
        "-m tests.corruption",
    ),
    Bar(
        "no fault of a rank, a store or another job hangs a job or leaves a bad file",
        "-m tests.chaos --ranks 4",
        limit_s=5400,
    ),
    Bar("an accelerator's index is in no program; on devices where there are any", "gpu/check.py"),
    Bar(
        "rank-only logging in a step: told as eager tells it, or refused at its line",
        "-m tests.logging_forms",
        limit_s=3600,
    ),
    Bar(
        "what is built ahead of time is what real ranks build; 64 ranks cost what 4 do",
        "-m tests.ahead",
        limit_s=3600,
    ),
    Bar(
        "a changed program never gets an old artifact, an unchanged one gets its own",
        "-m tests.staleness",
        limit_s=3600,
    ),
    Bar(
        "a training killed 20 times ends bitwise as one that was not; goes on on 2 ranks",
        "-m tests.resume",
        limit_s=1800,
    ),
    Bar("a wrong cell of a test matrix fails with its line, the right pass", "-m tests.plugin"),
    Bar(
        "three ways side by side, from empty caches and warm; the same as a page",
        "-m lockstep compare examples/train_llama.py --nproc-per-node 4 -- --steps 5",
        limit_s=3600,
    ),
    Bar(
        "a run's page in Chromium: two real ranks, 10,000 made-up ones, an artifact of 32 layers",
        "-m tests.page",
    ),
    Bar(
        "of real hung jobs rank, call and line are told: one skips, one swaps, one dies",
        "-m tests.explain_hang",
    ),
    Bar(
        "plain torch times out twice and trains wrongly once; the same three scripts, Lockstep",
        "-m tests.scenes",
    ),
    Bar("a Llama of transformers, fine-tuned as it comes", f"{TORCHRUN} {FINETUNE}"),
    Bar("under Lightning Fabric as under torchrun", f"{TORCHRUN} examples/with_lightning.py"),
    Bar("under Ray Train as under torchrun", "examples/with_ray.py"),
    Bar("typed collectives cost what hand-written ones do, claims nothing", "bench/types_off.py"),
    Bar("a guarded call takes at most 1.1 times a plain one's time", "bench/guard.py"),
    Bar(
        "32 layers are lowered within 1.3 times the time of 4, to the bits of one by one",
        "bench/depth.py",
        limit_s=3600,
    ),
    Bar(
        "what a store has compiled is not compiled again; lowering uses all cores",
        "bench/rebuild.py",
    ),
    Bar(
        "a step takes at most 1.03 times torch.compile's time; with 1 ms of delay 1/1.1 of it",
        "bench/step.py",
        limit_s=3600,
    ),
    Bar(
        "passes keep every bit on two ranks; overlap hides half of a slow network's time",
        "bench/passes.py",
        limit_s=3600,
    ),
    Bar("the trainer's step is as fast as torch.compile's, dp and fsdp", "bench/trainer.py"),
    Bar("a call of a known variant costs at most 100 us beside its program", "bench/call.py"),
    Bar(
        "a check grows no faster than the graph; Llama 3 70B by shape fits 8 GiB",
        "bench/check_cost.py",
        limit_s=3600,
    ),
    Bar(
        "capture is linear in the nodes, up to a whole step of Llama 3 70B by shape",
        "bench/capture.py",
        limit_s=3600,
    ),
    Bar(
        "N ranks start for the price of one, a restart is nearly free",
        "bench/startup.py --ranks 4",
        limit_s=3600,
    ),
    Bar("a fleet: a store is read once a node, messages a rank stay as few", "bench/fleet.py"),
    Bar(
        "a restart is 1/30 of warm torch.compile and 4 times the floor at most",
        "bench/restart.py",
        limit_s=7200,
    ),
]


@dataclass(frozen=True)
class Outcome:
    """What a command came to: its exit code, its seconds and all it printed."""

    code: int
    seconds: float
    text: str

    @property
    def last_line(self) -> str:
        """Return the last line with anything on it, without a frame of signs around it."""
        lines = [line.strip(" =\t") for line in self.text.splitlines()]
        return next((line for line in reversed(lines) if line), "")


def run(command: str, limit_s: float = 1200.0) -> Outcome:
    """Run `python <command>` at the root of the repository; at its limit it counts as failed."""
    with contextlib.chdir(ROOT):
        done = run_job([sys.executable, *command.split()], dict(os.environ), limit_s)
    if done.code is None:
        return Outcome(124, done.seconds, f"{done.output}\nstopped after {limit_s:.0f} s")
    return Outcome(done.code, done.seconds, done.output)


def table(rows: list[tuple[Bar, Outcome]]) -> Table:
    """Return the outcomes as one table, the longest last."""
    made = Table("", "line", "command", "seconds", "last words", title="What is claimed")
    for bar, outcome in sorted(rows, key=lambda row: row[1].seconds):
        mark = "[red]FAIL[/]" if outcome.code else "[green]pass[/]"
        seconds = f"{outcome.seconds:.1f}"
        made.add_row(mark, bar.line, f"python {bar.command}", seconds, outcome.last_line)
    return made


def main(only: str = "") -> int:
    """Run the commands and print the table.

    Args:
        only: run those alone whose line or command holds this word.
    """
    console, rows = Console(), []
    for bar in BARS:
        if only not in bar.line and only not in bar.command:
            continue
        console.print(f"python {bar.command}", style="dim")
        rows.append((bar, run(bar.command, bar.limit_s)))
        if rows[-1][1].code:
            console.print("\n".join(rows[-1][1].text.splitlines()[-TAIL:]), markup=False)
    console.print(table(rows))
    return 1 if not rows or any(outcome.code for _, outcome in rows) else 0


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
