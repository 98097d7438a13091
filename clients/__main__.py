"""What becomes of other people's programs: established, or refused at a line.

    python -m clients [NAME...]

NAME: those programs alone whose name holds one of the words. Each runs on real gloo ranks of this
machine, from an empty store and again; then its gradients are checked. Exits with 0 only where
every program was either established or refused with a line and a way on, and all of them ran.
A part of the table is what was measured: `captured` a result, `portable` one digest and a graph
that two ranks captured alike, `checked` no finding and nothing undecided, `built` by one rank,
`loaded` by all at the second start, `bitwise` loss, gradients and buffers as eager, twice, or
"rounding": the graph was compared with eager before it was built, and the manifest says so.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.console import Console

from clients.judged import FAILED, figures, holds
from clients.needs import INSTALL, missing
from clients.table import line, show

SHIMS = [Path(__file__).parent / "shims" / f"{name}.py" for name in ("megatron", "torchtitan")]
MOST_SHIM = 15


def main(words: list[str]) -> int:
    """Measure the programs; return the exit code."""
    lacking = missing()
    if lacking:
        print(f"not installed: {', '.join(lacking)}; {INSTALL}")
        return 2
    warnings.filterwarnings("ignore")  # the packages' own, about kernels and devices
    from clients.job import measure
    from clients.programs import every
    from tests.ranks.launch import Torchrun

    programs = every()
    chosen = [pair for pair in programs if not words or any(w in pair[1].name for w in words)]
    if not chosen:
        print(f"no program's name holds {' or '.join(words)}: {[p.name for _, p in programs]}")
        return 2
    console = Console(width=200)
    for shim in SHIMS:
        text = shim.read_text()
        print(f"the shim of {shim.stem}, {len(text.splitlines())} lines:\n\n{text}")
    rows = []
    with Torchrun() as torchrun:
        for home, several in grouped(chosen):
            for row in measure(torchrun, home, several):
                rows.append(row)
                print(line(row), flush=True)
                if row.status == FAILED:
                    print(row.told, flush=True)
    show(console, rows)
    print("\n".join(figures(rows)))
    short = all(len(shim.read_text().splitlines()) <= MOST_SHIM for shim in SHIMS)
    few: dict[str, int] = dict(least=1, packages=1) if words else {}
    return 0 if short and holds(rows, **few) else 1


def grouped(chosen: list[tuple[str, Any]]) -> Iterator[tuple[str, list[Any]]]:
    """The programs of one module and one mesh, together."""
    for (home, _), pairs in groupby(chosen, key=lambda pair: (pair[0], [*pair[1].mesh.items()])):
        yield home, [program for _, program in pairs]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
