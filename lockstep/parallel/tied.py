"""Parameters that the first and the last stage of a pipeline both hold, as tied embeddings.

Each end has a copy whose gradient is a term of a sum. The two ends exchange their terms, so that
both add up the same two numbers, and their copies step alike:

    first stage   send to=-1, recv from_=-1        last stage   send to=+1, recv from_=+1

A collective along the axis would ask the stages between for as many zeros.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from lockstep.spmd.claims import typed
from lockstep.spmd.messages import recv, send
from lockstep.spmd.signature import types_of

ATTRIBUTE = "lockstep_copy"  # on a parameter that counts on the rank of another stage


def mark_copy(parameter: nn.Parameter, name: str) -> None:
    """Say that a parameter is a copy of another stage's: a norm of the whole model leaves it out.

    Args:
        parameter: its gradient is, once the ends have added up, the other stage's, too.
        name: what it is called there, and in the files of the whole model.
    """
    setattr(parameter, ATTRIBUTE, name)


def copied_from(parameter: torch.Tensor) -> str | None:
    """Return the name of the parameter of another stage that this one is a copy of; else None.

    Example:
        >>> weight = nn.Parameter(torch.ones(2))
        >>> mark_copy(weight, "tok_embeddings.weight")
        >>> copied_from(weight)
        'tok_embeddings.weight'
    """
    return getattr(parameter, ATTRIBUTE, None)


@torch.no_grad()
def add_up_ends(parameters: Iterable[nn.Parameter], axis: str, place: int) -> None:
    """Add the gradients of the other end of a pipeline to this one's; both ends call it.

    Args:
        parameters: the same at both ends, and in the same order; their `.grad` are replaced.
        axis: the pipeline's.
        place: of the other end: -1 for the first stage, beyond which comes the last; 1 for that.
    """
    for parameter in parameters:
        own = parameter.grad
        assert own is not None  # each end computes with what it shares
        send(own, axis, to=place)
        other = recv(own, axis, from_=place)
        typed(other, **{axis: kind.dual for axis, kind in types_of(parameter).items()})
        parameter.grad = own + other
