"""Python state that a step changes: counters, lists, attributes, closures.

A program that is replayed does not run the Python around it, so a change would happen once, while
tracing, and never again. It is seen by comparing before and after, undone, and refused at its line.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from lockstep.capture.binding import Call, Step
from lockstep.capture.obstacles import line_that_changes
from lockstep.capture.state import State
from lockstep.errors import CaptureError

_DEPTH = 3
_SCALARS = (int, float, complex, str, bytes, type(None))
# What torch itself keeps in modules and optimizers, and changes as it runs.
_TORCHS = ("_opt_called", "_step_count", "_optimizer_step_pre_hooks", "_parameters", "_buffers")


@dataclass
class _Place:
    """One mapping of names to values that the step can reach."""

    owner: str
    mapping: Any
    code_owner: Any

    def names(self) -> list[Any]:
        return [k for k in self.mapping if k not in _TORCHS]


class PythonState:
    """A snapshot of the Python values that a call of a step can reach.

    Tensors are not part of it: what happens to them is in the graph.
    """

    def __init__(self, step: Step, call: Call, state: State) -> None:
        self._step = step
        self._places = list(_places(step, call, state))
        self._cells = _cells(step)
        self._before = [{k: _frozen(p.mapping[k]) for k in p.names()} for p in self._places]
        self._cells_before = [_frozen(cell.cell_contents) for _, cell in self._cells]
        self._random = random.getstate()

    def refuse_changes(self) -> None:
        """Undo every change and refuse it.

        Raises:
            CaptureError: the step changed Python state; all changes are named.
        """
        changes = self._undo()
        if not changes:
            return
        self._refuse(changes)

    def restore(self) -> None:
        """Undo every change in silence: the trace failed for another reason."""
        self._undo()

    def _undo(self) -> list[tuple[str, str, str, Any]]:
        changes = list(self._changes())
        if random.getstate() != self._random:
            random.setstate(self._random)
            changes.append(("random", "a draw from Python's random", "", self._step.plain))
        return changes

    def _refuse(self, changes: list[tuple[str, str, str, Any]]) -> None:
        first, rest = changes[0], changes[1:]
        raise CaptureError(
            f"the step changes Python state: {first[0]}",
            where=line_that_changes(first[3], first[0].rpartition(".")[2], self._step.plain),
            got=f"{first[1]} -> {first[2]}" if first[2] else first[1],
            why="a compiled step does not run its Python again: this would happen once and never more"
            + (f"\nalso: {', '.join(c[0] for c in rest)}" if rest else ""),
            fix=[
                "do it outside the step, around the call",
                "keep it in a tensor: register_buffer(...) and an in-place update",
                "return it, and let the caller keep it",
            ],
        )

    def _changes(self) -> Iterator[tuple[str, str, str, Any]]:
        for place, before in zip(self._places, self._before, strict=True):
            for key in {*before, *place.names()}:
                old = before.get(key, _MISSING)
                new = _frozen(place.mapping[key]) if key in place.mapping else _MISSING
                if _same(old, new):
                    continue
                owner = f"{place.owner}.{key}" if place.owner else str(key)
                yield owner, _show(old), _show(new), place.code_owner
                _restore(place.mapping, key, old)
        for (name, cell), old in zip(self._cells, self._cells_before, strict=True):
            new = _frozen(cell.cell_contents)
            if not _same(old, new):
                yield name, _show(old), _show(new), self._step.plain
                cell.cell_contents = _thawed(old)


class _Missing:
    def __repr__(self) -> str:
        return "nothing"


_MISSING = _Missing()


@dataclass
class _Frozen:
    """A container as it was: itself, and its frozen elements."""

    container: Any
    items: list[tuple[Any, Any]]


def _places(step: Step, call: Call, state: State) -> Iterator[_Place]:
    for name, module in state.modules:
        yield _Place(name, module.__dict__, type(module))
    for name, obj in call.objects.items():
        if hasattr(obj, "__dict__"):
            yield _Place(name, vars(obj), type(obj))
    for name, optimizer in state.optimizers:
        yield _Place(name, optimizer.__dict__, type(optimizer))
    reached = {n: v for n, v in step.reached() if n in step.plain.__globals__ and _watched(v)}
    if reached:
        yield _Place("", _Globals(step.plain.__globals__, reached), step.plain)
    for name, leaf in zip(call.names, call.leaves, strict=True):
        if isinstance(leaf, (list, dict, set)):
            yield _Place("", {name: leaf}, step.plain)


class _Globals(dict):
    """The globals that a step mentions, written through to the module they live in."""

    def __init__(self, live: dict[str, Any], reached: dict[str, Any]) -> None:
        super().__init__(reached)
        self._live = live

    def __getitem__(self, key: str) -> Any:
        return self._live[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self._live[key] = value


def _watched(value: Any) -> bool:
    return isinstance(value, (*_SCALARS, list, dict, set, tuple))


def _cells(step: Step) -> list[tuple[str, Any]]:
    code, closure = step.plain.__code__, step.plain.__closure__ or ()
    found = []
    for name, cell in zip(code.co_freevars, closure, strict=False):
        try:
            if _watched(cell.cell_contents):
                found.append((name, cell))
        except ValueError:
            continue
    return found


def _frozen(value: Any, depth: int = 0) -> Any:
    if depth < _DEPTH and isinstance(value, (list, tuple, set)):
        if isinstance(value, set):
            return _Frozen(value, [(None, v) for v in sorted(value, key=repr)])
        return _Frozen(value, [(i, _frozen(v, depth + 1)) for i, v in enumerate(value)])
    if depth < _DEPTH and isinstance(value, dict):
        return _Frozen(value, [(k, _frozen(v, depth + 1)) for k, v in value.items()])
    return value


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        return isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) or _tensor_left(a, b)
    if isinstance(a, _Frozen) and isinstance(b, _Frozen):
        if len(a.items) != len(b.items):
            return False
        pairs = zip(a.items, b.items, strict=True)
        return all(_same_key(ka, kb) and _same(va, vb) for (ka, va), (kb, vb) in pairs)
    if isinstance(a, _SCALARS) and isinstance(b, _SCALARS):
        return type(a) is type(b) and (a == b or a != a)
    return a is b


def _same_key(a: Any, b: Any) -> bool:
    return a is b or a == b


def _tensor_left(a: Any, b: Any) -> bool:
    """A tensor where there was none, or the reverse: effects deal with new tensors, not with this."""
    return False


def _restore(mapping: Any, key: Any, old: Any) -> None:
    if old is _MISSING:
        mapping.pop(key, None)
    else:
        mapping[key] = _thawed(old)


def _thawed(old: Any) -> Any:
    """The container itself with its old contents put back."""
    if not isinstance(old, _Frozen):
        return old
    items = [(k, _thawed(v)) for k, v in old.items]
    container = old.container
    if isinstance(container, list):
        container[:] = [v for _, v in items]
    elif isinstance(container, dict):
        container.clear()
        container.update(items)
    elif isinstance(container, set):
        container.clear()
        container.update(v for _, v in items)
    return container


def _show(value: Any) -> str:
    if isinstance(value, _Frozen):
        return f"{type(value.container).__name__} of {len(value.items)}"
    if isinstance(value, torch.Tensor):
        return "a tensor"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
