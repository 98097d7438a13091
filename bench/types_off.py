"""What types cost while nothing checks: each typed collective against a hand-written Function.

    python bench/types_off.py

Two real ranks run each row of the table of typed collectives, forward and backward, in turns with
an autograd Function that does the same by `torch.distributed`. A ratio is the median over pairs of
such turns, of the slower rank. A row that communicates is timed call by call; one that does not by
the CPU seconds of its thread, and its forward alone is shown beside. Exits with 1 where a ratio is
over its limit.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))  # run as a script

COMMUNICATES, LOCAL, CLAIM = 1.05, 1.3, 1.5
PAIRS_OF_CALLS = 1000
LIMIT_S = 1100
TITLE = "Types while nothing checks, against the same by hand: medians of pairs"

Call = Callable[[], Any]
Clock = Callable[[], float]


def ratio(ours: Call, theirs: Call, pairs: int, calls: int, clock: Clock) -> tuple[float, float]:
    """Return (ratio, seconds a call of ours): medians over pairs of turns side by side.

    The machine is shared and the ranks wait for each other. What slows one turn of a pair down is
    as likely to fall on either side, and which side comes first alternates.
    """
    ratios, seconds = [], []
    for pair in range(pairs):
        spent = [0.0, 0.0]
        for side in (0, 1) if pair % 2 else (1, 0):
            function = (ours, theirs)[side]
            begin = clock()
            for _ in range(calls):
                function()
            spent[side] = (clock() - begin) / calls
        ratios.append(spent[0] / spent[1])
        seconds.append(spent[0])
    return statistics.median(ratios), statistics.median(seconds)


def measure(out: Path) -> None:
    """Measure on this rank, and write rows of name, limit, ratio and seconds."""
    from bench.types_torch import snapshot

    before = snapshot()
    import torch
    import torch.distributed as dist

    import lockstep as ls
    from bench.types_by_hand import PAIRS

    ls.mesh("cpu", tp=-1)
    rows = []
    for pair in PAIRS:
        x, g = pair.tensors()
        ours, theirs = pair.ours, pair.theirs
        assert_same(ours, theirs, x, g, pair.name)

        def both(f: Callable[..., Any], x: Any = x, g: Any = g) -> Call:
            return lambda: torch.autograd.grad(f(x), x, g)

        dist.barrier()
        if pair.communicates:
            found = ratio(both(ours), both(theirs), PAIRS_OF_CALLS, 1, time.perf_counter)
            rows.append((pair.name, COMMUNICATES, *found, 0.0))
            continue
        found = ratio(both(ours), both(theirs), 200, 20, time.thread_time)
        alone = ratio(lambda: ours(x), lambda: theirs(x), 100, 60, time.thread_time)  # noqa: B023
        rows.append((pair.name, LOCAL, *found, alone[0]))
    rows.append(("ls.typed, against an empty function", CLAIM, *claim_ratio(), 0.0))
    changed = sorted(name for name, value in snapshot().items() if before.get(name) != value)
    out.joinpath(f"rank{dist.get_rank()}.json").write_text(json.dumps([rows, changed]))
    dist.destroy_process_group()


def assert_same(ours: Any, theirs: Any, x: Any, g: Any, name: str) -> None:
    """End with an error where the two sides do not do the same: there is nothing to compare."""
    import torch

    sides = []
    for function in (ours, theirs):
        y = function(x)
        sides.append((y, torch.autograd.grad(y, x, g)[0]))
    if not all(map(torch.equal, *sides)):
        raise SystemExit(f"{name}: the hand-written Function does something else")


def claim_ratio() -> tuple[float, float]:
    """Return the ratio of `ls.typed`, and check that it leaves nothing on the tensor."""
    import torch

    import lockstep as ls
    from lockstep import R, S

    typed, shard, x = ls.typed, S(0), torch.zeros(2, 2)

    def empty(x: Any, **types: Any) -> Any:
        return x

    calls = (lambda: typed(x, tp=shard, dp=R), lambda: empty(x, tp=shard, dp=R))
    found = ratio(*calls, 100, 2000, time.thread_time)
    if x.__dict__ or typed(x, tp=shard) is not x:
        raise SystemExit("ls.typed leaves something on the tensor")
    return found


def main() -> int:
    """Start the ranks and print what they found."""
    from rich.console import Console
    from rich.table import Table

    with tempfile.TemporaryDirectory() as folder:
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        done = subprocess.run(
            [sys.executable, *torchrun, __file__, folder],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
            timeout=LIMIT_S,
        )
        if done.returncode:
            print(done.stdout)
            return 1
        ranks = [json.loads(path.read_text()) for path in sorted(Path(folder).glob("rank*.json"))]
    table = Table("", "row", "ratio", "limit", "us a call", "forward alone", title=TITLE)
    failed = 0
    for rows in zip(*(rows for rows, _ in ranks), strict=True):
        name, limit = rows[0][:2]
        worst, microseconds = max(row[2] for row in rows), 1e6 * max(row[3] for row in rows)
        failed += worst > limit
        mark = "[red]FAIL[/]" if worst > limit else "[green]pass[/]"
        alone = max(row[4] for row in rows)
        shown = [f"{worst:.3f}", f"{limit}", f"{microseconds:.2f}", f"{alone:.2f}" if alone else ""]
        table.add_row(mark, name, *shown)
    Console(width=100).print(table)
    patched = sorted({name for _, changed in ranks for name in changed})
    print(f"patched in torch: {', '.join(patched) or 'nothing'}")
    print(f"{len(ranks[0][0]) - failed} of {len(ranks[0][0])} within their limits")
    return 1 if failed or patched else 0


if __name__ == "__main__":
    if "RANK" in os.environ:
        measure(Path(sys.argv[1]))
    else:
        sys.exit(main())
