"""`lockstep show`: what is in an artifact, without executing any of it."""

from __future__ import annotations

from pathlib import Path

from lockstep.cli.files import readable, write


def show(file: Path, /, html: bool = False, out: str = "") -> int:
    """Print what is in an artifact or a bundle, without executing any of it.

    Args:
        file: the artifact, or the bundle.
        html: write an artifact as a page instead: its graph by module and phase, with types.
        out: the page to write; by default the artifact's name with .html.
    """
    path = readable(file, "an artifact")
    if html or out:
        from lockstep.report.shown.render import as_html

        page = Path(out) if out else Path(path.name).with_suffix(".html")
        write(page, as_html(path))
        print(page)
        return 0
    from lockstep.build.describe import describe

    print(describe(path))
    return 0
