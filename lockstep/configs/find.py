"""A config by its name: `llama3:debug`, or `package.module:function` of one's own."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import sys
from pathlib import Path
from types import ModuleType

from lockstep.errors import UsageError
from lockstep.trainer.config import TrainConfig

_HERE = Path(__file__).parent
_OTHERS = ("__init__", "find")


def find(name: str) -> TrainConfig:
    """Return the config that a function makes.

    Args:
        name: "module:function"; a module without a dot is looked for in `lockstep.configs` first,
            then beside the working folder, as `python -m` does.

    Raises:
        UsageError: there is no such module or function, or it makes no config.

    Example:
        >>> find("llama3:debug").model.dim
        128
    """
    module, _, function = name.partition(":")
    made = getattr(_module(module, name), _python(function), None)
    if not inspect.isfunction(made) or not function:
        raise _unknown(name)
    config = made()
    if not isinstance(config, TrainConfig):
        raise UsageError(f"config {name} returns a {type(config).__name__}, not a TrainConfig")
    return config


def names() -> list[str]:
    """Return the configs that come with Lockstep."""
    modules = sorted(path.stem for path in _HERE.glob("*.py") if path.stem not in _OTHERS)
    return [f"{module}:{name}" for module in modules for name in _functions(module)]


def _functions(module: str) -> list[str]:
    home = importlib.import_module(f"lockstep.configs.{module}")
    functions = inspect.getmembers(home, inspect.isfunction)
    own = [name for name, made in functions if made.__module__ == home.__name__]
    names = [name.removeprefix("_") for name in own]
    return [name for name in names if _python(name) in own]


def _python(name: str) -> str:
    """The function of a name: "1b" is no name of Python's, and stands for `_1b`."""
    return f"_{name}" if name[:1].isdigit() else name


def _module(module: str, name: str) -> ModuleType:
    if module.isidentifier() and (_HERE / f"{module}.py").exists() and module not in _OTHERS:
        return importlib.import_module(f"lockstep.configs.{module}")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found = importlib.util.find_spec(module) if module else None
    except (ImportError, ValueError):
        found = None
    if found is None:
        raise _unknown(name)
    return importlib.import_module(module)


def _unknown(name: str) -> UsageError:
    near = difflib.get_close_matches(name, names(), 1)
    meant = f"; did you mean {near[0]}?" if near else "."
    return UsageError(f"there is no config {name}{meant} There are {', '.join(names())}")
