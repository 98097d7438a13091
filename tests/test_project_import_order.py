"""Data goes one way: a part imports only from the parts before it."""

from __future__ import annotations

import ast

import pytest

from tests.sources import PACKAGE, imports, module_of, package_files

ORDER = (
    ["errors", "_compat", "_compat_ddp", "_compat_dtensor", "_compat_fsdp", "journal", "spmd"]
    + ["capture", "checker", "build", "fleet", "run", "report", "ahead", "parallel", "models"]
    + ["trainer", "configs", "cli", "pytest_plugin", "__main__"]
)  # fmt: skip


def part_of(module: str) -> str:
    """Return the part a module belongs to: the first name below `lockstep`, or "" for the door."""
    return module.split(".")[1] if "." in module else ""


def imported_part(module: str, name: str | None) -> str | None:
    """Return the part that an import statement reaches; None where it is not of this package."""
    if module.split(".")[0] != "lockstep":
        return None
    if module == "lockstep" and name is not None:
        is_part = (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").exists()
        return name if is_part else ("errors" if name == "__version__" else "")
    return part_of(module)


def backward_imports(source: str, module: str, is_package: bool = False) -> list[str]:
    """Return a line for each import that goes against the order."""
    part = part_of(module)
    if part == "":
        return []  # the door may import from everywhere
    if part not in ORDER:
        return [f"{module}: {part} has no place in the order"]
    found = []
    for line, target, name in imports(ast.parse(source), module, is_package):
        reached = imported_part(target, name)
        if reached is None or reached == part:
            continue
        if reached not in ORDER or ORDER.index(reached) > ORDER.index(part):
            found.append(f"{module}:{line}: {part} imports {reached or 'lockstep itself'}")
    return found


def test_no_part_imports_from_a_later_one():
    found = [
        line
        for path in package_files()
        for line in backward_imports(
            path.read_text(), module_of(path), is_package=path.name == "__init__.py"
        )
    ]
    assert found == []


def test_every_part_of_the_order_that_exists_is_looked_at():
    seen = {part_of(module_of(path)) for path in package_files()} - {""}
    assert {"errors", "spmd", "capture", "build", "fleet", "run", "models", "cli"} <= seen


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("import lockstep.run.step", "lockstep.build.pack:1: build imports run"),
        ("from lockstep.run import step", "lockstep.build.pack:1: build imports run"),
        ("from lockstep import fleet", "lockstep.build.pack:1: build imports fleet"),
        ("def f():\n    from ..cli import main", "lockstep.build.pack:2: build imports cli"),
        ("from lockstep import compile", "lockstep.build.pack:1: build imports lockstep itself"),
        ("import lockstep", "lockstep.build.pack:1: build imports lockstep itself"),
    ],
)
def test_an_import_against_the_order_is_found(source, told):
    assert backward_imports(source, "lockstep.build.pack") == [told]


def test_imports_along_the_order_are_let_be():
    source = "from lockstep.errors import X\nfrom .artifact import Y\nfrom lockstep import _compat"
    assert backward_imports(source, "lockstep.build.pack") == []


def test_an_unknown_part_is_told():
    told = ["lockstep.misc.helpers: misc has no place in the order"]
    assert backward_imports("", "lockstep.misc.helpers") == told
