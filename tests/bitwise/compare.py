"""What "bitwise equal" means here, and how a difference is told."""

from __future__ import annotations

import torch
from torch import Tensor

Record = dict[str, Tensor]
"""One step's numbers by name: "loss", "logits", "grad <parameter>", "param <parameter>"."""

History = list[Record]
"""The records of a run, one a step."""


def same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have the same dtype, shape and bits; -0.0 is not 0.0, a NaN is itself.

    Example:
        >>> same(torch.tensor(0.0), torch.tensor(-0.0))
        False
    """
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return torch.equal(_bits(a), _bits(b))


def first_difference(a: History, b: History) -> str | None:
    """Say where two runs first differ; None where all their bits are equal.

    Example:
        >>> first_difference([{"loss": torch.tensor(1.0)}], [{"loss": torch.tensor(1.5)}])
        'step 1, loss: 1 of 1 values differ, by at most 0.5'
    """
    if len(a) != len(b):
        return f"{len(a)} steps against {len(b)}"
    for number, (left, right) in enumerate(zip(a, b, strict=True), 1):
        if left.keys() != right.keys():
            return f"step {number}: only one has {', '.join(sorted(left.keys() ^ right.keys()))}"
        for name, value in left.items():
            if not same(value, right[name]):
                return f"step {number}, {name}: {_told(value, right[name])}"
    return None


def count(history: History) -> int:
    """How many values a run's records hold."""
    return sum(value.numel() for record in history for value in record.values())


def largest_difference(a: History, b: History, prefix: str = "") -> float:
    """The largest absolute difference of two runs' values whose names start with `prefix`."""
    largest = 0.0
    for left, right in zip(a, b, strict=True):
        for name in left:
            if name.startswith(prefix):
                gap = (left[name].double() - right[name].double()).abs().max().item()
                largest = max(largest, gap)
    return largest


def _bits(value: Tensor) -> Tensor:
    return value.detach().contiguous().reshape(-1).view(torch.uint8)


def _told(a: Tensor, b: Tensor) -> str:
    if a.dtype != b.dtype or a.shape != b.shape:
        return f"{a.dtype} {list(a.shape)} against {b.dtype} {list(b.shape)}"
    size = a.element_size()
    odd = (_bits(a) != _bits(b)).view(-1, size).any(1).sum().item()
    gap = (a.double() - b.double()).abs().max().item()
    return f"{odd} of {a.numel()} values differ, by at most {gap:.3g}"
