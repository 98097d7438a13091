"""DTensor's own code while a step is traced: it keeps nothing by a number of the trace."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from lockstep import _compat
from lockstep._compat_dtensor import forget_divisions, schema_hash, sym_coordinate
from lockstep.capture.hooks import swapped

_NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool)


@contextlib.contextmanager
def tracing_dtensors() -> Iterator[None]:
    """Let operators on DTensors take numbers of unknown value, as a learning rate, while inside.

    What DTensor has kept by operator is forgotten: no stand-in and no number outlives a trace.
    """
    hashed = schema_hash()
    forget_divisions()
    try:
        with swapped({hashed: _hash} if hashed is not None else {}):
            yield
    finally:
        forget_divisions()


@contextlib.contextmanager
def placed_dtensors() -> Iterator[None]:
    """Give DTensor this very rank's place as an int while inside: for a check of each rank's own
    graph, which no other rank runs."""

    def place(original: Any, args: Any, kwargs: Any) -> Any:
        mesh, dim = (*args, *kwargs.values())[:2]
        return mesh.get_coordinate()[dim]

    with swapped({sym_coordinate(): place}):
        yield


def _hash(original: Any, args: Any, kwargs: Any) -> Any:
    schema = args[0]
    leaves = _compat.pytree.tree_leaves((schema.args_schema, schema.kwargs_schema))
    if any(isinstance(leaf, _NUMBERS) for leaf in leaves):
        raise TypeError("a number of the trace has no value to look up by")
    return original(*args, **kwargs)
