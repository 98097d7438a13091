"""Whether the objects below a call's roots are still the ones that were found there.

A tensor is found by the containers that lead to it: a model's modules and their tables, an
optimizer's groups and state. Each of them may be replaced between two calls, as loading a
checkpoint does, and what sat in it is then no longer what the step would use.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from operator import is_
from typing import Any

import torch

from lockstep import _compat
from lockstep.capture.binding import CODE, Call
from lockstep.capture.state import State
from lockstep.run.same import Place, Same


class Held:
    """What the containers of a state hold, by identity.

    Args:
        state, call: as found for a call. Its roots and objects are part of what is held.
    """

    def __init__(self, state: State, call: Call) -> None:
        self._above = _above(call)
        self._optimizers = [(o, o.state, o.param_groups) for _, o in state.optimizers]
        # A frozen parameter has no state with its optimizer, and is given some once it is freed.
        self._stateless = [p for _, o in state.optimizers for p in _frozen(o)]
        places = [*_places(state)]
        self._same = Same(places, _containers(state), _attributes(state, call))

    def holds(self, call: Call) -> bool:
        """Whether every container still holds the very objects that it held."""
        above = _above(call)
        if len(above) != len(self._above) or not all(map(is_, above, self._above)):
            return False
        for optimizer, state, groups in self._optimizers:
            if optimizer.state is not state or optimizer.param_groups is not groups:
                return False
        if not self._same.holds():
            return False
        return not any(parameter.requires_grad for parameter in self._stateless)


def _above(call: Call) -> list[Any]:
    functions = [leaf for leaf in call.leaves if isinstance(leaf, CODE)]
    return [*call.roots.values(), *call.objects.values(), *functions]


def _places(state: State) -> Iterator[Place]:
    """Each entry that holds a tensor, or nothing where one may be put."""
    for slot in state.slots:
        for holder in slot.holders:
            yield holder.mapping, holder.key, slot.tensor
    for _, module in state.modules:
        for table in _compat.module_tables(module)[:2]:
            yield from ((table, key, None) for key, value in table.items() if value is None)


def _attributes(state: State, call: Call) -> Iterator[Collection[Any]]:
    """Where a tensor may be added beside those that are held."""
    for _, module in state.modules:
        yield from _compat.module_tables(module)[:2]
        yield module.__dict__
    for obj in call.objects.values():
        if hasattr(obj, "__dict__"):
            yield vars(obj)


def _containers(state: State) -> Iterator[Collection[Any]]:
    """The containers of containers: they are compared by all that is in them."""
    for _, module in state.modules:
        yield _compat.module_tables(module)[2].values()
    for _, optimizer in state.optimizers:
        yield optimizer.state.values()
        yield optimizer.param_groups
        for group in optimizer.param_groups:
            yield group["params"]


def _frozen(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if not parameter.requires_grad and not optimizer.state.get(parameter):
                yield parameter
