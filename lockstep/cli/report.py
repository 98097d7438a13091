"""`lockstep report`: a run as one page: who built, who loaded, when, and what it cost."""

from __future__ import annotations

import json as json_text
from pathlib import Path
from typing import Annotated

import tyro

from lockstep.cli.files import write


def report(
    run: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")] = Path("runs/latest"),
    /,
    out: Annotated[str, tyro.conf.arg(aliases=["-o"])] = "",
    json: bool = False,
    perfetto: str = "",
) -> int:
    """Write a run's journal as one HTML page that needs no network, and print its path.

    Args:
        run: the job's folder of journals.
        out: the file to write; by default report.html in the run's folder.
        json: print what the page shows as one JSON object, and write no page.
        perfetto: a file that gets the timeline as a trace, for ui.perfetto.dev.
    """
    from lockstep.report.page.run import read_run

    found = read_run(run)
    if perfetto:
        from lockstep.report.page.perfetto import as_trace

        write(Path(perfetto), as_trace(found))
    if json:
        print(json_text.dumps(found.as_dict(), indent=2))
        return 0
    from lockstep.report.page.render import as_html

    path = Path(out) if out else run / "report.html"
    write(path, as_html([found], f"Lockstep run {found.label}"))
    print(path)
    return 0
