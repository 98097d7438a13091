"""Swap what a function does, for every binding of it, while a step is captured.

`from torch.distributed import all_reduce` makes a second binding that patching the module would
miss. The function object is shared by all bindings, so its code is what gets swapped.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from types import CodeType, FrameType, FunctionType
from typing import Any

Replacement = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]

_replacements: dict[CodeType, tuple[Replacement, int]] = {}


def _plain(*args: Any, **kwargs: Any) -> Any:
    from lockstep.capture.hooks import dispatch

    return dispatch(args, kwargs)


def _wrapping() -> CodeType:
    """Code that closes over one name, as torch's logging decorators do, so that it fits them."""
    func = None

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        from lockstep.capture.hooks import dispatch

        return dispatch(args, kwargs, func)

    return wrapper.__code__


_originals: dict[CodeType, Callable[..., Any]] = {}


def dispatch(args: tuple[Any, ...], kwargs: dict[str, Any], _kept_alive: Any = None) -> Any:
    """Run the replacement of the function whose swapped code called this."""
    code = sys._getframe(1).f_code
    replacement, thread = _replacements[code]
    original = _originals[code]
    if threading.get_ident() != thread:
        return original(*args, **kwargs)
    return replacement(original, args, kwargs)


@contextlib.contextmanager
def swapped(functions: dict[FunctionType, Replacement]) -> Iterator[None]:
    """Route calls of the given functions, on this thread, to replacements.

    A replacement gets the original, the positional and the keyword arguments. Calls on other
    threads go to the original.
    """
    saved: list[tuple[FunctionType, CodeType]] = []
    try:
        for function, replacement in functions.items():
            _swap(function, replacement, saved)
        yield
    finally:
        for function, code in reversed(saved):
            _replacements.pop(function.__code__, None)
            _originals.pop(function.__code__, None)
            function.__code__ = code


def _swap(
    function: FunctionType, replacement: Replacement, saved: list[tuple[FunctionType, CodeType]]
) -> None:
    old = function.__code__
    template = _wrapping() if old.co_freevars else _plain.__code__
    # A replaced name makes each swapped function's code an object of its own.
    new = template.replace(co_name=f"{function.__name__}")
    new = new.replace(co_firstlineno=len(_replacements) + 1)
    original = FunctionType(
        old, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    original.__kwdefaults__ = function.__kwdefaults__
    _replacements[new] = (replacement, threading.get_ident())
    _originals[new] = original
    saved.append((function, old))
    function.__code__ = new


def caller_frame() -> FrameType | None:
    """The frame that called the swapped function, seen from within a replacement."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code not in _replacements:
        frame = frame.f_back
    return frame.f_back if frame is not None else None
