"""Runs as one HTML page that needs nothing else: no network, no other file."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from typing import Any

from lockstep.build.inspect import size_text
from lockstep.report.page.phases import MEANS, PHASES
from lockstep.report.page.ranks import ranges
from lockstep.report.page.run import Run


@dataclass(frozen=True)
class Grid:
    """A table above the runs, as a comparison's."""

    title: str
    columns: list[str]
    rows: list[list[str]]


def as_html(runs: Sequence[Run], title: str, grids: Sequence[Grid] = (), wide: int = 1) -> str:
    """Make the page.

    Args:
        runs: each a section of its own.
        title: of the page.
        grids: tables above the runs.
        wide: how many runs stand beside each other.

    Returns:
        The text of an HTML file.
    """
    files = resources.files("lockstep.report.page")
    return (
        environment()
        .from_string((files / "page.html").read_text())
        .render(
            title=title,
            runs=runs,
            grids=grids,
            wide=wide,
            phases=list(zip(PHASES, MEANS.values(), strict=True)),
            css=(files / "page.css").read_text(),
            js=(files / "page.js").read_text(),
            data=embedded({"phases": PHASES, "runs": [_drawn(run) for run in runs]}),
        )
    )


def environment() -> Any:
    """What templates are read with; what stands in a journal or an artifact is escaped."""
    import jinja2

    made = jinja2.Environment(
        loader=jinja2.PackageLoader("lockstep.report", "page"),  # of what templates include
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    made.filters |= {"seconds": seconds_text, "size": size_text, "ranges": ranges}
    made.filters["at"] = lambda t: time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(t))
    return made


def seconds_text(seconds: float) -> str:
    """Seconds as people read them.

    Example:
        >>> seconds_text(0.0123), seconds_text(3.21), seconds_text(75), seconds_text(7200)
        ('12 ms', '3.2 s', '1.2 min', '2.0 h')
    """
    for least, size, unit, digits in ((3600, 3600, "h", 1), (60, 60, "min", 1), (1, 1, "s", 1)):
        if seconds >= least:
            return f"{seconds / size:.{digits}f} {unit}"
    return f"{seconds * 1000:.0f} ms"


def _drawn(run: Run) -> dict[str, Any]:
    """What the page's script draws."""
    return {
        "rows": run.rows,
        "groups": [group.name for group in run.groups],
        "programs": [program.name for program in run.programs],
        "charts": [asdict(chart) for chart in run.charts],
    }


def embedded(value: Any) -> str:
    """JSON that no text in it can end early, inside of a script element."""
    text = json.dumps(value, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
