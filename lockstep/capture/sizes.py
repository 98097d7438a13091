"""Sizes that may differ from call to call: symbols of a trace, and what it took to hold of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from lockstep import _compat
from lockstep.capture.graph import InputSpec
from lockstep.capture.origin import user_line
from lockstep.capture.ranges import Size
from lockstep.capture.refusal import refuse
from lockstep.errors import CaptureError


@dataclass(frozen=True)
class SizeGuard:
    """What has to hold of a call's sizes: a formula of n0, n1, ..., and the line that asked."""

    text: str
    line: str


class Symbols:
    """The sizes of one trace.

    Args:
        mode: the trace's fake mode.
        sizes: in the order in which formulas number them.
    """

    def __init__(self, mode: Any, sizes: Sequence[Size]) -> None:
        self._mode, self.sizes = mode, tuple(sizes)
        self._symbols: dict[Size, Any] = {}
        if sizes:
            _compat.note_lines(mode, user_line)

    def of(self, name: str) -> dict[int, Size]:
        """The sizes of one argument, by dimension."""
        return {size.dim: size for size in self.sizes if size.name == name}

    def taken(self, spec: InputSpec, tensor: torch.Tensor) -> tuple[InputSpec, torch.Tensor]:
        """An argument's description with ranges in it, and a stand-in with symbols in it."""
        mine = self.of(spec.name)
        ranges = {dim: (size.low, size.high) for dim, size in mine.items()}
        fake = _compat.symbolic_of(self._mode, tensor, spec.name, ranges)
        for dim, size in mine.items():
            self._symbols[size] = _compat.expression(fake.shape[dim])
        shape = tuple(
            mine[dim].ends if dim in mine else size for dim, size in enumerate(spec.shape)
        )
        stride = loose_stride(tensor.shape, tensor.stride(), mine)
        return replace(spec, shape=shape, stride=stride), fake

    def guards(self) -> list[SizeGuard]:
        """What the trace took to hold of the sizes.

        Raises:
            CaptureError: it takes only one size that was declared to differ; at its line. Or the
                back end does, which has no line.
        """
        names = {self._symbols[size]: f"n{i}" for i, size in enumerate(self.sizes)}
        for size in self.sizes:
            fixed, line = _compat.fixed_size(self._mode, self._symbols[size])
            if fixed is not None:
                refuse(_fixed(size, fixed, line), about=size)
        found: dict[str, str] = {}
        for formula, line in _compat.size_guards(self._mode, names):
            found.setdefault(formula, line or "")
        return [SizeGuard(text, line) for text, line in found.items()]

    def words(self) -> dict[str, Any]:
        """The sizes and the guards as JSON values, for a contract."""
        return {
            "sizes": [asdict(size) for size in self.sizes],
            "guards": [asdict(guard) for guard in self.guards()],
        }

    def undecided(self) -> Any:
        """A block in which what is asked of the sizes decides nothing: for a check."""
        return _compat.suppressed_guards(self._mode)


def loose_stride(
    shape: Sequence[int], stride: Sequence[int], dims: Iterable[int]
) -> tuple[int | str, ...]:
    """Strides with "*" where they follow from a size that may differ; of a contiguous tensor.

    Those of another tensor are as they are: `odd_layout` says which it may be.
    """
    if not _contiguous(shape, stride):
        return tuple(stride)
    last = max(dims, default=0)
    return tuple("*" if dim < last else step for dim, step in enumerate(stride))


def odd_layout(shape: Sequence[int], stride: Sequence[int], dims: Iterable[int]) -> bool:
    """Whether strides hang on a size that may differ, in another way than a contiguous tensor's."""
    outer = list(dims)
    if _contiguous(shape, stride):
        return False
    return len(outer) > 1 or stride[outer[0]] < max(stride)


def _contiguous(shape: Sequence[int], stride: Sequence[int]) -> bool:
    expected = 1
    for size, step in zip(reversed(shape), reversed(stride), strict=True):
        if size != 1 and step != expected:
            return False
        expected *= size
    return True


def _fixed(size: Size, fixed: int, line: str | None) -> CaptureError:
    if not line:
        return CaptureError(
            f"the compiler takes {size} to be {fixed} and nothing else",
            want=f"a program for {size.low} to {size.high}, as dynamic= says",
            fix=[f"leave {size} out of dynamic=, and pad: ls.even_batches", 'backend="graph"'],
        )
    return CaptureError(
        f"the step takes {size} to be {fixed} and nothing else",
        where=line,
        want=f"a program for {size.low} to {size.high}, as dynamic= says",
        why="len(), int(), a loop over it, and what needs a plain number are traced for one size",
        fix=[
            f"{size} in place of len(), and operators on whole tensors in place of loops",
            f"leave {size} out of dynamic=, and pad: ls.even_batches",
        ],
    )
