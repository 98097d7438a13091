"""A comparison as tables for people, and as JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, replace

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from lockstep.report.compare import STARTS, WAYS, Comparison, Row


def as_json(found: Comparison) -> str:
    """The whole comparison as one JSON object; sizes in seconds and counts."""
    told = asdict(replace(found, runs=[]))
    del told["runs"]  # of a page, whose own JSON `lockstep report` gives
    return json.dumps({**told, "same_code": list(same_code(found.rows))}, indent=2)


def show(found: Comparison, console: Console) -> None:
    """Print a row for each rank, the sums, where the artifacts are, and the versions."""
    console.print(ranks_table(found.rows))
    console.print(sums_table(found))
    told = [*artifact_lines(found.rows), *same_code(found.rows), *refusals(found.rows)]
    for line in [*told, last_line(found)]:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def ranks_table(rows: list[Row]) -> Table:
    """A row for each rank, program, start and way."""
    programs = len({row.program for row in rows}) > 1
    table = _table("Each rank", "rank", *(["program"] if programs else []), "role", "artifact")
    for name in ("compile s", "1st call s", "compilers"):
        table.add_column(name, justify="right")
    table.add_column("flag")
    table.add_column("device")
    last = None
    for row in rows:
        if last not in (None, (row.way, row.start)):
            table.add_section()
        last = row.way, row.start
        table.add_row(
            WAYS[row.way],
            row.start,
            str(row.rank),
            *([row.program] if programs else []),
            row.role,
            row.digest[:8] if row.digest else "-",
            f"{row.compile_s:.2f}",
            f"{row.first_call_s:.2f}",
            str(row.compilers),
            row.flag,
            device(row),
        )
    return table


def device(row: Row) -> str:
    """A rank's device: its kind, its index and how many its machine has."""
    if row.index is None:
        return f"{row.device} ({row.devices})"
    return f"{row.device}:{row.index} of {row.devices}"


def _table(title: str, *columns: str) -> Table:
    return Table(
        "way",
        "start",
        *columns,
        title=title,
        title_justify="left",
        box=SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )


def sums_table(found: Comparison) -> Table:
    """A row for each way and start, over all ranks."""
    table = _table(f"All {found.world} rank(s) together", "built", "loaded")
    for name in ("artifacts", "compile s", "slowest 1st call s", "compilers", "whole job s"):
        table.add_column(name, justify="right")
    for row in sums(found):
        table.add_row(*row)
    return table


def sums(found: Comparison) -> Iterator[list[str]]:
    """A row for each way and start: who built and loaded, what it cost all ranks together."""
    for way in WAYS:
        for start in STARTS:
            rows = [row for row in found.rows if (row.way, row.start) == (way, start)]
            if rows:
                yield [WAYS[way], start, *_sums(rows), f"{found.wall_s[way][start]:.1f}"]


def _sums(rows: list[Row]) -> list[str]:
    roles = [row.role for row in rows]
    starts = {row.rank: row.compilers for row in rows}  # a rank's count covers all its programs
    return [
        str(roles.count("built")),
        str(roles.count("loaded")),
        str(len({row.digest for row in rows if row.digest})),
        f"{sum(row.compile_s for row in rows):.2f}",
        f"{max(row.first_call_s for row in rows):.2f}",
        str(sum(starts.values())),
    ]


def artifact_lines(rows: list[Row]) -> Iterator[str]:
    """Each artifact once: the start of its digest, and its path."""
    seen = dict.fromkeys((row.digest, row.path, row.way) for row in rows if row.digest)
    for digest, path, way in seen:
        yield f"{digest[:8]}  {WAYS[way]}: {path or 'kept in no store'}"


def same_code(rows: list[Row]) -> Iterator[str]:
    """For each way, start and program: whether all ranks ran the same code."""
    of: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        if row.role != "refused":
            of.setdefault((row.way, row.start, row.program), []).append(row)
    for (way, start, program), ranks in of.items():
        digests, n = {row.digest for row in ranks}, len(ranks)
        built = sum(row.role == "built" for row in ranks)
        if None in digests:
            told = "it is not known whether all ranks ran the same code: torch cached none of it"
        elif len(digests) > 1:
            told = f"the {n} ranks ran {len(digests)} different programs"
        else:
            told = f"all {n} rank(s) ran the same code"
        yield f"{WAYS[way]}, {start}: {told}, {built} of {n} compiled it ({program})"


def refusals(rows: list[Row]) -> Iterator[str]:
    """What torch's compiler could not take, once for each text."""
    yield from dict.fromkeys(row.detail["text"] for row in rows if row.role == "refused")


def last_line(found: Comparison) -> str:
    """Torch's version, the world's size and the flag in each way."""
    flags = {way: {row.flag for row in found.rows if row.way == way} for way in WAYS}
    said = [f"{WAYS[way]} {' or '.join(sorted(kinds))}" for way, kinds in flags.items() if kinds]
    ranks = f"{found.world} rank(s)"
    return f"torch {found.torch}, {ranks}, compile_on_one_rank: {', '.join(said)}"
