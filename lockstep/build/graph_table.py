"""A captured graph as a table to look at: a row for each node, kept in the artifact."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

BLOB = "graph.json"

Table = list[list[str]]


def table_of(nodes: Any, rows: list[list[str]]) -> Table:
    """Name, phase, line, module and text of each node.

    Args:
        nodes: of the captured graph, before a back end changes it.
        rows: of the same graph, as `likeness.rows_of` gives them.
    """
    from lockstep.capture.origin import META

    found = []
    for node, (line, module, text) in zip(nodes, rows, strict=False):
        origin = node.meta.get(META)
        found.append([node.name, origin.phase if origin is not None else "", line, module, text])
    return found


def packed_table(
    table: Table, types: Mapping[str, Mapping[str, str]], cotangents: Mapping[str, str]
) -> bytes:
    """The blob: for each node its text, line, module, phase, type, gradient's type and name.

    Args:
        types: by a node's name and the axis, as the check found them.
        cotangents: by a value's name the name of its gradient.
    """
    rows = []
    for name, phase, line, module, text in table:
        said = _said(types.get(name)), _said(types.get(cotangents.get(name, "")))
        rows.append([text, line, module, phase, *said, name])
    return json.dumps(rows, separators=(",", ":")).encode()


def _said(axes: Mapping[str, str] | None) -> str:
    return ", ".join(f"{axis}: {kind}" for axis, kind in (axes or {}).items())
