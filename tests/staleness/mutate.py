"""Changed sources: each literal, operator, default, attribute, decorator and statement of a text.

A mutant is one change to one syntax tree. All functions of a file are changed, whether or not the
step reaches them, so that what a walk forgets is changed too.
"""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

OPERATORS: dict[type, type] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.Add, ast.MatMult: ast.Mult,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE,
    ast.LtE: ast.Gt, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.And: ast.Or, ast.Or: ast.And, ast.Not: ast.UAdd, ast.USub: ast.UAdd,
}  # fmt: skip
# Methods and functions that can stand for one another.
KIN = (
    ("relu", "tanh", "sigmoid", "exp"), ("sum", "mean", "amax"), ("abs", "square"),
    ("add", "mul"), ("float32", "float64"), ("all_reduce", "all_gather"), ("sqrt", "sin"),
    ("low", "high"), ("left", "right"), ("softplus", "gelu"), ("Softplus", "SiLU"),
)  # fmt: skip
SWAPPED = {name: group[(i + 1) % len(group)] for group in KIN for i, name in enumerate(group)}

Edit = Callable[[ast.AST], None]


@dataclass(frozen=True)
class Mutant:
    """One changed text.

    Args:
        kind: what was changed: "literal", "default", "operator", ...
        where: the dotted name of the function or class that holds it; "" at the module's level.
        line: its first line in the text.
        told: the piece of text before and after.
        role: what the piece is part of: "message", "test", "annotation", "" for anything else.
    """

    module: str
    kind: str
    where: str
    line: int
    told: str
    text: str
    role: str = ""


def mutants(module: str, text: str) -> Iterator[Mutant]:
    """Every mutant of a module's text, in the order of its lines."""
    tree = ast.parse(text)
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    names = _functions(tree)
    for number, node in enumerate(ast.walk(tree)):
        skipped = _is_docstring(node, parents) or _within_annotation(node, parents)
        if skipped or _within(node, parents, (ast.Import, ast.ImportFrom)):
            continue
        for kind, edit in _edits(node, parents, names):
            changed = copy.deepcopy(tree)
            place = next(n for i, n in enumerate(ast.walk(changed)) if i == number)
            before = _shown(place)
            edit(place)
            ast.fix_missing_locations(changed)
            where, line, role = _where(node, parents), _line(node, parents), _role(node, parents)
            told = f"{before} -> {_shown(place)}"
            try:
                yield Mutant(module, kind, where, line, told, ast.unparse(changed), role)
            except ValueError:  # what no text can be written for
                continue


def _edits(
    node: ast.AST, parents: dict[ast.AST, ast.AST], names: dict[str, str]
) -> Iterator[tuple[str, Edit]]:
    if isinstance(node, ast.Constant):
        other = _other(node.value)
        if other is not None:
            kind = "default" if _is_default(node, parents) else "literal"
            yield kind, lambda n: setattr(n, "value", other)
    elif isinstance(node, (ast.BinOp, ast.AugAssign, ast.BoolOp, ast.UnaryOp)):
        swapped = OPERATORS.get(type(node.op))
        if swapped is not None:
            yield "operator", lambda n: setattr(n, "op", swapped())
    elif isinstance(node, ast.Compare):
        first = OPERATORS.get(type(node.ops[0]))
        if first is not None:
            yield "operator", lambda n: setattr(n, "ops", [first(), *n.ops[1:]])  # type: ignore
    elif isinstance(node, ast.Attribute) and node.attr in SWAPPED:
        yield "attribute", lambda n: setattr(n, "attr", SWAPPED[n.attr])  # type: ignore
    elif isinstance(node, ast.Name) and node.id in names and not _is_decorator(node, parents):
        yield "function", lambda n: setattr(n, "id", names[n.id])  # type: ignore
    elif isinstance(node, ast.Call) and node.keywords:
        yield "argument", lambda n: n.keywords.pop()  # type: ignore
    if isinstance(node, ast.Dict) and len(node.keys) > 1:
        yield "order", lambda n: (n.keys.reverse(), n.values.reverse()) and None  # type: ignore
    if isinstance(node, (ast.List, ast.Tuple, ast.Set)) and len(node.elts) > 1:
        if isinstance(node, ast.Set) or isinstance(node.ctx, ast.Load):
            yield "order", lambda n: n.elts.reverse()  # type: ignore
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        for i in range(len(node.decorator_list)):
            yield "decorator", lambda n, i=i: n.decorator_list.pop(i)  # type: ignore
        if isinstance(node, ast.ClassDef) and len(node.bases) > 1:
            yield "bases", lambda n: n.bases.reverse()  # type: ignore
    if isinstance(node, (ast.Expr, ast.AugAssign, ast.Delete)) and _in_function(node, parents):
        yield "statement", _emptied


def _emptied(node: ast.AST) -> None:
    """Turn a statement into one that does nothing."""
    for name in node._fields:
        delattr(node, name)
    node.__class__ = ast.Pass  # type: ignore[assignment]


def _other(value: object) -> object:
    """Another value of the same type; None where there is none to tell."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value * 1.5 + 0.125
    if isinstance(value, str) and value:
        return value + "_"
    return None


def _functions(tree: ast.Module) -> dict[str, str]:
    """Each function of the module's level, and another of as many parameters."""
    made = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    found = {}
    for node in made:
        count = len(node.args.args) - len(node.args.defaults)
        kin = [m.name for m in made if len(m.args.args) - len(m.args.defaults) == count]
        other = kin[(kin.index(node.name) + 1) % len(kin)]
        if other != node.name:
            found[node.name] = other
    return found


def _shown(node: ast.AST) -> str:
    try:
        text = ast.unparse(node)
    except (AttributeError, ValueError):
        text = type(node).__name__
    return " ".join(text.split())[:60]


def _above(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> Iterator[ast.AST]:
    while node in parents:
        node = parents[node]
        yield node


def _within(node: ast.AST, parents: dict[ast.AST, ast.AST], kinds: tuple[type, ...]) -> bool:
    return any(isinstance(n, kinds) for n in (node, *_above(node, parents)))


def _within_annotation(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> bool:
    while node in parents:
        child, node = node, parents[node]
        if child in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            return True
    return False


def _in_function(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> bool:
    return any(isinstance(n, ast.FunctionDef) for n in _above(node, parents))


def _is_docstring(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> bool:
    expression = parents.get(node) if isinstance(node, ast.Constant) else node
    text = getattr(expression, "value", None)
    return (
        isinstance(expression, ast.Expr)
        and isinstance(text, ast.Constant)
        and isinstance(text.value, str)
    )


def _is_default(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> bool:
    above = parents.get(node)
    return isinstance(above, ast.arguments)


def _is_decorator(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> bool:
    while node in parents:
        child, node = node, parents[node]
        if child in getattr(node, "decorator_list", ()):
            return True
    return False


def _where(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> str:
    scopes = (ast.FunctionDef, ast.ClassDef)
    names = [n.name for n in (node, *_above(node, parents)) if isinstance(n, scopes)]
    return ".".join(reversed(names))


def _line(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> int:
    numbers = [getattr(n, "lineno", 0) for n in (node, *_above(node, parents))]
    return next((number for number in numbers if number), 0)


def _role(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> str:
    """What a piece of text is for, where that alone says whether a graph can hold it."""
    while node in parents:
        child, node = node, parents[node]
        if isinstance(node, (ast.Raise, ast.JoinedStr)) or (
            isinstance(node, ast.Assert) and child is node.msg
        ):
            return "message"
        if isinstance(node, (ast.If, ast.While, ast.IfExp, ast.Assert)) and child is node.test:
            return "test"
        if isinstance(node, ast.Compare):
            return "test"
    return ""


def counts(found: list[Mutant]) -> Counter[str]:
    """How many mutants there are of each kind."""
    return Counter(mutant.kind for mutant in found)
