"""Only plain tensors are captured: strided, with values, of a type that a graph can hold."""

from __future__ import annotations

import torch

from lockstep import _compat
from lockstep.capture.binding import Call, describe
from lockstep.capture.layout import is_dtensor, layout_of, local_of
from lockstep.capture.origin import user_line
from lockstep.capture.refusal import refuse
from lockstep.errors import CaptureError

_DENSE = "pass its parts as plain tensors, and put it together inside the step"

_LOCAL = "write the step in the local view: local tensors and collectives on mesh axes"
_ARGUMENT = [
    "pass its local tensor, x.to_local(), and DTensor.from_local(x, mesh, placements) in the step",
    "hold it as a parameter or a buffer of the model",
]


def refuse_odd(name: str, tensor: torch.Tensor) -> None:
    """Refuse a tensor of the step's inputs that has no stand-in.

    Args:
        name: what the user calls it, such as "model.weight" or "batch['x']".
        tensor: the real one; it is not read.

    Raises:
        CaptureError: it is sparse, nested, quantized, without values, or wraps other tensors; a
            DTensor where its local tensors differ in more than their values.
    """
    if layout_of(name, tensor) is not None:
        tensor = local_of(tensor)
    if _compat.is_wrapper_subclass(tensor):
        kind = type(tensor).__name__
        raise _odd(
            f"{name} is a {kind}",
            f"{kind} of shape {list(tensor.shape)}",
            "its local tensor would be frozen into the program",
            _LOCAL,
        )
    if tensor.layout != torch.strided:
        layout = str(tensor.layout).removeprefix("torch.")
        shape = f"{layout} of shape {list(tensor.shape)}"
        dense = ["x.to_dense()", _DENSE]
        raise _odd(f"{name} is a sparse tensor", shape, "how many values it holds changes", dense)
    if tensor.is_nested:
        raise _odd(f"{name} is a nested tensor", "nested", "its rows' lengths change", _DENSE)
    if tensor.is_quantized:
        raise _odd(f"{name} is a quantized tensor", str(tensor.dtype), None, "x.dequantize()")
    if tensor.device.type == "meta":
        fix = 'model.to_empty(device=...), then initialise it; or make it on "cpu"'
        raise _odd(f"{name} is on the meta device", describe(tensor), "it has no values", fix)


def refuse_odd_arguments(call: Call) -> None:
    """Refuse such a tensor among a call's arguments; see `refuse_odd`."""
    for name, leaf in zip(call.names, call.leaves, strict=True):
        if is_dtensor(leaf):
            got = f"DTensor of shape {list(leaf.shape)}"
            raise _odd(f"{name} is a DTensor, as an argument", got, None, _ARGUMENT)
        if isinstance(leaf, torch.Tensor):
            refuse_odd(name, leaf)


def refuse_sparse(name: str, grad: torch.Tensor) -> None:
    """Refuse a sparse gradient: how many values it holds changes from call to call."""
    if grad.layout != torch.strided:
        refuse(
            CaptureError(
                f"the step leaves a sparse gradient in {name}",
                why="how many values it holds changes from call to call",
                fix="torch.nn.Embedding(..., sparse=False)",
            )
        )


def _odd(what: str, got: str, why: str | None, fix: str | list[str]) -> CaptureError:
    where = user_line() or None  # where the step is called with it
    return CaptureError(what, where=where, got=got, want="plain local tensors", why=why, fix=fix)
