"""Swapped functions: every binding, this thread only, and put back whatever happens."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from lockstep.capture.hooks import caller_frame, swapped


def target(x: int, y: int = 2, *, z: int = 3) -> int:
    return x + y + z


def closing() -> Any:
    func = target

    def wrapper(*args: Any, **kwargs: Any) -> int:
        return func(*args, **kwargs)

    return wrapper


binding = target


def replaced(original: Any, args: Any, kwargs: Any) -> Any:
    frame = caller_frame()
    return "replaced", original(*args, **kwargs), frame and frame.f_code.co_name


def test_every_binding_is_replaced_and_the_original_still_runs() -> None:
    wrapped = closing()
    with swapped({target: replaced, wrapped: replaced}):  # type: ignore[dict-item]
        name = test_every_binding_is_replaced_and_the_original_still_runs.__name__
        assert binding(1, z=4) == ("replaced", 7, name)
        assert wrapped(1) == ("replaced", ("replaced", 6, "wrapper"), name)
    assert binding(1, z=4) == 7 and wrapped(1) == 6


def test_another_thread_gets_the_original() -> None:
    got: list[Any] = []
    with swapped({target: replaced}):  # type: ignore[dict-item]
        thread = threading.Thread(target=lambda: got.append(target(1)))
        thread.start()
        thread.join(10)
    assert got == [6]


def test_put_back_after_an_error() -> None:
    with pytest.raises(KeyError), swapped({target: replaced}):  # type: ignore[dict-item]
        raise KeyError
    assert target(1) == 6
