"""`lockstep show --html`: a verified artifact as one HTML page; nothing of it is executed."""

from __future__ import annotations

import json
import re
from importlib import resources
from pathlib import Path
from typing import Any

from lockstep.build.artifact import Artifact
from lockstep.build.describe import check_rows, describe
from lockstep.build.graph_table import BLOB
from lockstep.errors import UsageError
from lockstep.report.page.collectives import by_axis
from lockstep.report.page.render import embedded, environment

_LINE = re.compile(r"[\w./-]+\.py:\d+")
Row = list[Any]


def as_html(path: Path) -> str:
    """Verify an artifact's file and make its page.

    Raises:
        ArtifactError: it is damaged; UsageError: it is a bundle.
    """
    text = describe(path)
    if "bundle of" in text.partition("\n")[0]:
        raise UsageError(f"{path} is a bundle", want="one artifact", fix=f"lockstep show {path}")
    artifact = Artifact.from_bytes(path.read_bytes(), str(path))
    manifest, nodes = artifact.manifest, nodes_of(artifact)
    files = resources.files("lockstep.report.shown")
    styles = resources.files("lockstep.report.page")
    check = manifest.get("check", {})
    head, *blocks = text.split("\n\n")
    return (
        environment()
        .from_string((files / "shown.html").read_text())
        .render(
            title=f"{manifest.get('step', 'a step')}: {path.name}",
            head=head.splitlines(),
            blocks=[block.partition("\n")[::2] for block in blocks],
            check=[(kind, said, _LINE.findall(said)) for kind, said in check_rows(check)],
            mode=check.get("mode", ""),
            collectives=by_axis(manifest.get("schedule", [])),
            known=bool(nodes),
            css=(styles / "page.css").read_text() + (files / "shown.css").read_text(),
            js=(files / "shown.js").read_text(),
            data=embedded({"nodes": nodes}),
        )
    )


def nodes_of(artifact: Artifact) -> list[Row]:
    """Each node: its text, line, module, phase, type, gradient type, name; none if none is kept."""
    rows: list[Row] = json.loads(artifact.blobs.get(BLOB, b"[]"))
    return rows
