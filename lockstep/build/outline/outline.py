"""From a captured graph to bodies and their driver, or to a sentence why not."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

from lockstep.build.outline.bodies import CutError, bodies_of
from lockstep.build.outline.borders import settle
from lockstep.build.outline.driver import driver_text
from lockstep.build.outline.nodes import calls
from lockstep.build.outline.normal import normalised
from lockstep.build.outline.proof import proved
from lockstep.build.outline.repeats import apart, segments

LEAST_REPEATS = 4
MOST_HELD = 0.5  # of the graph's nodes in bodies: of more, calls cost more than is saved
LEAST_SAVED = 200  # nodes: below, a compiler is done with the whole graph as soon


@dataclass(frozen=True)
class Outlined:
    """A graph as calls of bodies.

    Args:
        bodies: modules, each with a tuple as its output.
        calls: which body each call is of, in order.
        driver: text of `call(inputs)`, over globals `body_0`, `body_1`, ...
        nodes: how many the whole graph has.
        flat: why no part is compiled once for several: it is cut at collectives alone.
    """

    bodies: list[Any]
    calls: list[int]
    driver: str
    nodes: int
    flat: str = ""

    def told(self) -> dict[str, Any]:
        """The figures, for a manifest."""
        if self.flat:
            return {"flat": self.flat, "parts": len(self.bodies)}
        held = sum(len(calls(body.graph)) for body in self.bodies)
        return {"bodies": len(self.bodies), "calls": len(self.calls), "nodes": held}


def outlined(gm: Any, rounding: bool = True) -> Outlined | str:
    """Find a graph's repeated parts.

    Args:
        gm: a flat graph of operators; its output is a tuple. It is not changed.
        rounding: whether values of half precision may go from part to part. They are rounded there,
            as in eager; a compiler that sees the whole graph may keep them unrounded.

    Returns:
        Bodies and driver, proved equal to the graph; or why it is better left whole.
    """
    graph = normalised(gm)
    found = _cut(gm, graph, segments(graph), rounding)
    why = found if isinstance(found, str) else _poor(found)
    if isinstance(found, Outlined) and not why:
        return found
    graph = normalised(gm)
    parts = apart(graph)
    found = _cut(gm, graph, parts, rounding) if len(parts) > 1 else why
    return replace(found, flat=why) if isinstance(found, Outlined) else why


def _poor(found: Outlined) -> str:
    """Why calls of bodies would save too little; empty where they save enough."""
    if len(found.calls) <= LEAST_REPEATS:
        return "no part repeats"
    if max(Counter(found.calls).values()) < LEAST_REPEATS:
        return f"no part repeats {LEAST_REPEATS} times"
    held, whole = found.told()["nodes"], found.nodes
    if whole - held < LEAST_SAVED or held > MOST_HELD * whole:
        return f"repeats would save {whole - held} of {whole} nodes"
    return ""


def _cut(gm: Any, graph: Any, parts: list[list[Any]], rounding: bool) -> Outlined | str:
    """A graph in parts, proved equal to the whole; or why it can't be."""
    if len(parts) == 1:
        return "no part repeats"
    try:
        bodies, made = bodies_of(settle(graph, parts))
    except CutError as error:
        return str(error)
    if not rounding and any(_is_half(n) for call in made for n in call.inputs):
        return "half precision would be rounded between layers: LOCKSTEP_REPEATS=once allows it"
    whole = len(calls(gm.graph))
    result = Outlined(bodies, [one.body for one in made], driver_text(graph, made), whole)
    if not proved(gm, bodies, result.driver):
        return "the parts were not proved equal to the whole"
    return result


def _is_half(node: Any) -> bool:
    import torch

    half = (torch.bfloat16, torch.float16)
    return node.op == "call_function" and getattr(node.meta["val"], "dtype", None) in half
