"""A debug Llama that torch wraps, trained on four gloo ranks beside the wrapper's own eager run.

    python -m tests.wrapped
    python -m tests.wrapped fsdp2

Exits 0 where each is bitwise equal after every step and from one artifact, and each reduction that
was taken away is found.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.ranks.launch import Torchrun
from tests.wrapped import ddp, fsdp2
from tests.wrapped.row import Row

PARTS: dict[str, Callable[[Torchrun, Path], list[Row]]] = {
    "ddp": ddp.rows,
    "fsdp2": fsdp2.rows,
}


def main(names: list[str]) -> int:
    """Run the parts of these names, or all, and print a row for each case."""
    rows: list[Row] = []
    with Torchrun() as torchrun, tempfile.TemporaryDirectory() as folder:
        for name in names or PARTS:
            rows += PARTS[name](torchrun, Path(folder) / name)
    table = Table("case", "established", "holds")
    for row in rows:
        table.add_row(row.name, row.told, "yes" if row.holds else "NO")
    Console(width=140).print(table)
    held = sum(row.holds for row in rows)
    print(f"{held} of {len(rows)} hold")
    return 0 if rows and held == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
