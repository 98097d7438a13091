"""What rounding alone may do to the values that a step leaves, measured on the step itself.

Two right ways to compute the same differ by about as much as one of them does from itself when each
operator rounds otherwise. A lost factor, term or hook differs by far more.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch

from lockstep import _compat
from lockstep._compat import pytree
from lockstep.capture.schemas import must_stay
from lockstep.run.outcome import GRADIENT, Values

MOST = 4.0  # times what rounding was seen to do; another way to compute may round more often
# What picks values and rounds none: a largest value that is moved is no longer the largest.
_PICK = frozenset(
    "max min amax amin maximum minimum clamp sort topk gather scatter where masked_fill cat stack "
    "clone index index_select embedding constant_pad_nd triu tril relu abs neg sign round floor "
    "ceil threshold_backward max_pool2d_with_indices".split()
)


class Jitter(_compat.dispatch_mode()):  # type: ignore[misc]
    """Each new floating result of an operator keeps its values, or loses a unit in the last place.

    Which of them is drawn, from generators of its own. None grows: what masks by the lowest number
    of a type stays finite. What is made of no floating tensor is exact, and stays.

    Example:
        >>> one = torch.ones(100)
        >>> with Jitter() as jitter:
        ...     moved = one * 3 - 3
        >>> bool(0 < moved.abs().max() < 8 * jitter.eps), jitter.eps == torch.finfo(one.dtype).eps
        (True, True)
    """

    def __init__(self) -> None:
        super().__init__()
        self.eps = 0.0  # of the coarsest type that was seen
        self._draws: dict[torch.device, torch.Generator] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        own = torch.Tensor.__torch_dispatch__
        if any(kind.__torch_dispatch__ is not own for kind in types):
            return NotImplemented  # what a subclass does with the tensors in it comes by again
        out = func(*args, **(kwargs or {}))
        if _rounds(func) and any(map(_floating, pytree.tree_leaves((args, kwargs)))):
            for tensor in filter(_floating, pytree.tree_leaves(out)):
                self._move(tensor)
        return out

    def _move(self, tensor: torch.Tensor) -> None:
        eps, device = torch.finfo(tensor.dtype).eps, tensor.device
        if device not in self._draws:
            self._draws[device] = torch.Generator(device).manual_seed(len(self._draws))
        self.eps = max(self.eps, eps)
        drawn = torch.randint(2, tensor.shape, generator=self._draws[device], device=device)
        tensor.mul_(1 - eps * drawn.to(tensor.dtype))


def _floating(value: Any) -> bool:
    tensor = isinstance(value, torch.Tensor) and value.layout is torch.strided
    return tensor and value.is_floating_point() and value.device.type != "meta"


def _rounds(func: Any) -> bool:
    """Whether an operator makes new values that it has to round."""
    if not isinstance(func, _compat.op_overload_type()) or must_stay(func):
        return False
    schema = _compat.schema(func)
    shares = any(returned.alias_info is not None for returned in schema.returns)
    return not shares and schema.name.removeprefix("aten::") not in _PICK


def beyond(step: Values, graph: Values, jittered: Values, eps: float) -> tuple[list[str], float]:
    """The names of what a graph leaves otherwise than rounding explains, gradients first.

    A value may be off by `MOST` times what rounding moved, or was to move, the step's own; all
    gradients together, and all else together, by the square root of `eps`: what a step that
    magnifies rounding without bounds may hide is bounded by that.

    Args:
        step, graph, jittered: what each of them left: the step, its graph, the step under `Jitter`.
        eps: of the coarsest type that the step computes in.

    Returns:
        The names, and the most that any value is off, in times of what rounding moves it.
    """
    rows = {
        name: _row(step.get(name), graph.get(name), jittered.get(name))
        for name in dict.fromkeys([*step, *graph])
    }
    names = [name for name, row in rows.items() if not row.times <= MOST]
    for gradients in (True, False):
        of = {n: row for n, row in rows.items() if n.endswith(GRADIENT) is gradients}
        if not sum(row.off for row in of.values()) <= eps * sum(row.whole for row in of.values()):
            names += [n for n, row in of.items() if row.times and n not in names]
    most = max((row.times for row in rows.values()), default=0.0)
    return sorted(names, key=lambda name: not name.endswith(GRADIENT)), most


class _Row(NamedTuple):
    """One value: how far it is off, in times of what rounding moves it; sums of squares."""

    times: float
    off: float = 0.0
    whole: float = 0.0


def _row(one: torch.Tensor | None, other: torch.Tensor | None, moved: torch.Tensor | None) -> _Row:
    if one is None or other is None or one.dtype != other.dtype or one.shape != other.shape:
        return _Row(math.inf)
    if not one.is_floating_point() or one.numel() == 0:
        return _Row(0.0 if torch.equal(one, other) else math.inf)
    far, size = _apart(one, other), one.double().nan_to_num(0.0, 0.0, 0.0)
    room = float(size.abs().max()) * torch.finfo(one.dtype).eps
    if moved is not None and moved.shape == one.shape:
        room += float(_apart(one, moved).max())
    times = float(far.max()) / room if room else math.inf
    off, whole = float(far.square().sum()), float(size.square().sum())
    return _Row(times if far.any() else 0.0, off, whole)


def _apart(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """How far each value is from its like; 0 where both are no number."""
    a, b = one.double(), other.double()
    same = (a == b) | (a.isnan() & b.isnan())
    return torch.where(same, 0.0, (a - b).abs())
