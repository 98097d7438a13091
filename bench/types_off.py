"""What types cost while nothing checks: each typed collective against a hand-written Function.

    python bench/types_off.py

Two real ranks run each row of the table of typed collectives, forward and backward, in turns with
an autograd Function that does the same by `torch.distributed`. A row that does not communicate is
timed by the CPU seconds of its thread; its forward alone is shown beside. A ratio is that of the
slower rank, and of a row that communicates the least of up to three. Exits with 1 where one is over
its limit.
"""

from __future__ import annotations

import json
import os
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
LIMIT_S = 600
TITLE = "Types while nothing checks, against the same by hand"


Call = Callable[[], Any]
Clock = Callable[[], float]


def ratio(ours: Call, theirs: Call, turns: int, calls: int, clock: Clock) -> tuple[float, float]:
    """Return (ratio, seconds a call of ours) of the turns that only one in ten was faster than.

    The machine is shared and the ranks wait for each other: most turns are somebody else's noise.
    """
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(turns):
        for side in (0, 1) if turn % 2 else (1, 0):
            function = (ours, theirs)[side]
            begin = clock()
            for _ in range(calls):
                function()
            times[side].append((clock() - begin) / calls)
    mine, other = (sorted(side)[turns // 10] for side in times)
    return mine / other, mine


def least(ours: Call, theirs: Call) -> tuple[float, float]:
    """Return the ratio of calls that communicate, of the slower rank.

    Over its limit it is measured again, up to twice, and the least counts: a burst of other work
    on the machine raises one ratio, and what a call really costs raises all of them.
    """
    import torch
    import torch.distributed as dist

    found: list[tuple[float, float]] = []
    while len(found) < 3 and (not found or min(found)[0] > COMMUNICATES):
        both = torch.tensor(ratio(ours, theirs, 300, 1, time.perf_counter), dtype=torch.float64)
        dist.all_reduce(both, dist.ReduceOp.MAX)  # the ranks agree whether to measure again
        found.append((both[0].item(), both[1].item()))
    return min(found)


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
            rows.append((pair.name, COMMUNICATES, *least(both(ours), both(theirs)), 0.0))
            continue
        found = ratio(both(ours), both(theirs), 60, 20, time.thread_time)
        alone = ratio(lambda: ours(x), lambda: theirs(x), 60, 60, time.thread_time)  # noqa: B023
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
    found = ratio(*calls, 60, 2000, time.thread_time)
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
