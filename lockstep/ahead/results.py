"""What a step hands back where it is not run: tensors of its shapes, so that a script goes on.

Below fake tensors they have no values; else they are zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from lockstep import _compat
from lockstep.build.artifact import Artifact
from lockstep.capture.graph import StepGraph
from lockstep.run.variant import Variant


def not_run(graph: StepGraph, name: str) -> Variant:
    """A variant whose calls run nothing: gradients and what is returned are made up.

    Args:
        graph: the captured step.
        name: of the variant.
    """
    manifest = {"contract": _as_read(graph.contract())}
    return Variant(Artifact(manifest, {}, ""), _made_up(graph), name)


def _as_read(value: Any) -> Any:
    """A contract as a manifest gives it back: lists for tuples."""
    if isinstance(value, dict):
        return {key: _as_read(inner) for key, inner in value.items()}
    return [_as_read(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def _made_up(graph: StepGraph) -> Callable[[list[Any]], list[Any]]:
    values = [_value(node) for node in graph.gm.graph.output_node().args[0]]  # type: ignore[union-attr]

    def program(inputs: list[Any]) -> list[Any]:
        inputs.clear()
        return [_like(value) for value in values]

    return program


def _value(node: Any) -> Any:
    return node.meta.get("val") if isinstance(node, torch.fx.Node) else node


def _like(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        shape = [_compat.hint_of(size) for size in value.shape]
        stride = [_compat.hint_of(step) for step in value.stride()]
        made = torch.empty_strided(shape, stride, dtype=value.dtype, device=value.device)
        return made.zero_()
    return 0 if isinstance(value, torch.SymInt) else value
