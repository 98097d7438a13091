"""What a graph may hold so that one program fits every rank: operators and plain values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from lockstep.errors import LoweringError


def check_nodes(nodes: Iterable[Any]) -> None:
    """Refuse what no text can hold, for every back end alike.

    Raises:
        LoweringError: LS200, a constant, a sub-graph, another kind of node, or an odd argument.
    """
    import torch

    plain = (type(None), bool, int, float, complex, str)
    kinds = (*plain, torch.fx.Node, torch.dtype, torch.device, torch.layout, torch.memory_format)
    for node in nodes:
        _check_kind(node, torch)
        for value in _leaves((node.args, node.kwargs)):
            if not isinstance(value, kinds):
                raise LoweringError(
                    f"an argument of {node.target} is not a plain value",
                    where=str(node),
                    got=f"{type(value).__name__}: {value!r}"[:200],
                    want="tensors, numbers, strings, dtypes and devices",
                )


def _check_kind(node: Any, torch: Any) -> None:
    if node.op == "get_attr":
        held = getattr(node.graph.owning_module, str(node.target), None)
        if isinstance(held, torch.nn.Module):
            raise LoweringError(
                f"the graph holds a sub-graph, {node.target}",
                where=str(node),
                why="an operator that takes a function can't be held by a program yet",
                fix="write this part with ordinary operators",
            )
        raise LoweringError(
            f"the graph holds a constant, {node.target}",
            where=str(node),
            want="tensors as inputs of the step",
            why="a program carries no weights and no data: they would be the building rank's",
            fix="pass the tensor to the step, or make it a buffer of the model",
        )
    if node.op not in ("placeholder", "call_function", "output"):
        raise LoweringError(
            f"the graph holds a {node.op} node", where=str(node), got=str(node.target)
        )
    if str(node.target) == "aten.mkldnn_rnn_layer_backward.default":
        raise LoweringError(
            "the graph holds an LSTM of the CPU's library, mkldnn",
            where=str(node),
            why="it keeps what its backward needs only where autograd runs, which no program does",
            fix="torch.backends.mkldnn.set_flags(False): torch's own kernels, to rounding equal",
        )


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from _leaves(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _leaves(item)
    elif isinstance(value, slice):
        yield from _leaves((value.start, value.stop, value.step))
    else:
        yield value
