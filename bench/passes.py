"""What each pass changes in a data-parallel step on two real ranks: time, memory, and no bit.

    python bench/passes.py

Each way of one step takes its turn, on gloo as it is and on a network that is slowed down by a
delay and a rate (bench/slow_network.py). What that costs a way is how long a rank sleeps for it in
a step; what overlap hides is the part of it which is gone with it. `memory` has the least budget.
Last, on four ranks: how many numbers change where gloo sums tensors side by side, which is why
`bucket` leaves such sums apart.
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
from bench.rank_job import on_ranks  # noqa: E402

NONE, BUCKET, OVERLAP, BOTH = "no passes", "bucket", "overlap", "bucket and overlap"
MEMORY = "memory"
WAYS = {
    NONE: {"bucket": False, "overlap": False},
    BUCKET: {"bucket": True, "overlap": False},
    OVERLAP: {"bucket": False, "overlap": True},
    BOTH: {"bucket": True, "overlap": True},
    MEMORY: {"bucket": False, "overlap": False, "memory": True},
}
LISTS, SINGLES = "AdamW by lists", "AdamW, update"
UPDATES = {LISTS: {"update": False}, SINGLES: {"update": True}}
FAST, SLOW = "gloo", "slow"
HIDDEN, LESS, LIMIT_S = 0.5, 0.8, 2400.0
SLOWER, HELD = 1.05, 0.1


def times(ranks: list[dict[str, Any]], network: str, name: str, of: int = 0) -> list[float]:
    """Milliseconds of each step of a way, by the slower rank; `of` 1: those that it slept."""
    steps = zip(*(rank["seconds"][network][name] for rank in ranks), strict=True)
    return [1e3 * max(pair[of] for pair in step) for step in steps]


def costs(ranks: list[dict[str, Any]]) -> dict[str, float]:
    """Milliseconds that each way's step has to wait for the slow network."""
    return {name: statistics.median(times(ranks, SLOW, name, of=1)) for name in WAYS}


def judge(ranks: list[dict[str, Any]], wide: int) -> list[tuple[bool, str]]:
    """Each line with whether it holds.

    Args:
        wide: how many numbers differed on four ranks.
    """
    cost = costs(ranks)
    odd = sorted({name for rank in ranks for name, same in rank["same"].items() if not same})
    hidden = 1 - cost[BOTH] / cost[BUCKET] if cost[BUCKET] else 0.0
    sums = max(rank["differing"] for rank in ranks)
    peak = max(rank["peaks"][MEMORY] / rank["peaks"][NONE] for rank in ranks)
    held = max(rank["update peaks"][SINGLES] / rank["update peaks"][LISTS] for rank in ranks)
    slower = max(map(_slower, ranks))
    same = all(rank["update same"] for rank in ranks)
    return [
        (not odd, f"gradients equal to the bit with each pass{': not ' if odd else ''}{odd or ''}"),
        (sums == 0, f"{sums} numbers differ where two ranks sum side by side; {wide} with four"),
        (
            hidden >= HIDDEN,
            f"overlap hides {hidden:.0%} of {cost[BUCKET]:.2f} ms asleep, at least {HIDDEN:.0%}",
        ),
        (
            peak <= LESS,
            f"computed anew to the least, a step holds {peak:.0%} at its peak, at most {LESS:.0%}",
        ),
        (
            same and held <= HELD and slower <= SLOWER,
            f"an update by tensors: bits {'equal' if same else 'DIFFER'}, {slower:.2f} times the "
            f"time, at most {SLOWER}, {held:.1%} of the peak, at most {HELD:.0%}",
        ),
    ]


def _slower(rank: dict[str, Any]) -> float:
    """The time of an update by tensors beside that by lists, step by step."""
    taken = rank["update seconds"]
    pairs = zip(taken[SINGLES], taken[LISTS], strict=True)
    return statistics.median(one / other for one, other in pairs)


def main(
    steps: int = 20,
    layers: int = 4,
    batch: int = 8,
    length: int = 256,
    delay_ms: float = 1.0,
    gbit_s: float = 1.0,
    backend: str = "inductor",
) -> int:
    """Measure, print, and return 0 where every line holds.

    Args:
        steps: of each way on each network, in turn.
        layers, batch, length: of the debug Llama and of a rank's batch.
        delay_ms, gbit_s: of the slow network.
        backend: of `ls.compile`.
    """
    given = {"steps": steps, "layers": layers, "batch": batch, "length": length}
    given |= {"delay-ms": delay_ms, "gbit-s": gbit_s, "backend": backend}  # type: ignore[dict-item]
    words = [word for name, value in given.items() for word in (f"--{name}", str(value))]
    ranks = on_ranks("passes_ranks.py", 2, words, LIMIT_S)
    four = on_ranks("passes_ranks.py", 4, ["--bits"], LIMIT_S)
    wide = max(rank["differing"] for rank in four)
    console = Console()
    size = f"{ranks[0]['bytes'] / 2**20:.2f} MiB of gradients"
    title = f"2 ranks, {size}, {delay_ms} ms, {gbit_s} Gbit/s"
    table = Table(
        "", "ms a step", "on the slow network", "asleep there", "peak live MiB", title=title
    )
    for name in WAYS:
        row = [spread(times(ranks, network, name)) for network in (FAST, SLOW)]
        row.append(spread(times(ranks, SLOW, name, of=1)))
        table.add_row(name, *row, f"{ranks[0]['peaks'][name] / 2**20:.2f}")
    for name in UPDATES:
        taken = spread([1e3 * seconds for seconds in ranks[0]["update seconds"][name]])
        table.add_row(name, taken, "", "", f"{ranks[0]['update peaks'][name] / 2**20:.2f}")
    console.print(table)
    lines = judge(ranks, wide)
    for holds, line in lines:
        print(f"{'holds' if holds else 'FAILS'}: {line}")
    return 0 if all(holds for holds, _ in lines) else 1


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
