"""Show that no fault of one rank hangs the others, or leaves a bad artifact behind.

    python -m tests.chaos --ranks 4

A job of two torchrun agents with two ranks each starts on this machine, and one process is killed,
stopped, or fails: the rank that builds, one that waits, the host of the rendezvous store, or the
builder of one of two jobs on one key; at each of eight points of a first call. Special cases
follow: stores that are half warm, full, read-only; slow, hung and stubborn ranks. Exits with 0 only
where every process was gone, or had trained on, within the time that its fault may take, every file
in a store verifies, and every error names its culprit; a rank that its own agent ended counts as
told.
"""

from __future__ import annotations

import sys
import tempfile
import time
from concurrent.futures import as_completed
from pathlib import Path

import tyro
from rich.console import Console
from rich.table import Table

from tests.chaos.cells import ACTIONS, PHASES, TARGETS, Cell, matrix, specials
from tests.chaos.judge import faults, outcome
from tests.chaos.launch import AT_ONCE, Seen, pool, run

Rows = dict[Cell, Seen]
TAIL = 12  # lines of each process that a failed cell shows


def run_all(cells: list[Cell], folder: Path, at_once: int, console: Console) -> Rows:
    """Run cells and tell of each; the first is awaited, since it warms the half-warm store."""
    rows: Rows = {}
    warm: dict[str, bytes] = {}
    with pool(at_once) as running:
        for some in (cells[:1], cells[1:]):
            started = {}
            for number, cell in enumerate(some):
                place = folder / f"{len(rows)}-{number}"
                started[running.submit(run, cell, place, warm)] = cell
            for done in as_completed(started):
                cell = started[done]
                rows[cell] = done.result()
                tell(console, len(rows), len(cells), cell, rows[cell])
            if not warm:
                warm = {p.name: p.read_bytes() for p in (folder / "0-0/store0").glob("*.lockstep")}
    return rows


def tell(console: Console, number: int, of: int, cell: Cell, seen: Seen) -> None:
    """One line for a cell; what its processes said, where something does not hold."""
    wrong = faults(cell, seen)
    console.print(f"{number}/{of} {cell}: {outcome(seen)} {'; '.join(wrong) or 'ok'}", markup=False)
    for process, text in seen.texts.items() if wrong else ():
        lines = "\n".join(text.splitlines()[-TAIL:])
        console.print(f"---- process {process}\n{lines}", markup=False)


def coverage(rows: Rows) -> Table:
    """The matrix: by phase what became of each target under each action."""
    heads = [f"{target} {action}" for target in TARGETS for action in ACTIONS]
    table = Table("phase", *heads, title="what became of it, and seconds from the strike")
    for phase in PHASES:
        cells = [Cell(target, phase, action) for target in TARGETS for action in ACTIONS]
        table.add_row(phase, *(_mark(cell, rows) for cell in cells))
    return table


def others(rows: Rows) -> Table:
    """The special cases, and why one could not be."""
    table = Table("special case", "outcome", "but")
    for cell in specials():
        if cell in rows:
            why = rows[cell].impossible or "; ".join(faults(cell, rows[cell]))
            table.add_row(cell.special, _mark(cell, rows), why)
    return table


def _mark(cell: Cell, rows: Rows) -> str:
    if cell not in rows:
        return ""
    return f"[red]{outcome(rows[cell])}[/]" if faults(cell, rows[cell]) else outcome(rows[cell])


def main(ranks: int = 4, at_once: int = AT_ONCE, only: str = "") -> int:
    """Run the whole matrix, print its coverage and the figures.

    Args:
        ranks: of a cell; two agents of two.
        at_once: cells that run at a time.
        only: of cells whose name holds one of these words, separated by semicolons; the exit code
            is then no verdict on the whole.
    """
    if ranks != 4:
        sys.exit("the matrix is of two agents with two ranks each: --ranks 4")
    every = [*specials(), *matrix()]
    words = [word.strip() for word in only.split(";")]
    cells = [every[0], *(c for c in every[1:] if any(word in str(c) for word in words))]
    begin, console = time.monotonic(), Console(width=200)
    with tempfile.TemporaryDirectory(prefix="chaos") as name:
        rows = run_all(cells, Path(name), at_once, console)
    console.print(coverage(rows), others(rows))
    wrong = [cell for cell in rows if faults(cell, rows[cell])]
    none = [cell for cell in rows if rows[cell].impossible]
    over = max(end / c.limit_of(p) for c, s in rows.items() for p, end in s.ends.items())
    taken = sum(any(e["event"] == "takeover" for e in seen.events) for seen in rows.values())
    console.print(
        f"{len(rows)} of {len(every)} cells in {time.monotonic() - begin:.0f} s: "
        f"{len(rows) - len(wrong) - len(none)} hold, {len(wrong)} do not, "
        f"{len(none)} cannot be here; {taken} builds taken over; "
        f"the slowest took {over:.0%} of its stated time"
    )
    return 1 if wrong or (len(rows) < len(every) and not only) else 0


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
