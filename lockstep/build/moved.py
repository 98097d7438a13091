"""Constants of a step's graph that move from batch to batch: numbers that came from data.

A tensor's value that decides something inside a step is refused there. What was read of the data
before it, and kept in an int, an attribute or a global, is an ordinary constant of one trace: two
traces of unlike batches tell it from one that stays.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from lockstep.build.fingerprint import Fields
from lockstep.build.likeness import Rows, rows_of
from lockstep.capture.binding import Call, describe
from lockstep.capture.graph import StepGraph
from lockstep.errors import CaptureError

Change = tuple[str, str, str]  # a line, and a number of its before and after
_NUMBER = re.compile(r"(?<![\w.%])-?\d+(?:\.\d+)?(?:e[-+]?\d+)?(?![\w.])")
_RESULT = re.compile(r" -> \w+\[[^\]]*\]$")
_NOT_VALUES = ("class", "hooks", "children", "(order)")
_SIZE = "where it is a size: pad to one size, or dynamic={...}"
_WHY = "its value would be a constant of the program: each other one is another program to build"


@dataclass(frozen=True)
class Seen:
    """One call of a step: the plain values in its reach, its tensors' shapes, and its graph."""

    arguments: dict[str, Any]
    values: dict[str, Any]
    shapes: dict[str, str]
    rows: Rows


@dataclass(frozen=True)
class Moved:
    """What differs between two calls: `constants` as errors with their lines, `shapes` in words."""

    constants: list[CaptureError]
    shapes: list[str]


def seen(call: Call, fields: Fields, graph: StepGraph) -> Seen:
    """Take note of a call.

    Args:
        fields: its fingerprint.
        graph: as captured for this call.
    """
    pairs = list(zip(call.names, call.leaves, strict=True))
    return Seen(
        {name: leaf for name, leaf in pairs if isinstance(leaf, (bool, int, str))},
        dict(_values(fields)),
        {name: describe(leaf) for name, leaf in pairs if isinstance(leaf, torch.Tensor)},
        rows_of(graph),
    )


def moved(first: Seen, second: Seen) -> Moved:
    """List what moved between two calls of one step, whose batches should be unlike.

    Example:
        >>> one = Seen({"n": 3}, {}, {}, [["train.py:4", "", "%1 = aten.mul(%0, 3)"]])
        >>> two = Seen({"n": 5}, {}, {}, [["train.py:4", "", "%1 = aten.mul(%0, 5)"]])
        >>> moved(one, two).constants[0].what
        'n moves from batch to batch: 3, then 5'
    """
    shapes = [
        f"{name}: {words}, then {second.shapes[name]}"
        for name, words in first.shapes.items()
        if second.shapes.get(name, words) != words
    ]
    changes = list(_changes(first.rows, second.rows))
    labels = [
        (name, _shown(old), _shown(others[name]), fixes(name, old))
        for before, others, fixes in (
            (first.arguments, second.arguments, _of_argument),
            (first.values, second.values, _of_value),
        )
        for name, old in before.items()
        if name in others and others[name] != old
    ]
    claimed = {(was, now) for _, was, now, _ in labels}
    derived = [change for change in changes if change[1:] not in claimed]
    found = [
        _known(label, [c for c in changes if c[1:] == label[1:3]] or derived) for label in labels
    ]
    if not found and not shapes:
        found = [_unknown(*change) for change in changes]
    return Moved(found, shapes)


def _values(fields: Fields) -> Iterator[tuple[str, Any]]:
    """Values in globals and closures, and attributes, by what a user calls them."""
    for field, shown in fields.items():
        kind, _, name = field.partition(" ")
        if kind == "value":
            yield from _parts(name.rpartition(":")[2], shown, "[{!r}]")
        elif kind in ("module", "object"):
            yield from _parts(name, shown, ".{}")


def _parts(name: str, shown: Any, place: str) -> Iterator[tuple[str, Any]]:
    """A value by its name; of a dictionary or an object, those in it."""
    if not isinstance(shown, dict):
        yield name, shown
        return
    inner = ".{}" if "class" in shown else "[{!r}]"
    for key, value in shown.items():
        if key not in _NOT_VALUES:
            yield from _parts(name + place.format(key), value, inner)


def _changes(first: Rows, second: Rows) -> Iterator[Change]:
    """Lines at which the graphs differ by a number alone: (line, before, after)."""
    rows = [[(row[0], _plain(row[2])) for row in some if row[0]] for some in (first, second)]
    left, right = Counter(rows[0]), Counter(rows[1])
    gone, come = list((left - right).elements()), list((right - left).elements())
    for line, text in gone:
        other = next((t for at, t in come if at == line and _skeleton(t) == _skeleton(text)), None)
        if other is None:
            continue
        come.remove((line, other))
        for before, after in zip(_NUMBER.findall(text), _NUMBER.findall(other), strict=True):
            if before != after:
                yield line, before, after


def _plain(text: str) -> str:
    """A row without the numbers of its nodes and the shape of its result."""
    return _RESULT.sub("", re.sub(r"%\d+", "%", text))


def _skeleton(text: str) -> str:
    return _NUMBER.sub("#", text)


def _known(label: tuple[str, str, str, list[str]], changes: list[Change]) -> CaptureError:
    """The error for a value with a name: `changes` are where it is, or may be, in the graph."""
    name, was, now, fixes = label
    got = None if changes else "no constant of the graph, but of what a program is chosen by"
    if changes and changes[0][1:] != (was, now):
        got = f"the graph has {changes[0][1]}, then {changes[0][2]}"
    return CaptureError(
        f"{name} moves from batch to batch: {was}, then {now}",
        where=changes[0][0] if changes else None,
        got=got,
        why=_WHY,
        fix=fixes,
    )


def _of_argument(name: str, value: Any) -> list[str]:
    if isinstance(value, (bool, str)):
        return [f"make two steps, one for each {name}, or pass a tensor and torch.where by it"]
    return [
        f"pass a float, which is read at each call: {name}=float({name})",
        f"pass a tensor, and compute with it: {name}=torch.tensor({name})",
        _SIZE,
    ]


def _of_value(name: str, value: Any) -> list[str]:
    last = name.rpartition(".")[2]
    fixes = [
        f"pass it to the step: an argument {last} that is a float or a tensor is read at each call",
        f"keep it in a buffer of a module: register_buffer({last!r}, ...), and .fill_(value)",
    ]
    return [*fixes, _SIZE] if type(value) is int else fixes


def _unknown(line: str, before: str, after: str) -> CaptureError:
    return CaptureError(
        f"a constant of the graph moves from batch to batch: {before}, then {after}",
        where=line,
        why=_WHY,
        fix="pass what it comes from to the step, as a float or a tensor: they are read each call",
    )


def _shown(value: Any) -> str:
    """A value of a fingerprint, whose floats are in hex, as a user writes it."""
    if isinstance(value, str) and re.fullmatch(r"-?0x[0-9a-f.]+p[-+]\d+", value):
        return repr(float.fromhex(value))
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
