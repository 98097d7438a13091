"""A step that no capture can hold, run op by op on real values while its tape is written.

The tape is a graph of the same form as a capture's, of the path that this one run took: a branch on
a value is taken as the value says, and what NumPy made of a tensor is a constant.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator
from typing import Any

import torch

from lockstep import _compat
from lockstep.capture.binding import Call, Step
from lockstep.capture.capture import Tracing
from lockstep.capture.checking import Checking
from lockstep.capture.doubles import in_doubles, promoted
from lockstep.capture.graph import StepGraph
from lockstep.capture.layout import local_of
from lockstep.capture.numbers import ReadNumbers
from lockstep.capture.origin import META, user_line
from lockstep.capture.pystate import PythonState
from lockstep.capture.state import State
from lockstep.capture.unknown import Unknown


def run_live(
    step: Step,
    call: Call,
    state: State,
    checking: Checking,
    unknown: Unknown | None = None,
    doubles: bool = True,
) -> StepGraph:
    """Run a step on copies of its inputs, and give the tape of what it did.

    Collectives are run by whoever runs them meanwhile; see `collectives_run_by`. Model, optimizer
    and Python's state are as before.

    Args:
        checking: takes notes, as of a capture for a check.
        unknown: follows the values that are not known in this run.
        doubles: compute in float64, not in the step's own dtypes; some steps do not run so.

    Raises:
        CaptureError: the step does what has no tape either, such as a send to one rank.
        NotYet: it looks at an unknown value.
        Exception: the step's own.
    """
    return _LiveTracing(step, call, state, checking, unknown, doubles).run()


class _LiveTracing(Tracing):
    """Traces real copies of the inputs, and refuses nothing that can be followed."""

    def __init__(
        self,
        step: Step,
        call: Call,
        state: State,
        checking: Checking,
        unknown: Unknown | None,
        doubles: bool,
    ) -> None:
        super().__init__(step, call, state, checking)
        self._notes, self._unknown = checking.notes, unknown
        self._doubles = doubles
        self._memory: dict[int, torch.Tensor] = {}

    def stand_in(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy; tensors that share memory share it in their copies."""
        key = _compat.storage_identity(tensor)
        if key not in self._memory:
            whole = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
            whole.set_(tensor.untyped_storage())  # type: ignore[call-overload]
            dtype = promoted(tensor.dtype) if self._doubles else tensor.dtype
            self._memory[key] = whole.to(dtype, copy=True)
        copy = self._memory[key].as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())
        if isinstance(tensor, torch.nn.Parameter):
            return torch.nn.Parameter(copy, requires_grad=tensor.requires_grad)
        return copy.requires_grad_(tensor.requires_grad)

    def made_here(self, value: Any) -> bool:
        return isinstance(value, torch.Tensor) and _compat.node_of(local_of(value)) is not None

    @contextlib.contextmanager
    def reading_numbers(self) -> Iterator[None]:
        following = self._unknown if self._unknown is not None else contextlib.nullcontext()
        exact = in_doubles() if self._doubles else contextlib.nullcontext()
        with ReadNumbers(self._read), following, exact:
            yield

    @contextlib.contextmanager
    def refusing(self) -> Iterator[None]:
        yield

    def make_graph(self, flat_step: Callable[..., Any]) -> torch.fx.GraphModule:
        with torch.autograd.set_multithreading_enabled(False), _compat.one_rank_flag():
            return _compat.make_fx(flat_step, self.fakes, reading=True)

    def explained(self, error: Exception) -> None:
        """What the step raises is its own: the values are real."""

    def refuse_changes(self, python: PythonState) -> None:
        python.undo()

    def refuse_lost(self, memory: list[int]) -> None:
        pass

    def refuse_return(self, leaf: Any) -> None:
        """Take what Python code may return, but not what has run nothing yet."""
        if isinstance(leaf, (Awaitable, Generator, AsyncGenerator)):
            super().refuse_return(leaf)

    def _read(self, tensor: torch.Tensor) -> None:
        """Note a gradient, or what comes of one, that Python looks at."""
        if self._unknown is not None:
            self._unknown.look(tensor)
        node = _compat.node_of(tensor)
        origin = node.meta.get(META) if node is not None else None
        if origin is not None and origin.phase != "forward":
            self._notes.late_reads.append(user_line())
