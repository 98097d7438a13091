"""The public names, listed: a new one is added here on purpose."""

from __future__ import annotations

import ast
import inspect

import pytest

import lockstep
from tests.sources import PACKAGE

NAMES = [
    "I",
    "LockstepError",
    "P",
    "R",
    "S",
    "T",
    "V",
    "__version__",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "broadcast",
    "check",
    "compile",
    "convert",
    "even_batches",
    "intended",
    "log",
    "loss",
    "mesh",
    "on_rank",
    "phase",
    "record",
    "recv",
    "reduce_grads",
    "reduce_scatter",
    "reinterpret",
    "send",
    "settle",
    "signature",
    "summary",
    "type_parameters",
    "typed",
    "weighted_mean",
]


def undocumented(names: list[str]) -> list[str]:
    """Return the names without a docstring of their own."""
    named = (name for name in names if not name.startswith("__"))
    return [name for name in named if not inspect.getdoc(getattr(lockstep, name))]


def typed_names() -> set[str]:
    """Return the names that type checkers see: those of the form `from x import y as y`."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    imported = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    return {alias.name for node in imported for alias in node.names if alias.asname == alias.name}


def test_the_public_names_are_those_listed_here():
    assert sorted(NAMES) == NAMES
    assert lockstep.__all__ == NAMES
    assert dir(lockstep) == NAMES
    assert typed_names() == {name for name in NAMES if not name.startswith("__")}


def test_every_public_name_is_there_and_says_what_it_does():
    assert undocumented(NAMES) == []
    assert lockstep.compile.__module__ == "lockstep.run.step"


def test_a_name_that_is_not_there_is_an_ordinary_error():
    with pytest.raises(AttributeError, match="module 'lockstep' has no attribute 'complie'"):
        lockstep.complie  # noqa: B018


def test_a_name_without_a_docstring_is_found(monkeypatch):
    monkeypatch.setattr(lockstep, "silent", lambda: None, raising=False)
    assert undocumented([*NAMES, "silent"]) == ["silent"]
