"""Make Inductor's generated module our own: no private import, and digests in place of C++ sources.

The module is edited as a syntax tree. What a rank's loader has no stand-in for is refused here, on
the building rank, and never met on another.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from lockstep import _compat
from lockstep.build.cubins import Triton
from lockstep.errors import LoweringError

_PUBLIC = {"math", "cmath", "contextlib", "functools", "torch"}
_PROVIDED = {"kernel", "cubin", "extern_kernels", "__name__"}


@dataclass(frozen=True)
class Kernel:
    """One C++ kernel as the compiler was given it."""

    argtypes: tuple[str, ...]
    source: str

    @property
    def digest(self) -> str:
        """The kernel's name in an artifact: of its source and signature, not of the machine."""
        text = json.dumps([self.argtypes, self.source])
        return hashlib.sha256(text.encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Rewritten:
    """The module that ranks execute, the kernels it names by digest, the operators it calls.

    Args:
        key: of the part that it is of, as `lockstep.build.parts` names it; empty: it has none.
    """

    text: str
    kernels: dict[str, Any]  # Kernel, Triton, or what was compiled before
    operators: frozenset[str]
    key: str = ""


def rewrite(source: str, epilogue: str = "") -> Rewritten:
    """Turn a generated module into one that needs torch, shipped libraries and our stand-ins alone.

    Args:
        source: what `compile_to_python` returned.
        epilogue: text appended to the module.

    Raises:
        LoweringError: LS200, naming the import, kernel kind or operator that can't be held.
    """
    tree = ast.parse(source + epilogue)
    kernels: dict[str, Kernel | Triton] = {}
    tree = _Unmarked().visit(tree)
    body = [_replaced(item, kernels) for item in tree.body]
    tree.body = _needed([item for item in body if item is not None])
    for item in tree.body:
        if isinstance(item, ast.FunctionDef) and item.name == "call":
            _pass_the_list_itself(item)
    _check(tree)
    text = ast.unparse(ast.fix_missing_locations(tree)) + "\n"
    return Rewritten(text, kernels, frozenset(_operators(tree)))


def dotted(node: ast.AST) -> str | None:
    """Return `a.b.c` of a chain of attributes on a name, else None."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else None


class _Unmarked(ast.NodeTransformer):
    """Drops the marks on outputs whose size may differ."""

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        call = node.value
        marks = isinstance(call, ast.Call) and dotted(call.func) == _compat.MARKS_OUTPUT
        return None if marks else node

    def visit_Assign(self, node: ast.Assign) -> ast.Assign | None:
        named = [dotted(target) for target in node.targets]
        return None if named == [_compat.MARKS_OUTPUT] else node


def _replaced(item: ast.stmt, kernels: dict[str, Kernel | Triton]) -> ast.stmt | None:
    """Return the statement to keep at module level: without async_compile, by digest."""
    if isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant):
        return None
    if isinstance(item, ast.Delete):
        return None
    value = item.value if isinstance(item, (ast.Assign, ast.Expr)) else None
    name = dotted(value.func) if isinstance(value, ast.Call) else None
    if name in ("AsyncCompile", "async_compile.wait"):
        return None
    if not isinstance(value, ast.Call) or not (name or "").startswith("async_compile."):
        return item
    kernel, function = _kernel(name or "", value)
    kernels[kernel.digest] = kernel
    value.func, value.args = ast.Name(function, ast.Load()), [ast.Constant(kernel.digest)]
    value.keywords = []
    return item


def _kernel(name: str, value: ast.Call) -> tuple[Kernel | Triton, str]:
    """The kernel that a call has compiled, and the function of a rank's loader that gives it."""
    options = {option.arg: ast.unparse(option.value) for option in value.keywords}
    if name == "async_compile.cpp_pybinding" and len(value.args) == 2 and not options:
        argtypes, source = (ast.literal_eval(argument) for argument in value.args)
        return Kernel(tuple(argtypes), source), "kernel"
    if name == "async_compile.triton" and len(value.args) == 2:
        if options.get("device_str") == "'cuda'":
            name, source = (ast.literal_eval(argument) for argument in value.args)
            return Triton(name, source.replace(*_compat.CACHES_OFF)), "cubin"
    raise _refusal(f"a kernel of the kind {name}", "kernels by C++ for the CPU, by Triton for CUDA")


def _needed(body: list[ast.stmt]) -> list[ast.stmt]:
    """Drop imports and aliases that nothing uses, again until nothing changes."""
    while True:
        used = _loaded(ast.Module(body, []))
        kept, seen = [], set()
        for item in body:
            if isinstance(item, (ast.Import, ast.ImportFrom)):
                item.names = [a for a in item.names if (a.asname or a.name.split(".")[0]) in used]
                text = ast.unparse(item) if item.names else ""
                if not text or text in seen or _is_provided(item):
                    continue
                seen.add(text)
            elif isinstance(item, ast.Assign) and dotted(item.value) is not None:
                names = [target.id for target in item.targets if isinstance(target, ast.Name)]
                if len(names) == len(item.targets) and not used & set(names):
                    continue
            kept.append(item)
        if len(kept) == len(body):
            return kept
        body = kept


def _is_provided(item: ast.stmt) -> bool:
    """Whether an import's names are all given by the loader's scope."""
    if not isinstance(item, ast.ImportFrom) or item.module in _PUBLIC:
        return False
    unknown = [a.name for a in item.names if (a.asname or a.name) not in _compat.STAND_INS]
    if unknown:
        raise _refusal(f"{', '.join(unknown)} of {item.module}", "names that a rank's loader has")
    return True


def _pass_the_list_itself(call: ast.FunctionDef) -> None:
    """`list(flat_inputs)` keeps the caller's list alive, and with it every input to the end."""
    for node in ast.walk(call):
        for name, value in ast.iter_fields(node):
            if isinstance(value, list):
                setattr(node, name, [_unlisted(item) for item in value])


def _unlisted(node: object) -> object:
    if isinstance(node, ast.Call) and dotted(node.func) == "list" and len(node.args) == 1:
        if dotted(node.args[0]) == "flat_inputs":
            return node.args[0]
    return node


def _check(tree: ast.Module) -> None:
    for item in ast.walk(tree):
        if isinstance(item, ast.Import):
            odd = [alias.name for alias in item.names if alias.name not in _PUBLIC]
            if odd:
                raise _refusal(f"import {', '.join(odd)}", "public modules")
    for name in _chains(tree):
        first, _, rest = name.partition(".")
        if name.startswith(tuple(f"{package}." for package in _compat.PRIVATE_PACKAGES)):
            raise _refusal(name, "nothing of the compiler")
        if first == "extern_kernels" and rest.split(".")[0] not in _compat.EXTERN_KERNELS:
            raise _refusal(f"the kernel {name}", "kernels that torch exports by name")
    loose = sorted(_loaded(tree) - _bound(tree) - _PROVIDED - set(dir(builtins)))
    loose = [name for name in loose if name not in _compat.STAND_INS]
    if loose:
        raise _refusal(f"the names {', '.join(loose)}", "names that a rank's loader has")


def _chains(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            name = dotted(node)
            if name is not None:
                yield name


def _operators(tree: ast.AST) -> Iterator[str]:
    """Yield `aten::add` for every `torch.ops.aten.add...` of the text."""
    for name in _chains(tree):
        parts = name.split(".")
        if parts[:2] == ["torch", "ops"] and len(parts) > 3:
            yield f"{parts[2]}::{parts[3]}"


def _loaded(tree: ast.AST) -> set[str]:
    return {
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }


def _bound(tree: ast.AST) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.alias):
            names.add((node.asname or node.name).split(".")[0])
        elif isinstance(node, ast.ExceptHandler) and node.name:
            names.add(node.name)
    return names


def _refusal(got: str, want: str) -> LoweringError:
    return LoweringError(
        "the compiled program needs what a rank's loader does not have",
        got=got,
        want=want,
        why="it would fail on every rank but the building one",
        fix='backend="graph"',
    )
