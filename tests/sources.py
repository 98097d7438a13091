"""The repository's Python files as syntax trees, for the tests that hold its rules."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "lockstep"


def package_files() -> list[Path]:
    """Return every module of the package."""
    return sorted(PACKAGE.rglob("*.py"))


def module_of(path: Path) -> str:
    """Return the dotted name of a file below the root.

    Example:
        >>> module_of(PACKAGE / "run" / "__init__.py"), module_of(PACKAGE / "errors.py")
        ('lockstep.run', 'lockstep.errors')
    """
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(tree: ast.AST, module: str, is_package: bool) -> Iterator[tuple[int, str, str | None]]:
    """Yield (line, module, name) of every import at any depth; name is None for `import module`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, None
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = module.split(".")[: None if is_package else -1]
                parents = parents[: len(parents) - (node.level - 1)]
                base = ".".join([*parents, *([base] if base else [])])
            for alias in node.names:
                yield node.lineno, base, alias.name


def command_files(command: str) -> list[str]:
    """Return the files and folders, from the root, that a command after `python` needs.

    Example:
        >>> command_files("-m bench.bars --only x"), command_files("-m pytest -q tests/ranks")
        (['bench/bars.py'], ['tests/ranks'])
        >>> command_files("bench/step.py --steps 3"), command_files("-m tests.bitwise")
        (['bench/step.py'], ['tests/bitwise/__main__.py'])
    """
    words = command.split()
    if "-m" not in words or "torch.distributed.run" in words:
        return [word for word in words if "/" in word]
    module = words[words.index("-m") + 1]
    if module == "pytest":
        return [word for word in words if word.startswith("tests")]
    path = module.replace(".", "/")
    return [f"{path}/__main__.py" if (ROOT / path).is_dir() else f"{path}.py"]
