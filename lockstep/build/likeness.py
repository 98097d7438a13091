"""Whether two ranks capture one graph: its text, the values it holds, its inputs, its collectives.

A number that was read from the rank before the step is not seen as one: it is a literal of the
graph, and differs between two ranks.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from typing import Any

import torch

from lockstep import _compat
from lockstep.capture.graph import StepGraph
from lockstep.capture.origin import META
from lockstep.errors import CaptureError

LONGEST = 4 << 20  # bytes of a packed text that go through the rendezvous store
SHOWN = 3  # differences that are told

Rows = list[list[str]]


def rows_of(graph: StepGraph) -> Rows:
    """Everything that a graph is, in order, each with the user's line and the module's path."""
    rows = []
    names = _names(graph)
    for node in graph.gm.graph.nodes:
        origin = node.meta.get(META)
        line, module = (origin.line, origin.module) if origin is not None else ("", "")
        what = _target(node)
        text = f"{names[node]} = {what}{_arguments(node, names)}{_value(node.meta.get('val'))}"
        rows.append([line, module, text])
    contract = graph.contract()
    for part in ("inputs", "returns", "effects", "emits"):
        rows += [["", "", f"{part}: {json.dumps(item, sort_keys=True)}"] for item in contract[part]]
    rows.append(["", "", f"returned as: {contract['out_spec']}"])
    return rows


def _target(node: Any) -> str:
    """What a node calls, by a name that is the same in every process."""
    if node.op in ("placeholder", "output"):
        return str(node.op)
    if _compat.schema_or_none(node.target) is not None:
        return str(node.target)
    return getattr(node.target, "__qualname__", str(node.target))


def _names(graph: StepGraph) -> dict[Any, str]:
    """Inputs by their own names, other nodes numbered: their names count what a trace made."""
    inputs = iter(graph.inputs)
    return {
        node: next(inputs).name if node.op == "placeholder" else f"%{number}"
        for number, node in enumerate(graph.gm.graph.nodes)
    }


def _arguments(node: Any, names: dict[Any, str]) -> str:
    args = torch.fx.node.map_arg(node.args, lambda read: _Name(names[read]))
    kwargs = torch.fx.node.map_arg(node.kwargs, lambda read: _Name(names[read]))
    named = [f"{name}={value}" for name, value in kwargs.items()]
    return f"({', '.join([*map(str, args), *named])})"


class _Name(str):
    """A name that shows without quotes, wherever it stands."""

    __repr__ = str.__str__


def _value(value: Any) -> str:
    """The dtype and shape of a node's tensor, where each size is known."""
    if not isinstance(value, torch.Tensor) or not all(type(size) is int for size in value.shape):
        return ""
    return f" -> {str(value.dtype).removeprefix('torch.')}{list(value.shape)}"


def digest_of(rows: Rows) -> str:
    """The sha256 of what a graph is; lines and paths of modules do not count."""
    return hashlib.sha256(json.dumps([row[2] for row in rows]).encode()).hexdigest()


def packed(rank: int, rows: Rows) -> dict[str, Any]:
    """A rank's rows as a JSON value; their text is left out where it is very long."""
    text = base64.b64encode(zlib.compress(json.dumps(rows).encode())).decode()
    kept = {"text": text} if len(text) <= LONGEST else {}
    return {"rank": rank, "digest": digest_of(rows), **kept}


def failed(rank: int, error: BaseException) -> dict[str, Any]:
    """What a rank tells that can't capture the step."""
    return {"rank": rank, "error": f"{type(error).__name__}: {error}"}


def compared(rank: int, rows: Rows, other: dict[str, Any]) -> dict[str, Any]:
    """Compare this rank's rows with another's, as `packed`.

    Returns:
        The certificate: which ranks, the digest that is theirs, and how much it covers.

    Raises:
        CaptureError: they differ; names the line, both values, and what to write instead.
    """
    there, digest = other["rank"], digest_of(rows)
    if "error" in other:
        raise CaptureError(
            f"rank {rank} captured the step, and rank {there} could not",
            got=other["error"],
            why="the program of one rank would be shipped to all of them",
            fix="let every rank do the same, and read the rank inside the step",
        )
    if other["digest"] == digest:
        return {"ranks": sorted((rank, there)), "digest": digest, "rows": len(rows)}
    theirs = json.loads(zlib.decompress(base64.b64decode(other["text"]))) if "text" in other else []
    raise _error(rank, there, rows, theirs)


def _error(rank: int, there: int, rows: Rows, theirs: Rows) -> CaptureError:
    pairs = list(zip(rows, theirs, strict=False))
    differ = [pair for pair in pairs if pair[0][2] != pair[1][2]]
    shown = differ[:SHOWN] if len(rows) == len(theirs) else differ[:1]
    at = next((mine[0] or its[0] for mine, its in shown if mine[0] or its[0]), None)
    got = []
    for mine, its in shown:
        module = f" in {mine[1]}" if mine[1] else ""
        got += [f"rank {rank}: {mine[2]}{module}", f"rank {there}: {its[2]}"]
    if len(rows) != len(theirs):
        got.append(f"{len(rows)} rows on rank {rank}, {len(theirs)} on rank {there}")
    elif len(differ) > SHOWN:
        got.append(f"and {len(differ) - SHOWN} more")
    return CaptureError(
        f"ranks {rank} and {there} capture different graphs",
        where=at,
        got="\n".join(got),
        why="what was read of the rank before the step would be shipped from one rank to all",
        fix=[
            "read the rank inside the step: dist.get_rank(), mesh.get_local_rank(axis)",
            "hold what differs in a tensor: register_buffer(...), or pass it as an argument",
        ],
    )
