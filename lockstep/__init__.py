"""Lockstep: a training step is captured once, compiled on one rank, and run on every rank."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lockstep.errors import LockstepError as LockstepError
    from lockstep.run.step import compile as compile
    from lockstep.run.summary import summary as summary
    from lockstep.spmd.mesh import mesh as mesh
    from lockstep.spmd.reduce import loss as loss
    from lockstep.spmd.reduce import reduce_grads as reduce_grads

__version__ = "0.1.0"

# Public name -> the module that defines it, imported at the first use: importing Lockstep is cheap.
_HOME = {
    "LockstepError": "lockstep.errors",
    "compile": "lockstep.run.step",
    "loss": "lockstep.spmd.reduce",
    "mesh": "lockstep.spmd.mesh",
    "reduce_grads": "lockstep.spmd.reduce",
    "summary": "lockstep.run.summary",
}

__all__ = ["LockstepError", "__version__", "compile", "loss", "mesh", "reduce_grads", "summary"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'lockstep' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
