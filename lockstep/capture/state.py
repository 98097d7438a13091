"""The tensors that a step reads and writes beyond its arguments, by name and by holder.

A holder is the dictionary entry that a tensor sits in: a module's parameter, buffer or plain
attribute, an optimizer's state. Tied weights are one tensor with several holders.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass, field
from typing import Any

import torch

from lockstep import _compat
from lockstep.capture.binding import Call, Root
from lockstep.capture.origin import user_line
from lockstep.capture.plain import refuse_odd, refuse_odd_arguments
from lockstep.capture.wrapped.kinds import Wrapping, wrappings_of
from lockstep.errors import CaptureError


@dataclass(frozen=True)
class Holder:
    """One place that holds a tensor: `mapping[key]`, called `name` in messages and manifests."""

    name: str
    mapping: MutableMapping[Any, Any]
    key: Any

    def get(self) -> Any:
        return self.mapping.get(self.key)


@dataclass
class Slot:
    """One tensor of the state. `kind` is "param", "buffer", "attr" or "state"."""

    kind: str
    tensor: torch.Tensor
    holders: list[Holder] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.holders[0].name

    def held(self) -> bool:
        """Whether every holder still holds this very tensor."""
        tensor = self.tensor
        return all(h.mapping.get(h.key) is tensor for h in self.holders)


@dataclass
class Scalar:
    """A Python float that is read anew at each call: an optimizer's learning rate.

    Args:
        name: "optimizer.group0.lr".
        mapping, key, index: where it is; an index where a tuple lies there.
        positive: whether the program takes for granted that it is above 0.
    """

    name: str
    mapping: MutableMapping[Any, Any]
    key: Any
    index: int | None = None
    positive: bool = False

    def get(self) -> float:
        value = self.mapping[self.key]
        return float(value if self.index is None else value[self.index])


@dataclass
class State:
    """Everything found below a call's roots."""

    slots: list[Slot] = field(default_factory=list)
    scalars: list[Scalar] = field(default_factory=list)
    modules: list[tuple[str, torch.nn.Module]] = field(default_factory=list)
    optimizers: list[tuple[str, torch.optim.Optimizer]] = field(default_factory=list)
    wrappers: list[Wrapping] = field(default_factory=list)
    switched: dict[str, Any] = field(default_factory=dict)  # by the last trace; see `wrapping`

    @property
    def parameters(self) -> list[Slot]:
        return [slot for slot in self.slots if slot.kind == "param"]

    @property
    def names(self) -> dict[int, str]:
        """The name of each parameter, by its id."""
        return {id(slot.tensor): slot.name for slot in self.parameters}


def collect(call: Call) -> State:
    """Find all state below a call's roots, in an order that is the same on every rank.

    Raises:
        CaptureError: a model wrapped by FSDP or DataParallel, a tensor subclass, or an optimizer
            whose parameters belong to no module that the step reaches.
    """
    state = State()
    known: dict[int, Slot] = {}
    refuse_odd_arguments(call)
    optimizers = {n: r for n, r in call.roots.items() if isinstance(r, torch.optim.Optimizer)}
    for name, root in call.roots.items():
        if isinstance(root, torch.nn.Module):
            _add_module(state, known, name, root)
    for name, obj in call.objects.items():
        for key, value in list(getattr(obj, "__dict__", {}).items()):
            if isinstance(value, torch.Tensor):
                _add(state, known, "attr", value, Holder(f"{name}.{key}", vars(obj), key))
    if optimizers:
        from lockstep.capture.optimizers import add_optimizer

        for name, optimizer in optimizers.items():
            add_optimizer(state, known, name, optimizer)
    return state


def _add_module(state: State, known: dict[int, Slot], root: str, module: torch.nn.Module) -> None:
    seen = {id(m) for _, m in state.modules}
    for path, child in module.named_modules():
        name = f"{root}.{path}" if path else root
        refuse_wrapped(name, child)
        if id(child) not in seen:
            state.modules.append((name, child))
            state.wrappers += wrappings_of(name, child)
    # Also a module that is reachable by two paths holds its tensors once.
    for path, child in module.named_modules():
        if id(child) in seen:
            continue
        name = f"{root}.{path}" if path else root
        for kind, mapping in _mappings(child):
            for key, value in list(mapping.items()):
                if isinstance(value, torch.Tensor):
                    _add(state, known, kind, value, Holder(f"{name}.{key}", mapping, key))


def _mappings(module: torch.nn.Module) -> Iterator[tuple[str, MutableMapping[str, Any]]]:
    parameters, buffers, _ = _compat.module_tables(module)
    yield "param", parameters
    yield "buffer", buffers
    yield "attr", module.__dict__


def _add(
    state: State, known: dict[int, Slot], kind: str, tensor: torch.Tensor, holder: Holder
) -> None:
    refuse_odd(holder.name, tensor)
    if id(tensor) not in known:
        known[id(tensor)] = Slot(kind, tensor)
        state.slots.append(known[id(tensor)])
    known[id(tensor)].holders.append(holder)


def refuse_wrapped(name: str, module: torch.nn.Module) -> None:
    """Refuse models whose gradient reduction happens outside of what a capture sees.

    Raises:
        CaptureError: the module is wrapped by DataParallel or FSDP1, or made by torch.jit.
    """
    if isinstance(module, torch.jit.ScriptModule):
        raise CaptureError(
            f"{name} is made by torch.jit",
            where=user_line() or None,
            got=type(module).__name__,
            want="the plain module",
            why="its parameters are held where nothing can take their place in a capture",
            fix="pass the module itself: leave torch.jit.script and torch.jit.trace out",
        )
    wrapper = _wrapper_of(module)
    if wrapper is None:
        return
    raise CaptureError(
        f"{name} is wrapped by {wrapper}",
        where=user_line() or None,  # where the step is called with it
        got=f"{wrapper} around {type(getattr(module, 'module', module)).__name__}",
        want="the plain model",
        why=f"{wrapper} reduces gradients in hooks that no captured graph would hold",
        fix=[
            'pass the plain model and call ls.reduce_grads(model, dp="mean") after backward()',
            *([_SHARDED] if wrapper.startswith("F") else []),
        ],
    )


_SHARDED = 'pass the plain model, sharded by lockstep.parallel.fully_shard(model, "fsdp")'


def _wrapper_of(module: torch.nn.Module) -> str | None:
    if isinstance(module, torch.nn.DataParallel):
        return "DataParallel"
    kinds = {kind.__name__ for kind in type(module).__mro__}
    return next((k for k in ("FullyShardedDataParallel",) if k in kinds), None)


def tensor_holders(state: State, call: Call) -> Iterator[Holder]:
    """Every entry that holds a tensor now, in any module or object of the call."""
    for name, module in state.modules:
        for _, mapping in _mappings(module):
            for key, value in list(mapping.items()):
                if isinstance(value, torch.Tensor):
                    yield Holder(f"{name}.{key}", mapping, key)
    for name, obj in call.objects.items():
        for key, value in list(getattr(obj, "__dict__", {}).items()):
            if isinstance(value, torch.Tensor):
                yield Holder(f"{name}.{key}", vars(obj), key)


__all__ = ["Call", "Holder", "Root", "Scalar", "Slot", "State", "collect"]
