"""Python state that a step changes: counters, lists, attributes, closures, globals.

A program that is replayed does not run the Python around it, so a change would happen once, while
tracing, and never again. It is seen by comparing before and after, undone, and refused at its line.
"""

from __future__ import annotations

import contextlib
import random
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from lockstep.capture.binding import Call, Step
from lockstep.capture.libraries import ways
from lockstep.capture.reach import Reach, reach
from lockstep.capture.refusal import collector, refuse
from lockstep.capture.scratch import Scratch
from lockstep.capture.source import line_that_changes
from lockstep.capture.state import State
from lockstep.capture.written import PlainValues, held_objects, noting_writes
from lockstep.errors import CaptureError

_DEPTH = 3
_THREADS = 5  # that are told by name
_SCALARS = (int, float, complex, str, bytes, type(None))
_CONTAINERS = (list, dict, set, tuple)
# What torch itself keeps in modules and optimizers, and changes as it runs.
_TORCHS = (
    "_opt_called", "_step_count", "_parameters", "_buffers", "state",
    "_flat_weights", "_flat_weight_refs",  # of an LSTM and kin, which renew them by themselves
)  # fmt: skip


@dataclass(frozen=True)
class Change:
    """One change: of what, its value before and after, shown short; the line, where it was seen."""

    name: str
    before: str
    after: str
    line: str = ""


class PythonState:
    """A snapshot of the Python values that a call of a step can reach.

    Tensors are not part of it: what happens to them is in the graph.
    """

    def __init__(self, step: Step, call: Call, state: State) -> None:
        self._reach = reach(step, call, state)
        self._step = step
        self._places = list(_places(call, state, self._reach))
        held = list(held_objects(state.modules))
        self._places += [(name, PlainValues(one)) for name, one in held]
        self._held = [one for _, one in held]
        self._written: dict[tuple[int, str], str] = {}  # where their attributes were set
        self._before = [{k: _frozen(m[k]) for k in _names(m)} for _, m in self._places]
        self.functions = self._reach.functions.values()  # the user's, that the step reaches
        self._scratch = Scratch(self._reach.libraries)
        self._random = random.getstate()
        self._numpy = _numpy_state()

    @contextlib.contextmanager
    def noting(self) -> Iterator[None]:
        """Note where objects are written to while the step runs."""
        with noting_writes(self._held) as self._written:
            yield

    def undo(self) -> list[Change]:
        """Put everything back as it was; returns what had changed."""
        self._scratch.put_back()
        changes = list(self._changes())
        if random.getstate() != self._random:
            random.setstate(self._random)
            changes.append(Change("random", "a state of Python's generator", _another()))
        if self._numpy is not None and not _same_draws(self._numpy, _numpy_state()):
            sys.modules["numpy.random"].set_state(self._numpy)
            changes.append(Change("numpy.random", "a state of NumPy's generator", _another()))
        return changes

    def refuse_changes(self) -> None:
        """Undo every change and refuse it.

        Raises:
            CaptureError: the step changed Python state; all changes are named.
        """
        changes = self.undo()
        for i, change in enumerate(changes):
            others = changes[i + 1 :] if collector() is None else []
            refuse(self._refusal(change, ", ".join(other.name for other in others)))

    def abandon(self) -> None:
        """Undo every change: the trace stopped. A collecting capture still tells them."""
        if collector() is None:
            self.undo()
        else:
            self.refuse_changes()

    def _refusal(self, change: Change, others: str) -> CaptureError:
        return CaptureError(
            f"the step changes Python state: {change.name}",
            where=change.line or self.line_of(change),
            got=f"{change.before} -> {change.after}" + (f"\nalso: {others}" if others else ""),
            why="a compiled step does not run its Python again: it would happen once, then never",
            fix=[
                *ways(change.line, change.name),
                "do it outside the step, around the call",
                "keep it in a tensor: register_buffer(...) and an in-place update",
                "return it, and let the caller keep it",
            ],
        )

    def line_of(self, change: Change) -> str | None:
        """The "file:line" that makes a change."""
        sources = [self._step.plain, *self._reach.functions.values()]
        name = change.name.rpartition(".")[2].rpartition(":")[2]
        return line_that_changes(sources, name)

    def _changes(self) -> Iterator[Change]:
        for (owner, mapping), before in zip(self._places, self._before, strict=True):
            for key in list(dict.fromkeys([*before, *_names(mapping)])):
                old = before.get(key, _MISSING)
                new = _frozen(mapping[key]) if key in mapping else _MISSING
                if _same(old, new):
                    continue
                at = (id(mapping.owner), key) if isinstance(mapping, PlainValues) else None
                line = self._written.get(at, "") if at is not None else ""
                yield Change(f"{owner}.{key}" if owner else str(key), _show(old), _show(new), line)
                if old is _MISSING:
                    del mapping[key]
                else:
                    mapping[key] = _thawed(old)


def _another() -> str:
    """What a generator's state became; who else may have drawn from it, the newest thread first.

    Lockstep's own threads draw from generators of their own.
    """
    mine = threading.current_thread()
    names = [thread.name for thread in reversed(threading.enumerate()) if thread is not mine]
    others = [name for name in names if not name.startswith("lockstep-")]
    if not others:
        return "another"
    shown = ", ".join(others[:_THREADS]) + (", ..." if len(others) > _THREADS else "")
    return f"another; or a thread drew meanwhile, one of {shown}: give it a generator of its own"


def _numpy_state() -> tuple[Any, ...] | None:
    """The state of NumPy's global generator; None where nothing has imported it."""
    numpy = sys.modules.get("numpy.random")
    return None if numpy is None else numpy.get_state()


def _same_draws(before: tuple[Any, ...], after: tuple[Any, ...] | None) -> bool:
    return after is not None and [bytes(before[1]), *before[2:]] == [bytes(after[1]), *after[2:]]


class _Missing:
    def __repr__(self) -> str:
        return "nothing"


_MISSING = _Missing()


@dataclass
class _Frozen:
    """A container as it was: itself, and its frozen elements."""

    container: Any
    items: list[tuple[Any, Any]]


class _Cell:
    """A closure's cell as a mapping of one name."""

    def __init__(self, name: str, cell: Any) -> None:
        self._name, self._cell = name, cell

    def __iter__(self) -> Iterator[str]:
        return iter((self._name,))

    def __contains__(self, key: str) -> bool:
        return key == self._name

    def __getitem__(self, key: str) -> Any:
        return self._cell.cell_contents

    def __setitem__(self, key: str, value: Any) -> None:
        self._cell.cell_contents = value


class _Live:
    """A few names of a module's globals, read and written where they live."""

    def __init__(self, live: dict[str, Any], names: list[str]) -> None:
        self._live, self._own = live, names

    def __iter__(self) -> Iterator[str]:
        return iter(self._own)

    def __contains__(self, key: str) -> bool:
        return key in self._live

    def __getitem__(self, key: str) -> Any:
        return self._live[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self._live[key] = value

    def __delitem__(self, key: str) -> None:
        del self._live[key]


def _places(call: Call, state: State, found: Reach) -> Iterator[tuple[str, Any]]:
    """Every mapping of names to Python values in reach: (what owns it, the mapping)."""
    for name, module in state.modules:
        yield name, module.__dict__
    for name, obj in call.objects.items():
        if hasattr(obj, "__dict__"):
            yield name, vars(obj)
    for name, optimizer in state.optimizers:
        yield name, optimizer.__dict__
    by_module: dict[int, tuple[dict[str, Any], list[str]]] = {}
    for label, (_, mapping) in found.values.items():
        if mapping is not None:
            by_module.setdefault(id(mapping), (mapping, []))[1].append(label.rpartition(":")[2])
    for mapping, names in by_module.values():
        yield "", _Live(mapping, names)
    for function in found.functions.values():
        code, closure = function.__code__, function.__closure__ or ()
        for name, cell in zip(code.co_freevars, closure, strict=True):
            if _plain_cell(cell):
                yield "", _Cell(name, cell)


def _plain_cell(cell: Any) -> bool:
    try:
        return isinstance(cell.cell_contents, (*_SCALARS, *_CONTAINERS))
    except ValueError:  # an empty cell
        return False


def _names(mapping: Any) -> list[Any]:
    return [k for k in mapping if k not in _TORCHS and not str(k).startswith("_optimizer_")]


def _frozen(value: Any, depth: int = 0) -> Any:
    if depth >= _DEPTH or not isinstance(value, _CONTAINERS):
        return value
    if isinstance(value, dict):
        return _Frozen(value, [(k, _frozen(v, depth + 1)) for k, v in value.items()])
    if isinstance(value, set):
        return _Frozen(value, [(None, v) for v in sorted(value, key=repr)])
    return _Frozen(value, [(i, _frozen(v, depth + 1)) for i, v in enumerate(value)])


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return True
    if isinstance(a, _Frozen) and isinstance(b, _Frozen):
        if len(a.items) != len(b.items):
            return False
        pairs = zip(a.items, b.items, strict=True)
        return all(ka == kb and _same(va, vb) for (ka, va), (kb, vb) in pairs)
    if isinstance(a, _SCALARS) and isinstance(b, _SCALARS):
        return type(a) is type(b) and (a == b or a != a)
    return a is b


def _thawed(old: Any) -> Any:
    """A container itself, with its old contents put back."""
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
