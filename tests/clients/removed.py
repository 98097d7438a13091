"""Every collective that a program calls is found by running it; then each is left out in turn.

What stands in for a collective keeps the shapes and communicates nothing: an all-reduce leaves its
tensor as it is, an all-gather repeats its own part, a reduce-scatter takes its own slice, an
all-to-all keeps its own rows.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

from lockstep.capture.origin import short_path

PACKAGE, PROGRAMS = "/megatron/", str(Path(__file__).parent / "megatron.py")
ENGINE = str(Path(torch.autograd.__file__).parent)  # a frame of it is where a backward began


class Done:
    """The handle of what was left out."""

    def wait(self) -> None:
        """Return at once."""


def _all_reduce(tensor: torch.Tensor, *_args: Any, **_words: Any) -> None:
    """Leave the tensor as it is."""


def _all_gather(output: torch.Tensor, own: torch.Tensor, *_args: Any, **_words: Any) -> None:
    output.data.copy_(own.repeat(len(output) // len(own), *[1] * (own.dim() - 1)))


def _reduce_scatter(output: torch.Tensor, whole: torch.Tensor, *args: Any, **words: Any) -> None:
    rank = dist.get_rank(words.get("group"))
    output.data.copy_(whole.narrow(0, rank * len(output), len(output)))


def _all_to_all(output: torch.Tensor, own: torch.Tensor, *_args: Any, **_words: Any) -> None:
    output.data.copy_(own.view(output.shape))


STAND_INS: dict[str, Callable[..., None]] = {
    "all_reduce": _all_reduce,
    "all_gather_into_tensor": _all_gather,
    "reduce_scatter_tensor": _reduce_scatter,
    "all_to_all_single": _all_to_all,
}


@dataclass(frozen=True)
class Place:
    """A line that a call came through, and the lines of the function that it stands in."""

    file: str
    number: int
    first: int
    last: int
    package: bool

    def __str__(self) -> str:
        return f"{self.file}:{self.number}"

    def holds(self, line: str) -> bool:
        """Whether a "file:number" is this line, or one of the package's function around it."""
        file, _, number = line.rpartition(":")
        if file != self.file or not number.isdigit():
            return False
        inside = self.first <= int(number) <= self.last
        return inside if self.package else int(number) == self.number


@dataclass
class Called:
    """One collective that a rank called.

    Args:
        places: where: of the package from the inside out, then the program's line; for one that a
            backward called, followed by the same of the forward that it is the backward of.
    """

    name: str
    backward: bool
    places: list[Place] = field(default_factory=list)

    def holds(self, line: str) -> bool:
        """Whether a line lies where this collective is called, or where what calls it is."""
        return any(place.holds(line) for place in self.places)


class Watch:
    """Counts a rank's collectives, and leaves one of them out.

    Args:
        leave_out: the place of the one to leave out, in the order of the calls; None: none.
    """

    def __init__(self, leave_out: int | None = None) -> None:
        self.leave_out = leave_out
        self.begin()

    def begin(self) -> None:
        """Count anew: another rank is next."""
        self.called: list[Called] = []
        self._applied: dict[int, tuple[Any, list[Place]]] = {}

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Stand in for every binding of the collectives outside of torch's own modules."""
        apply = vars(torch.autograd.Function)["apply"]
        saved: list[tuple[Any, str, Any]] = []
        try:
            for name in STAND_INS:
                original = getattr(dist, name)
                for module, bound in _bindings(original):
                    saved.append((module, bound, original))
                    setattr(module, bound, self._standing_in(name, original))
            torch.autograd.Function.apply = classmethod(self._applying(apply))  # type: ignore
            yield
        finally:
            torch.autograd.Function.apply = apply  # type: ignore[method-assign]
            for module, bound, original in saved:
                setattr(module, bound, original)

    def _standing_in(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **words: Any) -> Any:
            __tracebackhide__ = True  # the caller stands for this helper
            place = len(self.called)
            self.called.append(self._seen(name, sys._getframe(1)))
            if place != self.leave_out:
                return original(*args, **words)
            STAND_INS[name](*args, **words)
            return Done() if words.get("async_op") else None

        return call

    def _applying(self, raw: Any) -> Callable[..., Any]:
        def apply(cls: Any, *args: Any, **words: Any) -> Any:
            __tracebackhide__ = True
            out = raw.__get__(None, cls)(*args, **words)
            node = getattr(out, "grad_fn", None)
            if node is not None:  # a Function's own node is the context that its backward gets
                self._applied[id(node)] = (node, _places(sys._getframe(1))[0])
            return out

        return apply

    def _seen(self, name: str, frame: FrameType) -> Called:
        places, context = _places(frame)
        _node, forward = self._applied.get(id(context), (None, []))
        return Called(name, context is not None, [*places, *forward])


def _bindings(function: Any) -> list[tuple[Any, str]]:
    """Every name outside of torch's own modules that a collective is called by."""
    modules = [m for name, m in list(sys.modules.items()) if name.startswith("megatron.")]
    held = [dist, *modules]
    return [(m, name) for m in held for name, value in list(vars(m).items()) if value is function]


def _places(frame: FrameType | None) -> tuple[list[Place], Any]:
    """The package's places and the program's from here outwards, and the Function's context."""
    places: list[Place] = []
    context = None
    while frame is not None:
        code, file = frame.f_code, frame.f_code.co_filename
        if file.startswith(ENGINE) and code.co_name == "_engine_run_backward":
            break
        package = PACKAGE in file
        if package or (file == PROGRAMS and all(place.package for place in places)):
            numbers = [n for _, _, n in code.co_lines() if n is not None]
            ends = min(numbers), max(numbers)
            places.append(Place(short_path(file), frame.f_lineno, *ends, package))
        if package and code.co_name == "backward":
            context = frame.f_locals.get("ctx")
        frame = frame.f_back
    return places, context
