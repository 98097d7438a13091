"""Random draws that a step repeats: a checkpointed region computes its forward twice.

Eager rewinds the generator and draws the same numbers again. A graph cannot rewind a generator, so
the second forward gets the numbers that the first one drew: the same values, and the stream stands
where eager leaves it. They are kept from the one forward to the other, as no other operation is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import FunctionType
from typing import Any

import torch

from lockstep import _compat
from lockstep._compat import pytree
from lockstep.capture.hooks import swapped
from lockstep.capture.origin import user_line
from lockstep.errors import CaptureError


class Draws(_compat.dispatch_mode()):  # type: ignore[misc]
    """Watches draws and the generator's state while a step is traced.

    A saved state is a place in the log of draws; setting it moves the cursor there, and draws are
    taken from the log until its end. Nothing is logged before a state was first saved.
    """

    def __init__(self) -> None:
        super().__init__()
        self._log: list[tuple[Any, Any]] = []
        self._cursor = 0
        self._rewound = False
        self._saved: dict[int, tuple[Any, int]] = {}  # id of a state -> the state, its place

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Route the generator's state and the draws through this log while inside."""
        swaps: dict[FunctionType, Any] = {
            torch.random.get_rng_state: self._save,  # type: ignore[dict-item]
            torch.random.set_rng_state: self._restore,  # type: ignore[dict-item]
            torch.cuda.random.get_rng_state: self._save,  # type: ignore[dict-item]
            torch.cuda.random.set_rng_state: self._restore,  # type: ignore[dict-item]
            torch.random.manual_seed: _refuse_seed,  # type: ignore[dict-item]
            torch.random.seed: _refuse_seed,  # type: ignore[dict-item]
        }
        with swapped(swaps), self:
            yield

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **(kwargs or {}))
        if self._rewound:
            return self._again(func, args)
        drawn = func(*args, **(kwargs or {}))
        if self._saved:
            self._log.append((func, pytree.tree_map_only(torch.Tensor, torch.clone, drawn)))
            self._cursor = len(self._log)
        return drawn

    def _again(self, func: Any, args: Any) -> Any:
        if self._cursor == len(self._log) or self._log[self._cursor][0] is not func:
            raise CaptureError(
                "a recomputed region draws other random numbers than its first forward",
                where=user_line(),
                got=str(func),
                why="a graph takes them from the first forward, which drew no such numbers",
                fix="draw the same in both forwards, or leave this region out of checkpointing",
            )
        known = self._log[self._cursor][1]
        self._cursor += 1
        if _compat.schema(func).is_mutable:
            return args[0].copy_(known)
        return pytree.tree_map_only(torch.Tensor, torch.clone, known)

    def _save(self, original: Any, args: Any, kwargs: Any) -> Any:
        state = torch.empty(0, dtype=torch.uint8)
        self._saved[id(state)] = (state, self._cursor)
        return state

    def _restore(self, original: Any, args: Any, kwargs: Any) -> None:
        state = args[0] if args else kwargs["new_state"]
        if id(state) not in self._saved:
            raise _seed_error("sets the state of the random generator")
        self._cursor = self._saved[id(state)][1]
        self._rewound = self._cursor < len(self._log)


def _refuse_seed(original: Any, args: Any, kwargs: Any) -> Any:
    raise _seed_error("seeds the random generator")


def _seed_error(what: str) -> CaptureError:
    return CaptureError(
        f"the step {what}",
        where=user_line(),
        why="a program does not run its Python again: it would happen once, then never",
        fix="seed outside the step, before the call",
    )
