"""The user's source: a line's text, and the expression on it that a value stands for."""

from __future__ import annotations

import ast
import functools
import linecache
import sys
from collections.abc import Iterator
from pathlib import Path

from torch.fx import Node

from lockstep.capture.origin import META, Origin
from lockstep.checker.inference.rules.registry import op_name

# What a user writes for an operator.
CALLS = {
    "mm": "linear matmul mm einsum",
    "addmm": "linear addmm",
    "bmm": "matmul bmm einsum linear",
    "convolution": "conv1d conv2d conv3d",
    "native_layer_norm": "layer_norm",
    "_softmax": "softmax",
    "_log_softmax": "log_softmax cross_entropy",
    "div": "div true_divide mean",
    "lockstep.own_slice": "convert shard",
}
OPERATORS = {
    ast.Add: ("add",),
    ast.Sub: ("sub", "rsub"),
    ast.Mult: ("mul",),
    ast.Div: ("div",),
    ast.MatMult: ("mm", "bmm", "addmm"),
    ast.Pow: ("pow",),
}


def line_of(node: Node) -> str:
    """Return the "file:number" that a node comes from; "" where none is known."""
    origin: Origin | None = node.meta.get(META)
    return origin.line if origin is not None else ""


@functools.lru_cache(maxsize=4096)
def full_path(short: str) -> str:
    """Return where a file is that origins name by its path below an import root."""
    if Path(short).is_absolute():
        return short
    for root in (".", *sys.path):
        if (Path(root) / short).exists():
            return str(Path(root) / short)
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if file and file.endswith("/" + short):
            return file
    return short


def text_of(line: str) -> str:
    """Return a line's source, as it stands there, without the newline."""
    name, _, number = line.rpartition(":")
    if not number.isdigit():
        return ""
    return linecache.getline(full_path(name), int(number)).rstrip("\n")


def bare(text: str) -> str:
    """Return a source line without indentation and comment."""
    return text.split("  #")[0].strip()


def statement(text: str) -> ast.AST | None:
    """Parse one line of source; None where it is only a part of a statement."""
    for candidate in (text, text + "\n    pass"):
        try:
            return ast.parse(candidate).body[0]
        except (SyntaxError, IndexError):
            continue
    return None


def place_of(
    node: Node, line: str, names: dict[Node, str], reader: Node | None = None
) -> tuple[int, int] | None:
    """Find the expression on a line that stands for a node's value, in the line's `bare` text.

    Args:
        names: placeholder -> the input's name.
        reader: a node of that line that reads the value: its own place tells, where names do not.

    Returns:
        Where the expression starts and ends; None if it is not found.
    """
    text = bare(text_of(line))
    tree = statement(text)
    if tree is None or not text.isascii():
        return None
    found = next(_candidates(node, line, tree, names), None)
    if found is None and reader is not None and line_of(reader) == line:
        found = _argument(node, reader, line, tree, names)
    if not isinstance(found, ast.expr) or found.end_col_offset is None:
        return None
    return found.col_offset, found.end_col_offset


def segment_for(
    node: Node, line: str, names: dict[Node, str], reader: Node | None = None
) -> str | None:
    """Return the expression on a line that stands for a node's value; see `place_of`."""
    place = place_of(node, line, names, reader)
    return bare(text_of(line))[slice(*place)] if place is not None else None


def _argument(
    node: Node, reader: Node, line: str, tree: ast.AST, names: dict[Node, str]
) -> ast.AST | None:
    """The argument in this node's place of the call or operator that reads it."""
    inputs = reader.all_input_nodes
    if node not in inputs:
        return None
    at = inputs.index(node)
    calls = list(_made_here(tree, reader))
    written = [_arguments(call) for call in calls]
    for other in inputs:
        if other is node or len(calls) == 1:
            continue
        place = place_of(other, line, names)
        beside = inputs.index(other)
        written = [
            args
            for args in written
            if beside < len(args)
            and place == (args[beside].col_offset, args[beside].end_col_offset)
        ]
    if len(written) == 1 and at < len(written[0]):
        return written[0][at]
    return None


def _extent(part: ast.expr) -> tuple[int, int | None]:
    return part.col_offset, part.end_col_offset


def _arguments(call: ast.AST) -> list[ast.expr]:
    if isinstance(call, ast.BinOp):
        return [call.left, call.right]
    return list(call.args) if isinstance(call, ast.Call) else []


def _candidates(node: Node, line: str, tree: ast.AST, names: dict[Node, str]) -> Iterator[ast.AST]:
    seen: Node | None = node
    while seen is not None:  # the value itself, then what it is a mere view of
        if seen in names:
            yield from _spelled(tree, names[seen])
        elif line_of(seen) == line:
            yield from _made_here(tree, seen)
        else:
            yield from _spelled(tree, assigned(line_of(seen)))
        name = op_name(seen.target) if seen.op == "call_function" else ""
        inputs = seen.all_input_nodes
        through = name in THROUGH or name.startswith("_c10d_functional.wait")
        seen = inputs[0] if through and len(inputs) >= 1 else None


THROUGH = (
    "view _unsafe_view t transpose permute alias detach expand unsqueeze squeeze clone _to_copy "
    "getitem"
).split()


def assigned(line: str) -> str:
    """Return the variable that a line assigns, "" where it assigns none or several."""
    tree = statement(bare(text_of(line)))
    if isinstance(tree, ast.Assign) and len(tree.targets) == 1:
        if isinstance(tree.targets[0], ast.Name):
            return tree.targets[0].id
    return ""


def _spelled(tree: ast.AST, name: str) -> Iterator[ast.AST]:
    """Expressions whose last part is this name: `x`, `self.x`, `s["x"]`."""
    last = name.replace("[", ".").replace("]", "").replace("'", "").split(".")[-1]
    if not last:
        return
    value = tree.value if isinstance(tree, (ast.Assign, ast.Return, ast.Expr)) else tree
    if value is None:
        return
    for part in ast.walk(value):
        if isinstance(part, ast.Name) and part.id == last and isinstance(part.ctx, ast.Load):
            yield part
        elif isinstance(part, ast.Attribute) and part.attr == last:
            yield part
        elif isinstance(part, ast.Subscript) and isinstance(part.slice, ast.Constant):
            if part.slice.value == last:
                yield part


def _made_here(tree: ast.AST, node: Node) -> Iterator[ast.AST]:
    """Calls and operators on the line that are this node's."""
    op = op_name(node.target)
    calls = CALLS.get(op, op.strip("_").rpartition(".")[2]).split()
    for part in ast.walk(tree):
        if isinstance(part, ast.Call):
            called = getattr(part.func, "attr", getattr(part.func, "id", ""))
            if called in calls:
                yield part
        elif isinstance(part, ast.BinOp) and op in OPERATORS.get(type(part.op), ()):
            yield part
