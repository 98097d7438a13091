"""What is shipped is the whole package, and its docstrings' examples run."""

from __future__ import annotations

import doctest
import importlib
import subprocess
import tomllib

import pytest
from setuptools import find_packages

from tests.sources import PACKAGE, ROOT, module_of, package_files

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def shipped() -> set[str]:
    """Return the packages that setuptools takes by this project's settings."""
    where = PROJECT["tool"]["setuptools"]["packages"]["find"]
    return set(find_packages(str(ROOT), **where))


def ignored(paths: list[str]) -> list[str]:
    """Return those of `paths` that .gitignore drops."""
    command = ["git", "check-ignore", "--no-index", *paths]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT).stdout.split()


def test_every_folder_of_the_package_is_shipped():
    folders = {module_of(path) for path in package_files() if path.name == "__init__.py"}
    homes = {module_of(path.parent / "__init__.py") for path in package_files()}
    assert homes == folders == shipped()
    assert "lockstep.build" in folders
    assert (PACKAGE / "py.typed").exists()


def test_no_module_is_ignored_by_git_and_outputs_are():
    modules = [str(path.relative_to(ROOT)) for path in package_files()]
    assert ignored(modules) == []
    outputs = ["build/lib/x.py", ".lockstep/a.lockstep", "runs/1/rank0.jsonl", ".venv/bin/python"]
    assert ignored(outputs) == outputs


def test_the_range_of_torch_has_a_tested_upper_end():
    torch = [name for name in PROJECT["project"]["dependencies"] if name.startswith("torch")]
    assert torch == ["torch>=2.14,<2.16"]


def examples(module: str) -> doctest.TestResults:
    """Run the examples in the docstrings of one module."""
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    return doctest.testmod(importlib.import_module(module), optionflags=flags)


@pytest.mark.parametrize(
    "module", [module_of(p) for p in package_files() if ">>>" in p.read_text()]
)
def test_the_examples_in_docstrings_run(module):
    assert examples(module).failed == 0


def test_a_wrong_example_is_found(tmp_path, monkeypatch, capsys):
    (tmp_path / "wrong.py").write_text('"""Two.\n\n>>> 1 + 1\n3\n"""\n')
    monkeypatch.syspath_prepend(tmp_path)
    assert examples("wrong") == doctest.TestResults(failed=1, attempted=1)
    assert "Expected:\n    3\nGot:\n    2" in capsys.readouterr().out
