"""Lockstep: a training step is captured once, compiled on one rank, and run on every rank."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lockstep.checker.check import check as check
    from lockstep.errors import LockstepError as LockstepError
    from lockstep.run.even import even_batches as even_batches
    from lockstep.run.record import record as record
    from lockstep.run.step import compile as compile
    from lockstep.run.summary import summary as summary
    from lockstep.spmd.claims import intended as intended
    from lockstep.spmd.claims import phase as phase
    from lockstep.spmd.claims import typed as typed
    from lockstep.spmd.effects import log as log
    from lockstep.spmd.effects import on_rank as on_rank
    from lockstep.spmd.mesh import mesh as mesh
    from lockstep.spmd.messages import recv as recv
    from lockstep.spmd.messages import send as send
    from lockstep.spmd.messages import settle as settle
    from lockstep.spmd.reduce import loss as loss
    from lockstep.spmd.reduce import reduce_grads as reduce_grads
    from lockstep.spmd.signature import T as T
    from lockstep.spmd.signature import signature as signature
    from lockstep.spmd.signature import type_parameters as type_parameters
    from lockstep.spmd.typed_collectives import all_gather as all_gather
    from lockstep.spmd.typed_collectives import all_reduce as all_reduce
    from lockstep.spmd.typed_collectives import all_to_all as all_to_all
    from lockstep.spmd.typed_collectives import broadcast as broadcast
    from lockstep.spmd.typed_collectives import convert as convert
    from lockstep.spmd.typed_collectives import reduce_scatter as reduce_scatter
    from lockstep.spmd.typed_collectives import reinterpret as reinterpret
    from lockstep.spmd.types import I as I
    from lockstep.spmd.types import P as P
    from lockstep.spmd.types import R as R
    from lockstep.spmd.types import S as S
    from lockstep.spmd.types import V as V
    from lockstep.spmd.weighted import weighted_mean as weighted_mean

__version__ = "0.1.0"

# Public name -> the module that defines it, imported at the first use: importing Lockstep is cheap.
_HOME = {
    "I": "lockstep.spmd.types",
    "LockstepError": "lockstep.errors",
    "P": "lockstep.spmd.types",
    "R": "lockstep.spmd.types",
    "S": "lockstep.spmd.types",
    "T": "lockstep.spmd.signature",
    "V": "lockstep.spmd.types",
    "all_gather": "lockstep.spmd.typed_collectives",
    "all_reduce": "lockstep.spmd.typed_collectives",
    "all_to_all": "lockstep.spmd.typed_collectives",
    "broadcast": "lockstep.spmd.typed_collectives",
    "check": "lockstep.checker.check",
    "compile": "lockstep.run.step",
    "convert": "lockstep.spmd.typed_collectives",
    "even_batches": "lockstep.run.even",
    "intended": "lockstep.spmd.claims",
    "log": "lockstep.spmd.effects",
    "loss": "lockstep.spmd.reduce",
    "mesh": "lockstep.spmd.mesh",
    "on_rank": "lockstep.spmd.effects",
    "phase": "lockstep.spmd.claims",
    "record": "lockstep.run.record",
    "recv": "lockstep.spmd.messages",
    "reduce_grads": "lockstep.spmd.reduce",
    "reduce_scatter": "lockstep.spmd.typed_collectives",
    "reinterpret": "lockstep.spmd.typed_collectives",
    "send": "lockstep.spmd.messages",
    "settle": "lockstep.spmd.messages",
    "signature": "lockstep.spmd.signature",
    "summary": "lockstep.run.summary",
    "type_parameters": "lockstep.spmd.signature",
    "typed": "lockstep.spmd.claims",
    "weighted_mean": "lockstep.spmd.weighted",
}

__all__ = [
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


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'lockstep' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
