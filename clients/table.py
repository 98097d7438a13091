"""The table that `python -m clients` prints."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from clients.judged import FAILED, PARTS, REFUSED, Row

_STYLE = {REFUSED: "yellow", FAILED: "bold red"}


def table(rows: Sequence[Row]) -> Table:
    """One row a program: what was established, or where and how it was refused."""
    made = Table("program", "package", "became", *PARTS, "s", "told", show_lines=True)
    for row in rows:
        style = _STYLE.get(row.status, "green")
        parts = [_mark(row, part) for part in PARTS]
        status = f"[{style}]{row.status}[/]"
        made.add_row(row.name, row.package, status, *parts, f"{row.seconds:.0f}", escape(told(row)))
    return made


def _mark(row: Row, part: str) -> str:
    if part not in row.parts:
        return ""
    if part == "bitwise" and (row.unequal or row.rounded):
        return "n/a" if row.unequal else "rounding"
    return "yes" if row.parts[part] else "[red]no[/]"


def told(row: Row) -> str:
    """The refusal in full, and what else is to be known."""
    lines = []
    if row.refusal is not None:
        lines += [f"{row.refusal.code} at {row.refusal.where}: {row.refusal.what}"]
        lines += [f"-> {fix}" for fix in row.refusal.fixes]
    return "\n".join([*lines, *([row.told] if row.told else [])])


def line(row: Row) -> str:
    """A row on one line, for while it runs."""
    parts = ", ".join(part for part in PARTS if row.parts.get(part))
    text = told(row).splitlines()
    more = parts if not row.refusal else text[0]
    return f"{row.status:<11} {row.name:<44} {row.seconds:>4.0f} s  {more}"


def show(console: Console, rows: Sequence[Row]) -> None:
    """Print the table."""
    console.print(table(rows))
