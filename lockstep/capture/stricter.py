"""Whether an operator failed for its stand-ins alone, while it computes real tensors of their kind.

The rule by which torch knows the shape of a result may ask for more than the operator itself, as a
dtype of another device. Eager runs such a step, so the error is not the user's own.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from lockstep import _compat
from lockstep._compat import pytree
from lockstep.capture.around import quiet_random

MOST_ELEMENTS = 1 << 24  # of what is made up to try it


def stricter_rule(error: BaseException) -> str | None:
    """The operator that computes what its rule refuses; None: the error is the step's own.

    Args:
        error: as caught around the trace, with its traceback.
    """
    found = _compat.failed_rule(error)
    if found is None or not str(found[0]).startswith("aten."):
        return None
    operator, args, kwargs = found
    leaves, tree = pytree.tree_flatten((args, kwargs))
    fakes = [leaf for leaf in leaves if _compat.is_fake(leaf)]
    if not fakes or not all(map(_is_known, fakes)) or _count(fakes) > MOST_ELEMENTS:
        return None
    with contextlib.suppress(Exception), torch.no_grad(), quiet_random():
        made = [_made_up(leaf) if _compat.is_fake(leaf) else leaf for leaf in leaves]
        given, named = pytree.tree_unflatten(made, tree)
        operator(*given, **named)
        return str(operator)
    return None


def _is_known(fake: torch.Tensor) -> bool:
    return all(type(size) is int for size in (*fake.shape, *fake.stride()))


def _count(fakes: list[torch.Tensor]) -> int:
    return sum(fake.numel() for fake in fakes)


def _made_up(fake: torch.Tensor) -> torch.Tensor:
    """A tensor of zeros that lies as a stand-in does."""
    shape, stride = list(fake.shape), list(fake.stride())
    kind: dict[str, Any] = dict(dtype=fake.dtype, device=fake.device)
    return torch.empty_strided(shape, stride, **kind).zero_()
