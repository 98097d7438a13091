"""What else decides the code that a back end makes: CPU, accelerator, threads, compiler options.

Read without importing the compiler: where nothing has imported it, nobody has set an option of it
but by the environment.
"""

from __future__ import annotations

import os
from typing import Any

from lockstep import _compat
from lockstep.build.cpu import kernel_features
from lockstep.build.requires import accelerator_kind
from lockstep.errors import UsageError

# Where the compiler keeps its files and how it runs; none of it changes what is made.
_NOT_OPTIONS = ("CACHE", "COMPILE_THREADS", "WORKER", "DEBUG", "TRACE", "_DIR", "_PATH")


def build_settings(backend: str) -> dict[str, Any]:
    """Return name -> JSON value; equal settings and one graph give one program.

    Args:
        backend: "graph" depends on none of them.

    Example:
        >>> build_settings("graph")
        {}
    """
    if backend != "inductor":
        return {}
    import torch

    settings: dict[str, Any] = {
        "cpu features": sorted(kernel_features()),
        "cpu threads": torch.get_num_threads(),
        **({"repeats": repeats()} if repeats() else {}),
    }
    kind = accelerator_kind()
    if kind is not None:
        settings["accelerator"] = kind
    for name, value in os.environ.items():
        if name == "ATEN_CPU_CAPABILITY" or _is_option(name):
            settings[f"environment {name}"] = value
    return settings | {f"option {k}": v for k, v in _compat.changed_inductor_options().items()}


def repeats() -> str:
    """What LOCKSTEP_REPEATS says of repeated layers.

    "flat": each is compiled for itself, in one graph. "once": all are compiled once, also where
    values of half precision are then rounded between them. "": once where that keeps every bit.
    """
    asked = os.environ.get("LOCKSTEP_REPEATS", "")
    if asked not in ("", "flat", "once"):
        raise UsageError(f"LOCKSTEP_REPEATS={asked!r}", want="flat or once")
    return asked


def _is_option(name: str) -> bool:
    return name.startswith("TORCHINDUCTOR_") and not any(word in name for word in _NOT_OPTIONS)
