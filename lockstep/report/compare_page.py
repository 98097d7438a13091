"""A comparison as the page of a report, its jobs side by side."""

from __future__ import annotations

from lockstep.report.compare import STARTS, WAYS, Comparison
from lockstep.report.compare_text import artifact_lines, last_line, refusals, same_code, sums
from lockstep.report.page.render import Grid, as_html


def as_page(found: Comparison) -> str:
    """Make the page: the sums and what was the same on top, then a section for each job."""
    columns = ["way", "start", "built", "loaded", "artifacts", "compile s"]
    columns += ["slowest 1st call s", "compilers", "whole job s"]
    told = [*same_code(found.rows), *refusals(found.rows)]
    grids = [
        Grid("All ranks together", columns, list(sums(found))),
        Grid("Did all ranks run the same code?", [""], [[line] for line in told]),
        Grid("Artifacts", [""], [[line] for line in artifact_lines(found.rows)]),
        Grid("Versions", [""], [[last_line(found)]]),
    ]
    in_order = {f"{WAYS[way]}, {start}": i for i, (start, way) in enumerate(_pairs())}
    runs = sorted(found.runs, key=lambda run: in_order[run.label])
    ways = {run.label.partition(",")[0] for run in runs}
    return as_html(runs, f"{found.script} on {found.world} rank(s), compared", grids, len(ways))


def _pairs() -> list[tuple[str, str]]:
    """Cold starts in one row of the page, warm ones in the next."""
    return [(start, way) for start in STARTS for way in WAYS]
