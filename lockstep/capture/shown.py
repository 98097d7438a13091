"""Text that a step makes of its values: `f"{loss.item():.3f}"`, `str(rank)`, `print(x)`.

A trace has no values. It gets a mark in place of the text, which what prints it finds again; each
rank puts in its own as the program runs. A mark that nothing prints is refused at its line.
"""

from __future__ import annotations

import contextlib
import math
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType, FunctionType
from typing import Any

import torch

from lockstep import _compat
from lockstep.capture.coordinates import Coordinates
from lockstep.capture.hooks import caller_frame, swapped
from lockstep.capture.origin import is_own_file, is_torch_file, line_of, user_frame
from lockstep.capture.percent import Percents
from lockstep.capture.refusal import refuse
from lockstep.errors import CaptureError

_OPEN, _CLOSE = "\ue000", "\ue001"  # private use: no text of a user's holds them
_MARK = re.compile(f"{_OPEN}+(\\d+){_CLOSE}")
_NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool)

Json = Any
Write = Callable[[Any], Json]


@dataclass
class Shown:
    """One piece of text: the value as it was written down, and how it is shown.

    `spec`: of `format`; None: `repr`. `number`: of the trace, where the value is one. `sample`: the
    text of a made-up value.
    """

    what: Json
    spec: str | None
    line: str
    number: Any
    sample: str
    used: bool = False


class Marks:
    """The marks that one trace has given out.

    Args:
        write: writes a value down, as `Emits.written` does.
        coordinates: the trace's numbers that depend on the rank.
        samples: give the text of made-up values, and no marks. What a step then tells must be what
            the marks' trace tells of these values, or it looks at the text.
    """

    def __init__(self, write: Write, coordinates: Coordinates, samples: bool = False) -> None:
        self._write, self._coordinates, self._samples = write, coordinates, samples
        self._shown: list[Shown] = []
        self._percents = Percents(samples)

    def mark(self, value: Any, spec: str | None, frame: FrameType | None) -> str:
        """Return what stands for a value's text."""
        number = value if isinstance(value, _NUMBERS) else None
        line = line_of(user_frame(frame))
        sample = self._sample(value, spec)
        self._shown.append(Shown(self._write(value), spec, line, number, sample))
        # Long, as no sample is: text that is padded to a width, or counted, then differs.
        return sample if self._samples else f"{_OPEN * 48}{len(self._shown) - 1}{_CLOSE}"

    def _sample(self, value: Any, spec: str | None) -> str:
        """The text of a made-up value of the same kind: no number, as any may be at some step."""
        if isinstance(value, torch.Tensor):
            if spec is None or value.dim():
                return f"tensor(nan, size={[str(size) for size in value.shape]})"
            if value.dtype is torch.bool or not value.is_floating_point():
                return format(value.dtype is torch.bool and True, spec)
            return format(math.nan, spec)
        if isinstance(value, torch.SymFloat):
            return format(math.nan, spec or "")
        formula = _compat.expression(value) if isinstance(value, _NUMBERS) else None
        if formula is None:  # made by Python's own functions
            return format(math.nan, spec or "")
        known = self._coordinates.at_place(formula) if self._coordinates.knows(formula) else 0
        return format(bool(known) if isinstance(value, torch.SymBool) else int(known), spec or "")

    @property
    def any(self) -> bool:
        """Whether any text was made of the trace's values."""
        return bool(self._shown)

    def holds(self, text: str) -> bool:
        """Whether a mark is in a text."""
        return _OPEN in text or _CLOSE in text

    def pieces(self, text: str, line: str) -> Json:
        """Return a text as ["text", piece, ...], whose marks are ["shown", value, spec].

        Raises:
            CaptureError: a mark in it was cut or changed.
        """
        parts: list[Json] = []
        at = 0
        for found in _MARK.finditer(text):
            shown = self._shown[int(found[1])]
            shown.used = True
            parts += self._percented(text[at : found.start()])
            parts.append(["shown", shown.what, shown.spec, shown.sample])
            at = found.end()
        parts += self._percented(text[at:])
        rest = "".join(part for part in parts if isinstance(part, str))
        if _OPEN in rest or _CLOSE in rest:
            refuse(_changed(line))
        return ["text", *[part for part in parts if part != ""]]

    def number(self, value: Any, frame: FrameType | None, whole: bool) -> Any:
        """Return what stands for a value that `"%.3f" % value` asks for; None: it is not that."""
        number = value if isinstance(value, _NUMBERS) else None
        shown = Shown(self._write(value), "", line_of(user_frame(frame)), number, "")
        found = self._percents.number(shown, frame, whole)
        if found is not None:
            self._shown.append(shown)
        return found

    def _percented(self, text: str) -> list[Json]:
        """A text without marks in pieces, with ["percent", value, format] for what `%` put in."""
        parts: list[Json] = []
        for piece in self._percents.split(text):
            if isinstance(piece, str):
                parts.append(piece)
                continue
            shown, form = piece
            shown.used = True
            sample = form % (0 if form[-1] in "diouxXc" else math.nan)
            parts.append(["percent", shown.what, form, sample])
        return parts

    @property
    def lines(self) -> list[str]:
        """Where text was made."""
        return [shown.line for shown in self._shown]

    @property
    def used_at(self) -> set[str]:
        """The lines whose text was told."""
        return {shown.line for shown in self._shown if shown.used}

    def unused(self) -> list[Shown]:
        """What was made into text that nothing has told."""
        return [] if self._samples else [shown for shown in self._shown if not shown.used]

    def refusal(self, shown: Shown) -> CaptureError:
        """The error for a text that nothing tells."""
        formula = None if shown.number is None else _compat.expression(shown.number)
        rank = self._coordinates.knows(formula)
        what = f"its rank into text: {self._coordinates.shown(formula)}" if rank else None
        return CaptureError(
            f"the step puts {what or 'a value of its own into text'}",
            where=shown.line,
            got="text that is neither printed nor logged here",
            why="what one rank gets would be shipped to all of them"
            if rank
            else "the text would be made once, without a value",
            fix=[
                "print it, log it, or give it to a writer: that is kept as it is",
                'ls.log("... {}", value, rank=0), ls.on_rank(0, callback, value)',
                "pass a tensor that the caller made from the rank" if rank
                else "return the tensor, and make the text outside the step",
            ],
        )  # fmt: skip


def refuse_unused(sides: list[Marks]) -> None:
    """Refuse text of the step's values that no rank tells.

    Raises:
        CaptureError: at the line that made it.
    """
    used = set().union(*(marks.used_at for marks in sides))
    for marks in sides:
        for shown in marks.unused():
            if shown.line not in used:
                refuse(marks.refusal(shown))


def _changed(line: str) -> CaptureError:
    return CaptureError(
        "the step cuts or changes a text that holds one of its values",
        where=line,
        why="the text is known only as the program runs",
        fix=[
            'format the value as it shall stand: f"{loss.item():>10.3f}"',
            "ls.on_rank(0, callback, value), which may do anything with it",
        ],
    )


@contextlib.contextmanager
def showing(marks: Marks, settled: Callable[[Any], Any]) -> Iterator[None]:
    """Give marks for the text of numbers and tensors of the trace while inside.

    Args:
        settled: the value of a formula where every rank has the same; else None.
    """
    tensor = _compat.fake_tensor_type()
    reprs: dict[FunctionType, Any] = {
        vars(kind)["__repr__"]: _repr(marks, settled) for kind in _NUMBERS
    }
    for kind in (torch.SymFloat, torch.SymInt):
        for name in ("__float__", "__int__", "__index__"):
            asked = vars(kind).get(name)
            if isinstance(asked, FunctionType):
                reprs[asked] = _percent(marks, whole=name != "__float__")
    own = {name: vars(tensor).get(name) for name in ("__repr__", "__format__")}
    try:
        for kind in _NUMBERS:
            kind.__format__ = _number_format(marks, settled)  # type: ignore[assignment,method-assign]
        tensor.__repr__, tensor.__format__ = _tensor_repr(marks), _tensor_format(marks)
        with swapped(reprs):
            yield
    finally:
        for kind in _NUMBERS:
            del kind.__format__
        for name, before in own.items():
            if before is None:
                delattr(tensor, name)
            else:
                setattr(tensor, name, before)


def _asker(frame: FrameType | None) -> FrameType | None:
    """The frame that asks, past this package's own; None where torch does."""
    while frame is not None and is_own_file(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None or is_torch_file(frame.f_code.co_filename):
        return None
    return frame


def _known(number: Any, settled: Callable[[Any], Any]) -> Any:
    formula = _compat.expression(number)
    if formula is None or not getattr(formula, "free_symbols", None):
        return None if formula is None else formula
    return settled(formula)


def _plain(number: Any, known: Any) -> Any:
    if isinstance(number, torch.SymBool):
        return bool(known)
    return int(known) if isinstance(number, torch.SymInt) else float(known)


def _repr(marks: Marks, settled: Callable[[Any], Any]) -> Any:
    def shown(original: Any, args: Any, kwargs: Any) -> Any:
        frame = _asker(caller_frame())
        if frame is None:
            return original(*args, **kwargs)
        known = _known(args[0], settled)
        return marks.mark(args[0], "", frame) if known is None else repr(_plain(args[0], known))

    return shown


def _percent(marks: Marks, whole: bool) -> Any:
    def asked(original: Any, args: Any, kwargs: Any) -> Any:
        frame = _asker(caller_frame())
        formula = _compat.expression(args[0])
        if frame is None or not getattr(formula, "free_symbols", None):
            return original(*args, **kwargs)
        found = marks.number(args[0], frame, whole)
        return original(*args, **kwargs) if found is None else found

    return asked


def _number_format(marks: Marks, settled: Callable[[Any], Any]) -> Any:
    def shown(self: Any, spec: str) -> str:
        frame = _asker(sys._getframe(1))
        if frame is None:
            return object.__format__(self, spec)
        known = _known(self, settled)
        return marks.mark(self, spec, frame) if known is None else format(_plain(self, known), spec)

    return shown


def _tensor_repr(marks: Marks) -> Any:
    original = torch.Tensor.__repr__

    def shown(self: torch.Tensor, **options: Any) -> str:
        frame = _asker(sys._getframe(1))
        if frame is None or options:
            return original(self, **options)
        if self.requires_grad:
            refuse(_with_grad(frame))
        return marks.mark(self, None, frame)

    return shown


def _tensor_format(marks: Marks) -> Any:
    def shown(self: torch.Tensor, spec: str) -> str:
        frame = _asker(sys._getframe(1))
        if frame is None:
            return torch.Tensor.__format__(self, spec)
        if self.dim() == 0 and not isinstance(self, torch.nn.Parameter):
            return marks.mark(self, spec, frame)
        if spec:  # as torch has it: of one element alone
            raise TypeError("unsupported format string passed to Tensor.__format__")
        return repr(self)

    return shown


def _with_grad(frame: FrameType) -> CaptureError:
    return CaptureError(
        "the step prints a tensor that requires grad",
        where=line_of(user_frame(frame)),
        why="eager shows its grad_fn, which no program has",
        fix=["print its number: loss.item()", "print loss.detach()"],
    )
