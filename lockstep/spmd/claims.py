"""What the user says about values: noted while something records it, else nothing at all.

A claim never changes a value and leaves no node in a graph. The note holds the very tensor that was
claimed, so that a trace can find its node.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Literal, overload

import torch

from lockstep.errors import UsageError
from lockstep.spmd.mesh import axis as axis_named
from lockstep.spmd.types import Type, checked_type

Phase = Literal["run", "check", "build"]

phase_now: ContextVar[Phase] = ContextVar("lockstep_phase", default="run")


def phase() -> Phase:
    """Say what the running step's code is being used for.

    Returns:
        "check" while the checker follows it, "build" while it is captured for a program, else
        "run". A captured step holds the side that it took when it was captured.

    Example:
        >>> phase()
        'run'
    """
    return phase_now.get()


@contextlib.contextmanager
def in_phase(name: Phase) -> Iterator[None]:
    """Make `phase()` say this while inside, on this thread; an outer "check" stays a check."""
    token = phase_now.set("check" if phase_now.get() == "check" else name)
    try:
        yield
    finally:
        phase_now.reset(token)


@dataclass(frozen=True)
class Place:
    """A line of the user's: the file as Python names it, and the line's number."""

    file: str
    line: int

    @classmethod
    def of(cls, frame: FrameType) -> Place:
        """Return where a frame is; a helper that assigns `__tracebackhide__` is its caller."""
        while "__tracebackhide__" in frame.f_code.co_varnames and frame.f_back is not None:
            frame = frame.f_back
        return cls(frame.f_code.co_filename, frame.f_lineno)


@dataclass(frozen=True)
class Claim:
    """That a tensor has these types; `what` is what said so, such as "ls.typed"."""

    tensor: torch.Tensor
    types: Mapping[str, Type]
    place: Place
    what: str


@dataclass(frozen=True)
class Moved:
    """That a typed collective took one tensor to another, with these types on one axis."""

    verb: str
    axis: str
    src: Type
    dst: Type
    op: str
    before: torch.Tensor
    after: torch.Tensor
    place: Place


@dataclass(frozen=True)
class Intent:
    """That the gradients between these tensors are meant not to be the derivative."""

    reason: str
    name: str
    before: tuple[torch.Tensor, ...]
    after: tuple[torch.Tensor, ...]
    place: Place


@dataclass
class Recording:
    """Everything that was said while it was open, each list in the order of the program."""

    claims: list[Claim] = field(default_factory=list)
    moves: list[Moved] = field(default_factory=list)
    intents: list[Intent] = field(default_factory=list)
    thread: int = field(default_factory=threading.get_ident)


# Read by name at each use, since "nothing records" must cost nothing.
recording: Recording | None = None


def recorder() -> Recording | None:
    """Return the recording that notes what this thread says, if any."""
    open_one = recording
    if open_one is None or open_one.thread != threading.get_ident():
        return None
    return open_one


@contextlib.contextmanager
def recording_claims() -> Iterator[Recording]:
    """Note all claims that this thread makes while inside; recordings do not nest.

    Returns:
        The recording, filled as the program runs. It keeps the claimed tensors alive.

    Raises:
        UsageError: a recording is open already.

    Example:
        >>> with recording_claims() as said:
        ...     _ = typed(torch.zeros(2))
        >>> [claim.what for claim in said.claims]
        ['ls.typed']
    """
    global recording
    if recording is not None:
        raise UsageError("claims are being recorded already")
    recording = Recording()
    try:
        yield recording
    finally:
        recording = None


def typed(x: torch.Tensor, **types: Type) -> torch.Tensor:
    """Claim a tensor's types; does nothing unless something is checking.

    Args:
        x: any tensor.
        types: per mesh axis R, I, V, S(dim), P or P("mean").

    Returns:
        `x` itself; no node is left in a captured graph, and nothing on the tensor.

    Raises:
        UsageError: only while checking: x is no tensor, an unknown axis, no type, or a shard of no
            dimension of x.

    Example:
        >>> w = torch.ones(4, 2)
        >>> typed(w, tp=S(0), dp=R) is w                                     # doctest: +SKIP
        True
    """
    if recording is not None:
        claim(x, types, Place.of(sys._getframe(1)), "ls.typed")
    return x


def claim(x: torch.Tensor, types: Mapping[str, Type], place: Place, what: str) -> None:
    """Note a claim if this thread is being recorded.

    Raises:
        UsageError: no tensor, an unknown axis, no type, or a shard of a dimension that it lacks.
    """
    said = recorder()
    if said is None:
        return
    if not isinstance(x, torch.Tensor):
        raise _no_tensor(x, place, what)
    for axis, kind in types.items():
        axis_named(axis)
        checked_type(kind, f"{what}, {axis}")
        if kind.dim is not None and kind.dim >= x.dim():
            raise UsageError(
                f"{what}: {axis}={kind} of a tensor of shape {list(x.shape)}",
                where=f"{place.file}:{place.line}",
                want=f"S(0) to S({x.dim() - 1})" if x.dim() else "no S: it is a scalar",
            )
    said.claims.append(Claim(x, dict(types), place, what))


def _no_tensor(x: object, place: Place, what: str) -> UsageError:
    return UsageError(
        f"{what} takes a Tensor",
        where=f"{place.file}:{place.line}",
        got=f"a {type(x).__name__}",
        fix='ls.type_parameters(model, {"*": {"dp": ls.R}})'
        if isinstance(x, torch.nn.Module)
        else None,
    )


@overload
def intended(function: Callable[..., Any], *, reason: str) -> Callable[..., Any]: ...
@overload
def intended(*, reason: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]: ...
def intended(function: Callable[..., Any] | None = None, *, reason: str) -> Any:
    """Say that a function's backward is meant not to be its derivative.

    For straight-through estimators, gradient reversal and scalers of auxiliary losses. The checker
    takes the gradients that leave the function as they are, and reports the reason.

    Args:
        function: what is called; often the `apply` of an autograd Function. Left out, a decorator.
        reason: why, in a few words; it is printed with every check.

    Returns:
        A function that does the same.

    Raises:
        UsageError: the reason is empty or no text, or there is nothing to call.

    Example:
        >>> twice = intended(lambda x: x * 2, reason="an example")
        >>> twice(torch.ones(1)).item()
        2.0
    """
    if function is None:
        return functools.partial(intended, reason=reason)
    if not callable(function):
        raise UsageError("ls.intended takes a function", got=f"a {type(function).__name__}")
    if not isinstance(reason, str) or not reason.strip():
        raise UsageError(
            "ls.intended needs a reason",
            got=None if isinstance(reason, str) else repr(reason),
            fix='reason="straight-through estimator"',
        )

    @functools.wraps(function)
    def same(*args: Any, **kwargs: Any) -> Any:
        out = function(*args, **kwargs)
        said = recorder()
        if said is not None:
            name = getattr(function, "__qualname__", repr(function))
            before, after = tensors_in((args, kwargs)), tensors_in(out)
            place = Place.of(sys._getframe(1))
            said.intents.append(Intent(reason, name, before, after, place))
        return out

    return same


def tensors_in(value: Any) -> tuple[torch.Tensor, ...]:
    """Return the tensors in a nest of tuples, lists and dicts."""
    if isinstance(value, torch.Tensor):
        return (value,)
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if isinstance(value, (tuple, list)):
        return tuple(tensor for item in value for tensor in tensors_in(item))
    return ()
