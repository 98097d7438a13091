"""Passes over a freshly traced graph. None of them changes a number."""

from __future__ import annotations

import copy
import operator
from typing import Any

import torch

from lockstep import _compat
from lockstep.capture.binding import describe, dtype_name
from lockstep.capture.collectives import name_axis
from lockstep.capture.origin import META
from lockstep.capture.schemas import must_stay
from lockstep.errors import CaptureError
from lockstep.spmd.ops import COORDINATE


def clean(gm: torch.fx.GraphModule, keep_dead: bool = False, runs: bool = True) -> None:
    """Inline constants, name groups by axis, drop dead code, forget device indices.

    Args:
        runs: whether the module may be called later, and not only its graph be read.
    """
    inline_constants(gm)
    name_groups(gm)
    if not keep_dead:
        gm.graph.eliminate_dead_code(is_impure_node=stays)
    forget_device_index(gm)
    gm.graph.lint()
    if runs:
        gm.recompile()


def without(gm: torch.fx.GraphModule, aliases: list[torch.fx.Node]) -> torch.fx.GraphModule:
    """Copy a module without some of its nodes, each of which is only a name for what it reads."""
    left_out = {node.name for node in aliases}
    made: torch.fx.GraphModule = _compat.lazy_graph_module()(gm, copy.deepcopy(gm.graph))
    for node in list(made.graph.nodes):
        if node.name in left_out:
            node.replace_all_uses_with(node.args[0])
            made.graph.erase_node(node)
    return made


def stays(node: torch.fx.Node) -> bool:
    """Whether a node does something even where nothing reads it: a write, a draw, a collective."""
    if node.op in ("placeholder", "output"):
        return True
    if node.target is COORDINATE:  # a number that Python has decided by, and nothing computes with
        return False
    return node.op == "call_function" and must_stay(node.target)


def inline_constants(gm: torch.fx.GraphModule) -> None:
    """Turn 0-dim constants into `aten.full`, and refuse larger ones.

    The attribute goes too: lowering would lift even an unused one to an extra input.

    Raises:
        CaptureError: the step made a tensor from Python data of more than one element.
    """
    for node in list(gm.graph.find_nodes(op="get_attr")):
        value = getattr(gm, node.target)
        real = getattr(value, "constant", None)
        real = value if real is None else real
        if not isinstance(value, torch.Tensor):
            if not node.users:
                gm.graph.erase_node(node)
                delattr(gm, node.target)
                continue
            raise _constant_error(node, type(value).__name__)
        if real.dim() > 0 or _compat.is_fake(real):
            _inline_list(gm, node, real)
            continue
        with gm.graph.inserting_before(node):
            options = {
                "dtype": real.dtype,
                "device": node.meta["val"].device if "val" in node.meta else real.device,
            }
            full = gm.graph.call_function(torch.ops.aten.full.default, ([], real.item()), options)
            full.meta.update(node.meta)
        _replace(gm, node, full)


def _inline_list(gm: torch.fx.GraphModule, node: torch.fx.Node, real: torch.Tensor) -> None:
    """A short constant, as `torch.tensor([1, 2])` makes: built from its elements in the graph."""
    if _compat.is_fake(real) or real.numel() > 64:
        raise _constant_error(node, describe(real))
    options = {"dtype": real.dtype, "device": real.device}
    elements = []
    with gm.graph.inserting_before(node):
        if not real.numel():  # nothing to put together, and `cat` takes no empty list
            empty = (list(real.shape), 0)
            made = gm.graph.call_function(torch.ops.aten.full.default, empty, options)
            made.meta.update(node.meta)
            return _replace(gm, node, made)
        for element in real.flatten().tolist():
            elements.append(
                gm.graph.call_function(torch.ops.aten.full.default, ([1], element), options)
            )
            elements[-1].meta["val"] = node.meta.get("val")
        flat = gm.graph.call_function(torch.ops.aten.cat.default, (elements,))
        made = gm.graph.call_function(torch.ops.aten.view.default, (flat, list(real.shape)))
        for new in (*elements, flat, made):
            new.meta.update(node.meta)
    _replace(gm, node, made)


def _replace(gm: torch.fx.GraphModule, node: torch.fx.Node, new: torch.fx.Node) -> None:
    target = str(node.target)
    node.replace_all_uses_with(new)
    gm.graph.erase_node(node)
    if not any(n.target == target for n in gm.graph.find_nodes(op="get_attr")):
        delattr(gm, target)


def _constant_error(node: torch.fx.Node, what: str) -> CaptureError:
    origin = node.meta.get(META) or next((u.meta.get(META) for u in node.users), None)
    return CaptureError(
        "the step holds a constant that is not one of its inputs",
        where=origin.line if origin else None,
        got=what,
        why="its value would be frozen into the program of every rank",
        fix=["pass it as an argument", "register_buffer(...) it on a module of the model"],
    )


def name_groups(gm: torch.fx.GraphModule) -> None:
    """Name the group of every functional collective by its axis.

    Raises:
        CaptureError: a group that is no mesh axis, or an in-place c10d op that was not mapped.
    """
    for node in gm.graph.nodes:
        target = node.target
        if node.op != "call_function" or not hasattr(target, "_schema"):
            continue
        if target.namespace == "c10d":
            origin = node.meta.get(META)
            raise CaptureError(
                f"the collective {target} reached the graph unmapped",
                where=origin.line if origin else None,
                fix="call it through torch.distributed's public functions",
            )
        if target.namespace == "_c10d_functional":
            arguments = _compat.schema(target).arguments
            at = [i for i, a in enumerate(arguments) if a.name == "group_name"]
            for i in at:
                if isinstance(node.args[i], str):
                    node.update_arg(i, name_axis(node.args[i], str(target)).name)


def forget_device_index(gm: torch.fx.GraphModule) -> None:
    """Write `cuda` for `cuda:0`: the program runs on each rank's current device."""

    def forget(value: Any) -> Any:
        if isinstance(value, torch.device) and value.index is not None:
            return torch.device(value.type)
        return value

    for node in gm.graph.nodes:
        node.args = torch.fx.node.map_aggregate(node.args, forget)
        node.kwargs = torch.fx.node.map_aggregate(node.kwargs, forget)


def schedule(gm: torch.fx.GraphModule) -> list[dict[str, Any]]:
    """The collectives in the order in which every rank meets them."""
    found = []
    for node in gm.graph.nodes:
        target = node.target
        if node.op != "call_function" or getattr(target, "namespace", "") != "_c10d_functional":
            continue
        if "wait_tensor" in str(target):
            continue
        value, origin = node.args[0].meta.get("val"), node.meta.get(META)
        names = [a.name for a in _compat.schema(target).arguments]
        found.append(
            {
                "op": _compat.schema(target).name.split("::")[1],
                "axis": node.args[names.index("group_name")],
                "shape": [str(s) for s in getattr(value, "shape", ())],
                "dtype": dtype_name(value.dtype) if value is not None else "",
                "line": origin.line if origin else "",
                "phase": origin.phase if origin else "",
            }
        )
    return found


def item_source(node: Any) -> torch.fx.Node | None:
    """The tensor node behind a Python number that `.item()` gave, through plain conversions."""
    while isinstance(node, torch.fx.Node) and node.op == "call_function":
        if node.target is _compat.item_op():
            return node.args[0]  # type: ignore[return-value]
        if node.target not in (operator.pos, torch.sym_float):
            return None
        node = node.args[0]
    return None
