"""What a call of a step has done, as digests by name: gradients, state, arguments, outputs.

Digests, so that two runs are compared while only one of them is in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from lockstep._compat import pytree
from lockstep.capture.binding import Call
from lockstep.capture.indexing import plain
from lockstep.capture.state import State, tensor_holders
from lockstep.run.bits import digest
from lockstep.run.put_back import streams

GRADIENT = ".grad"
Outcome = dict[str, str]


def outcome(result: Any, call: Call, state: State) -> Outcome:
    """What is there after a call, in the order of the model: name -> digest of its bits.

    Args:
        result: what the call returned.
    """
    found = {f"{slot.name}{GRADIENT}": _told(slot.tensor.grad) for slot in state.parameters}
    found |= {f"output {i}": _told(x) for i, x in enumerate(pytree.tree_leaves(plain(result)))}
    found |= {holder.name: _told(holder.get()) for holder in tensor_holders(state, call)}
    found |= dict(_of_optimizers(state))
    for name, leaf in zip(call.names, call.leaves, strict=True):
        if isinstance(leaf, torch.Tensor):
            found[f"argument {name}"] = _told(leaf)
    found |= {f"random stream of {kind}": digest(state) for kind, state in streams().items()}
    return found


def differing(one: Outcome, other: Outcome) -> list[str]:
    """The names under which two outcomes differ, gradients first, in the order of the model."""
    names = [name for name in dict.fromkeys([*one, *other]) if one.get(name) != other.get(name)]
    return sorted(names, key=lambda name: not name.endswith(GRADIENT))


def _of_optimizers(state: State) -> Iterator[tuple[str, str]]:
    for slot in state.slots:
        if slot.kind == "state":
            yield slot.name, _told(slot.holders[0].get())


def _told(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return digest(value) if value.layout is torch.strided else f"{value.layout}"
    return f"{type(value).__name__} {value!r}"
