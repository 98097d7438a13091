"""The trainer's step on two ranks: Lockstep's program beside eager and torch.compile, in turn.

    python bench/trainer.py

The step is `lockstep train`'s own: forward, backward, reduction, clipping and AdamW of a Llama,
data parallel and fully sharded. Each way has a model of its own and runs some steps in its turn.
Beside them torch's DDP and FSDP2, which hold nothing: their step is another program.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))  # run as a script

from bench.measure import spread  # noqa: E402  (the path comes first)
from bench.rank_job import flags, on_ranks  # noqa: E402

OURS, EAGER, COMPILED = "Lockstep, inductor", "eager", "torch.compile"
PEER = {"dp": "torch's DDP, eager", "fsdp": "torch's FSDP2, eager"}
AS_FAST, MEMORY = 0.97, 1.05
RANKS, LIMIT_S = 2, 1200.0


def measured(layout: str, options: dict[str, int]) -> list[dict[str, Any]]:
    """Run a job of two ranks and return what each of them saw.

    Raises:
        SystemExit: the job failed; its output is shown.
    """
    words = ["--layout", layout, *flags(options)]
    return on_ranks("trainer_ranks.py", RANKS, words, LIMIT_S)


def speeds(ranks: list[dict[str, Any]], tokens: int) -> dict[str, list[float]]:
    """Tokens a second of each way's runs, by the slower rank."""
    return {
        name: [
            tokens / max(times)
            for times in zip(*(rank["seconds"][name] for rank in ranks), strict=True)
        ]
        for name in ranks[0]["seconds"]
    }


def judge(
    layout: str, speed: dict[str, list[float]], peaks: dict[str, int]
) -> list[tuple[bool, str]]:
    """Return each line of a layout with whether it holds."""
    middle = {name: statistics.median(values) for name, values in speed.items()}
    best = max((EAGER, COMPILED), key=middle.__getitem__)
    least = min((EAGER, COMPILED), key=peaks.__getitem__)
    fast, memory = middle[OURS] / middle[best], peaks[OURS] / peaks[least]
    return [
        (fast >= AS_FAST, f"{layout}: {fast:.2f} times the tokens of {best}, at least {AS_FAST}"),
        (memory <= MEMORY, f"{layout}: {memory:.2f} times the peak of {least}, at most {MEMORY}"),
    ]


def main(runs: int = 10, steps: int = 4, layers: int = 4, batch: int = 8, length: int = 128) -> int:
    """Measure, print, and return 0 where every line holds.

    Args:
        runs: of each way, in turn.
        steps: of each run.
        layers: of the debug Llama.
        batch: sequences of a step, over both ranks.
        length: tokens of a sequence.
    """
    console, lines = Console(), list[tuple[bool, str]]()
    options = {"runs": runs, "steps": steps, "layers": layers, "batch": batch, "length": length}
    for layout in PEER:
        ranks = measured(layout, options)
        speed, peaks = speeds(ranks, steps * batch * length), ranks[0]["peaks"]
        table = Table("", "tokens a second, median (low-high)", "peak live MiB", title=layout)
        for name, values in speed.items():
            table.add_row(name, spread(values, 0), f"{peaks[name] / 2**20:.2f}")
        console.print(table)
        lines += judge(layout, speed, peaks)
    for holds, line in lines:
        console.print(f"{'holds' if holds else 'FAILS'}  {line}", markup=False, highlight=False)
    console.print("not verified: llama3:1b in bf16 on an accelerator", highlight=False)
    held = sum(holds for holds, _ in lines)
    print(f"{held} of {len(lines)} lines hold; medians of {runs} runs of {steps} steps in turn")
    return 0 if held == len(lines) else 1


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
