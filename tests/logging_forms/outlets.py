"""Where forms write to, and what each rank has seen there, step by step."""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import re
from collections.abc import Callable, Iterator
from typing import IO, Any

import torch
import torch.distributed as dist
from torch import Tensor

OTHERS = re.compile(r"\[lockstep|(\[rank\d+\]:)?[WIE]\d{4} ")  # lines of Lockstep's and of torch's
SEEN: list[Any] = []  # of this step, beside the streams


def note(value: Tensor, *words: Any) -> None:
    """A callback of `ls.on_rank`."""
    SEEN.append(["note", value.item(), *words])


def zero_only(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator as trainers have it."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if dist.get_rank() == 0:
            return function(*args, **kwargs)
        return None

    return wrapped


class Writer:
    """As tensorboard's."""

    def add_scalar(self, tag: str, scalar_value: Any, global_step: int | None = None) -> None:
        SEEN.append(["scalar", tag, float(scalar_value), global_step])


class Bar:
    """As tqdm's."""

    def __init__(self) -> None:
        self.n = 0

    def set_postfix(self, **values: Any) -> None:
        SEEN.append(["postfix", values])

    def update(self, n: int = 1) -> None:
        self.n += n
        SEEN.append(["bar at", self.n])


class Outlets:
    """What a form may write to."""

    def __init__(self) -> None:
        self.writer, self.bar = Writer(), Bar()
        self.logger = logging.getLogger("logging_forms.by_level")
        self.logger.setLevel(logging.INFO if dist.get_rank() == 0 else logging.ERROR)
        self.remembered: list[float] = []
        self.verbose = True
        self.step = 0
        self.rank = dist.get_rank()
        self.file: IO[str] = io.StringIO()

    def remember(self, *values: Tensor) -> None:
        self.remembered += [value.sum().item() for value in values]
        SEEN.append(["remembered", len(self.remembered), self.remembered[-2:]])


class _Records(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        run = getattr(record, "run", None)
        SEEN.append([record.levelname, record.getMessage(), record.funcName, record.lineno, run])


@contextlib.contextmanager
def seen() -> Iterator[list[Any]]:
    """What is written inside: both streams' text, then what else was told, in order."""
    SEEN.clear()
    handler, found = _Records(), list[Any]()
    root = logging.getLogger("logging_forms")
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    root.propagate = False
    out, err = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            yield found
    finally:
        root.removeHandler(handler)
        for stream in (out, err):
            lines = stream.getvalue().splitlines(keepends=True)
            found.append("".join(line for line in lines if not OTHERS.match(line)))
        found.append([_plain(value) for value in SEEN])


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value.tolist() if isinstance(value, torch.Tensor) else value
