"""Operators that a compiler takes apart by the value of a scalar, in the form that takes a tensor.

`lerp` has two formulas, and its weight decides which one holds. A weight that is read at each call
(an optimizer's `1 - beta`) is unknown when the step is compiled, so both must be in the program.
"""

from __future__ import annotations

from typing import Any

from lockstep import _compat


def lift_weights(gm: Any) -> None:
    """Give each `lerp` whose weight is read at each call its weight as a tensor; changes `gm`.

    Changes no number in single and double precision, whose eager kernels round the scalar to the
    same dtype; beside half precision the weight stays in f32.
    """
    import torch

    aten = torch.ops.aten
    single = {aten.lerp.Scalar: aten.lerp.Tensor, aten.lerp_.Scalar: aten.lerp_.Tensor}
    for node in list(gm.graph.nodes):
        if node.op != "call_function" or not isinstance(_weight(node), torch.fx.Node):
            continue
        with gm.graph.inserting_before(node):
            if node.target in single:
                weight = _tensor(gm, node.args[0], node.args[2])
                node.target, node.args = single[node.target], (*node.args[:2], weight)
            elif node.target is _compat.foreach_lerp_op():
                for start, end in zip(*node.args[:2], strict=True):
                    weight = _tensor(gm, start, node.args[2])
                    lerp = gm.graph.call_function(aten.lerp_.Tensor, (start, end, weight))
                    lerp.meta["val"] = start.meta["val"]
                gm.graph.erase_node(node)
    gm.recompile()


def _weight(node: Any) -> Any:
    return node.args[2] if "lerp" in str(node.target) and len(node.args) > 2 else None


def _tensor(gm: Any, like: Any, weight: Any) -> Any:
    import torch

    value = like.meta["val"]
    dtype = torch.float32 if value.dtype in (torch.bfloat16, torch.float16) else value.dtype
    options = {"dtype": dtype, "device": value.device}
    made = gm.graph.call_function(torch.ops.aten.scalar_tensor.default, (weight,), options)
    made.meta["val"] = value.new_empty((), dtype=dtype)
    return made
