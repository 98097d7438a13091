"""Back end `graph`: the captured graph as it is, as one readable module, bitwise equal to eager."""

from __future__ import annotations

import ast
import builtins
import math
import operator
from typing import Any

from lockstep.build.backends import Lowerable
from lockstep.build.holdable import check_nodes
from lockstep.build.program import Program
from lockstep.build.requires import basic_requires
from lockstep.errors import LoweringError

_HEADER = """\
import math
import operator

import torch
from torch import device
from math import inf, nan

NoneType = type(None)

"""
_KNOWN = {"math", "operator", "torch", "device", "inf", "nan", "NoneType"}
_PLAIN = {"math": math, "_operator": operator, "builtins": builtins}
_BUILTINS = {"slice", "complex", "int", "float", "bool"}


def lower_graph(graph: Lowerable) -> Program:
    """Write the graph as a module text without a pickle; only torch, math and operator are named.

    Raises:
        LoweringError: LS200, a tensor constant, a submodule, or an argument that text can't hold.
    """
    nodes = list(graph.gm.graph.nodes)
    check_nodes(nodes)
    return Program("graph", graph_text(graph.gm), {}, basic_requires(nodes))


def graph_text(gm: Any) -> str:
    """Return the module text of a checked graph."""
    return _HEADER + ast.unparse(_module(gm)) + "\n"


def _module(gm: Any) -> ast.Module:
    """FX's own code of the graph, its signature changed to one list that is emptied at once."""
    code = gm.graph.python_code("self")
    try:
        tree = ast.parse(code.src)
    except SyntaxError as error:
        raise LoweringError(
            "the graph holds a value that text can't hold", got=str(error)
        ) from error
    (forward,) = [item for item in tree.body if isinstance(item, ast.FunctionDef)]
    aliases = _aliases(code.globals)
    names = [arg.arg for arg in forward.args.args if arg.arg != "self"]
    opening = ([f"[{', '.join(names)}] = inputs"] if names else []) + ["inputs.clear()"]
    forward.name, forward.returns = "call", None
    forward.args = ast.arguments(
        [], [ast.arg("inputs")], kwonlyargs=[], kw_defaults=[], defaults=[]
    )
    body = [item for item in forward.body if not _is_text(item)]
    forward.body = ast.parse("\n".join(opening)).body + body
    module = ast.Module([*ast.parse("\n".join(aliases)).body, forward], type_ignores=[])
    _check_names(forward, {line.split(" = ")[0] for line in aliases} | set(names))
    return ast.fix_missing_locations(module)


def _is_text(item: ast.stmt) -> bool:
    return isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant)


def _aliases(names: dict[str, Any]) -> list[str]:
    """`name = math.trunc` lines for the plain functions that FX names by a global of its own."""
    lines = []
    for name, value in sorted(names.items()):
        if name in _KNOWN or name in ("pytree", "fx_pytree"):
            continue
        home = getattr(value, "__module__", None)
        spelled = getattr(value, "__name__", "")
        if home not in _PLAIN or getattr(_PLAIN[home], spelled, None) is not value:
            raise LoweringError(
                "the graph calls a function that text can't name",
                got=f"{home}.{spelled}" if spelled else repr(value),
                want="functions of torch, torch.ops, math or operator",
                fix="make it a custom operator with torch.library.custom_op",
            )
        home = {"_operator": "operator"}.get(home, home)
        lines.append(f"{name} = {spelled if home == 'builtins' else f'{home}.{spelled}'}")
    return lines


def _check_names(forward: ast.FunctionDef, known: set[str]) -> None:
    used = {item.id for item in ast.walk(forward) if isinstance(item, ast.Name)}
    stored = {
        item.id
        for item in ast.walk(forward)
        if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Store)
    }
    loose = sorted(used - stored - known - _KNOWN - _BUILTINS - {"inputs"})
    if loose:
        raise LoweringError(
            "the graph's text would use names that no rank has", got=", ".join(loose)
        )
