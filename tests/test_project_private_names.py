"""Private names of torch live in `_compat.py` and `_compat_*.py` alone: an upgrade of torch
is a review of these."""

from __future__ import annotations

import ast

import pytest

from tests.sources import PACKAGE, imports, package_files

COMPAT = sorted(PACKAGE.glob("_compat*.py"))
PYTHONS_OWN = ("sys", "os")  # sys._getframe, os._exit: Python's, and documented


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def own_private_names(sources: list[str]) -> set[str]:
    """Return every private name that the package itself defines or assigns."""
    names: set[str] = set()
    for node in (node for source in sources for node in ast.walk(ast.parse(source))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
                names.add(node.attr)
    names.update(path.stem for path in package_files())
    return {name for name in names if is_private(name)}


def private_names(source: str, own: set[str]) -> list[str]:
    """Return `line: name` of each private torch import, and of each private attribute not ours."""
    tree = ast.parse(source)
    found = set()
    for line, module, name in imports(tree, "", False):
        whole = f"{module}.{name}" if name else module
        if whole.split(".")[0] == "torch" and any(map(is_private, whole.split("."))):
            found.add(f"{line}: {whole}")
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or not is_private(node.attr) or node.attr in own:
            continue
        if ast.unparse(node.value) not in PYTHONS_OWN:
            found.add(f"{node.lineno}: {ast.unparse(node)}")
    return sorted(found)


def test_private_torch_names_are_in_compat_alone():
    texts = {path: path.read_text() for path in package_files() if path not in COMPAT}
    own = own_private_names([*texts.values()])
    own |= {"_replace", "_asdict", "_fields"}  # of named tuples, and documented
    found = [
        f"{path.relative_to(PACKAGE)}:{line}"
        for path, text in texts.items()
        for line in private_names(text, own)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("import torch._inductor.config", "1: torch._inductor.config"),
        ("from torch._C import _distributed_c10d", "1: torch._C._distributed_c10d"),
        ("from torch.utils import _pytree as pytree", "1: torch.utils._pytree"),
        ("y = torch.ops._c10d_functional.wait_tensor(x)", "1: torch.ops._c10d_functional"),
        ("def f(x):\n    return x._version", "2: x._version"),
    ],
)
def test_a_private_name_is_found(source, told):
    assert told in private_names(source, own=set())


def test_own_names_are_let_be():
    source = "class A:\n    def f(self, other):\n        self._x = 1\n        return other._x"
    assert private_names(source, own_private_names([source])) == []


def test_compat_gives_reasons():
    """Every function of these files says why it is there."""
    silent = [
        node.name
        for path in COMPAT
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not ast.get_docstring(node)
    ]
    assert silent == []
