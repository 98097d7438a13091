"""The messages of a graph in order, as JSON values: what a neighbour's program has to answer."""

from __future__ import annotations

from typing import Any

import torch

from lockstep.capture.binding import dtype_name
from lockstep.capture.origin import META
from lockstep.spmd.point_to_point import RECV, SEND


def messages_of(gm: torch.fx.GraphModule) -> list[dict[str, Any]]:
    """What a program sends and receives: op, axis, place, number, shape, dtype, line.

    `place` is relative, of who gets or gives it; `number` counts what goes there, or comes.
    """
    found = []
    for node in gm.graph.nodes:
        if node.target not in (SEND, RECV):
            continue
        value, origin = node.args[0].meta["val"], node.meta.get(META)
        axis, place, number = node.args[2:]
        found.append(
            {
                "op": "send" if node.target is SEND else "recv",
                "axis": axis,
                "place": place,
                "number": number,
                "shape": [str(size) for size in value.shape],
                "dtype": dtype_name(value.dtype),
                "line": origin.line if origin else "",
            }
        )
    return found
