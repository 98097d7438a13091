"""The key of a variant: everything that could make the next call another program.

It is checked at every call, so it is a tuple of cheap reads. What is cheaper to compare than to
read anew (identities, Python attributes) is held by `Bound` and only rebuilt when something moved.
"""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from typing import Any

import torch

from lockstep.build.values import show
from lockstep.capture.binding import WRITTEN, Call, Step, describe
from lockstep.capture.layout import is_dtensor, layout_of, local_of
from lockstep.capture.optimizers import lifted
from lockstep.capture.plain import refuse_odd_arguments
from lockstep.capture.reach import Reach, reach
from lockstep.capture.sizes import Size, loose_stride
from lockstep.capture.state import State, collect
from lockstep.run.held import Held
from lockstep.run.same import Place
from lockstep.run.watch import SCALAR, Watch, snapshot
from lockstep.spmd.mesh import default_device_type


class Bound:
    """The state below a call's roots, as found once, and the means to see that it still holds.

    Args:
        step, call: as taken apart for a call; later calls with the same roots reuse this.
    """

    def __init__(self, step: Step, call: Call) -> None:
        self.step = step
        self.state: State = collect(call)
        self.objects = dict(call.objects)
        self._held = Held(self.state, call)
        self.reach = reach(step, call, self.state)
        self.parameters = [slot.tensor for slot in self.state.parameters]
        self._divided = [p for p in self.parameters if is_dtensor(p)]
        self._order = {id(p): -i for i, p in enumerate(self.parameters, 1)}
        self._modules = [module for _, module in self.state.modules]
        places = _watched(call, self.state, self.reach)
        self._watch = Watch(places, self._modules, self.parameters)
        groups, scalars = tuple(_groups(self.state)), self.state.scalars
        self._positive = [scalar for scalar in scalars if scalar.positive]
        names = tuple([scalar.name for scalar in scalars])
        self.signature = (_layout(self.state), groups, names, self._watch.signature)
        # What dies with this state: how each variant is bound to it, and by what calls it is met.
        self.plans: dict[Any, Any] = {}
        self.known: dict[tuple[Any, ...], Any] = {}
        self._met = _Numbers()

    def holds(self, call: Call) -> bool:
        """Whether this state is still what lies below the call's roots."""
        if not (self._held.holds(call) and self._watch.holds()):
            return False
        return all([scalar.get() > 0 for scalar in self._positive])

    def key(
        self, call: Call, loose: Mapping[int, Mapping[int, Size]] | None = None
    ) -> tuple[Any, ...]:
        """The variant's key for this call; hashable.

        Args:
            loose: by leaf, the dimensions whose sizes may differ; None: no size may.
        """
        return (
            call.spec,
            self._leaves(call, loose),
            self.signature,
            tuple(self._of_parameters()),
            tuple(self._training()),
            self._switches(),
            modes(),
        )

    def asked(self, call: Call) -> tuple[Any, ...]:
        """What of the key is about the call alone, whatever state earlier ones have left."""
        return call.spec, self._leaves(call, None), tuple(self._training()), modes()

    def quick_key(
        self, call: Call, loose: Mapping[int, Mapping[int, Size]] | None = None
    ) -> tuple[Any, ...]:
        """What tells two calls apart for which this holds; for a table that is this object's.

        Args:
            call: of the step that this was made for.
            loose: as for the key.
        """
        met = self._met.number
        numbers = met(self._of_parameters()), met(self._training())
        return (call.tree, self._leaves(call, loose), *numbers, self._switches(), modes())

    def _of_parameters(self) -> list[tuple[Any, ...]]:
        found = [(p.requires_grad, p.grad is None, p.shape, p.dtype) for p in self.parameters]
        return [*found, *[_placements(p.grad) for p in self._divided]]

    def _training(self) -> list[bool]:
        return list(map(_TRAINING, self._modules))

    def _switches(self) -> tuple[tuple[bool, bool], ...]:
        return tuple([wrapper.switches for wrapper in self.state.wrappers])

    def _leaves(
        self, call: Call, loose: Mapping[int, Mapping[int, Size]] | None
    ) -> tuple[Any, ...]:
        try:
            leaves = self._each_leaf(call)
            return _loosened(leaves, loose) if loose else leaves
        except (RuntimeError, NotImplementedError):  # some odd tensors have no strides
            refuse_odd_arguments(call)
            raise

    def _each_leaf(self, call: Call) -> tuple[Any, ...]:
        order, seen = self._order, dict[int, int]()
        found: list[tuple[Any, ...]] = []
        for i, leaf in enumerate(call.leaves):
            if isinstance(leaf, torch.Tensor):
                first = order.get(id(leaf)) or seen.setdefault(id(leaf), i)
                looks = (leaf.dtype, leaf.device, leaf.requires_grad)
                found.append((first, leaf.shape, leaf.stride(), *looks, *self._marks(leaf)))
            elif isinstance(leaf, float):
                found.append((float,))
            elif isinstance(leaf, SCALAR):
                found.append((type(leaf), leaf))
            elif isinstance(leaf, WRITTEN):
                found.append((type(leaf), repr(leaf)))
            else:
                found.append((number_of(leaf), snapshot(leaf)))
        return tuple(found)

    def _marks(self, leaf: torch.Tensor) -> tuple[Any, ...]:
        """What the step may read of an argument that somebody has set on it."""
        if not vars(leaf):
            return ()
        return tuple((name, snapshot(value)) for name, value in self.reach.readable(leaf))


_TRAINING = attrgetter("training")


class _Numbers:
    """A number for each list that was met, the same for equal ones: they are long to hash."""

    def __init__(self) -> None:
        self._lists: list[list[Any]] = []

    def number(self, found: list[Any]) -> int:
        for number, known in enumerate(self._lists):
            if found == known:
                return number
        self._lists.append(found)
        return len(self._lists) - 1


def _placements(grad: torch.Tensor | None) -> Any:
    """How a gradient is divided, which may change from call to call."""
    return getattr(grad, "placements", None)


def _loosened(leaves: tuple[Any, ...], loose: Mapping[int, Mapping[int, Size]]) -> tuple[Any, ...]:
    """What the key says of leaves, without the sizes that may differ."""
    found = list(leaves)
    for i, dims in loose.items():
        first, shape, stride, *rest = found[i]
        open_ = tuple(None if d in dims else size for d, size in enumerate(shape))
        found[i] = (first, open_, loose_stride(shape, stride, dims), *rest)
    return tuple(found)


_numbers: dict[int, tuple[Callable[[], Any], int]] = {}


def number_of(thing: Any) -> int:
    """A number for an object, never used again; its `id` may be, on one rank and not on another.

    Example:
        >>> number_of(modes) == number_of(modes), number_of(modes) == number_of(number_of)
        (True, False)
    """
    known = _numbers.get(id(thing))
    if known is not None and known[0]() is thing:
        return known[1]
    try:
        reference: Callable[[], Any] = weakref.ref(thing)
    except TypeError:  # no weak reference can be made: it is kept
        reference = functools.partial(_itself, thing)
    number = next(_count)
    _numbers[id(thing)] = (reference, number)
    return number


_count = itertools.count()


def _itself(thing: Any) -> Any:
    return thing


def modes() -> tuple[Any, ...]:
    """The ambient modes that change what operations do."""
    casts = [
        torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        for kind in _device_kinds()
    ]
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        *casts,
    )


@functools.cache
def _device_kinds() -> tuple[str, ...]:
    kind = default_device_type()  # asking anew would cost more than all the rest of the key
    return ("cpu",) if kind == "cpu" else ("cpu", kind)


def contract(
    call: Call, bound: Bound, loose: Mapping[int, Mapping[int, Size]] | None = None
) -> dict[str, Any]:
    """The key in words, the same on every rank: what the ranks agree on and an error names.

    Args:
        loose: as for the key; a range stands where a size may differ.

    Returns:
        Field -> JSON value; "tokens": "i64[4, 64]", "model.norm.weight": "f32[64] needs grad".
    """
    refuse_odd_arguments(call)
    fields: dict[str, Any] = {}
    for i, (name, leaf) in enumerate(zip(call.names, call.leaves, strict=True)):
        if name in call.objects:  # its attributes that the step may read are told beside it
            fields[name] = f"a {type(leaf).__qualname__}"
        else:
            fields[name] = _leaf_words(leaf, (loose or {}).get(i))
    same: dict[int, str] = {}
    for name, leaf in zip(call.names, call.leaves, strict=True):
        if isinstance(leaf, torch.Tensor) and same.setdefault(id(leaf), name) != name:
            fields[name] += f", the same tensor as {same[id(leaf)]}"
    for slot in bound.state.slots:
        fields[slot.name] = _slot_words(slot)
    for name, module in bound.state.modules:
        fields[f"{name}.training"] = module.training
    for wrapper in bound.state.wrappers:
        fields[f"{wrapper.name} wrapped by {wrapper.kind}"] = wrapper.words(bound.state.names)
    fields["argument tree"] = str(call.spec)
    casts = [f"autocast {kind}" for kind in _device_kinds()]
    names = ("grad", "inference", "deterministic", *casts)
    for name, value in zip(names, modes(), strict=False):
        fields[f"mode {name}"] = value if isinstance(value, bool) else str(value)
    for name, optimizer in bound.state.optimizers:
        for g, group in enumerate(optimizer.param_groups):
            read = {"params", *lifted(group)}
            baked = {k: show(v) for k, v in group.items() if k not in read}
            fields[f"{name}.group{g}"] = {k: v for k, v in baked.items() if not k.endswith("_lr")}
    for name, members in _groups(bound.state):
        fields[f"{name}.params"] = ", ".join(members)
    return fields


def _leaf_words(leaf: Any, dims: Mapping[int, Size] | None = None) -> Any:
    if isinstance(leaf, torch.Tensor):
        words = describe(leaf)
        if dims:
            shape = [dims[d].ends if d in dims else str(n) for d, n in enumerate(leaf.shape)]
            words = words.replace(str(list(leaf.shape)), f"[{', '.join(shape)}]")
        if not leaf.is_contiguous():
            words += f" strides {list(leaf.stride())}"
        return words + (" needs grad" if leaf.requires_grad else "")
    if isinstance(leaf, float):
        return "a float, read at each call"
    return show(leaf)


def _slot_words(slot: Any) -> str:
    tensor = slot.tensor
    words = _leaf_words(local_of(tensor)) + _divided(slot.name, tensor)
    if is_dtensor(tensor) and tensor.requires_grad:
        words += " needs grad"
    if slot.kind == "param" and tensor.requires_grad:
        words += ", no .grad" if tensor.grad is None else ", has .grad"
        words += _divided(f"{slot.name}.grad", tensor.grad)
    ties = [holder.name for holder in slot.holders[1:]]
    return words + (f", tied to {', '.join(ties)}" if ties else "")


def _divided(name: str, tensor: Any) -> str:
    layout = layout_of(name, tensor)
    return f", as {layout.text}" if layout is not None else ""


def _layout(state: State) -> tuple[Any, ...]:
    return tuple(
        (
            tuple(h.name for h in slot.holders),
            slot.kind,
            slot.tensor.shape,
            slot.tensor.stride(),
            slot.tensor.dtype,
            slot.tensor.device.type,
            layout_of(slot.name, slot.tensor),
        )
        for slot in state.slots
    )


def _groups(state: State) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Which parameters each of an optimizer's groups steps, by name."""
    named = {id(slot.tensor): slot.name for slot in state.parameters}
    for name, optimizer in state.optimizers:
        for g, group in enumerate(optimizer.param_groups):
            yield f"{name}.group{g}", tuple([named[id(p)] for p in group["params"]])


def _watched(call: Call, state: State, found: Reach) -> Iterator[Place]:
    """Python values that the step may read."""
    owners: list[Any] = [module for _, module in state.modules]
    owners += [slot.tensor for slot in state.slots if vars(slot.tensor)]
    owners += [obj for obj in call.objects.values() if hasattr(obj, "__dict__")]
    for owner in owners:
        for key, value in found.readable(owner):
            if key in vars(owner):  # what lies in slots is not watched
                yield vars(owner), key, value
    for label, (value, mapping) in found.values.items():
        if mapping is not None:
            yield mapping, label.rpartition(":")[2], value
    yield from found.places
    for _, optimizer in state.optimizers:
        for group in optimizer.param_groups:
            for key, value in group.items():
                read = key in lifted(group) or key.endswith("_lr")
                if isinstance(value, SCALAR) and not read:
                    yield group, key, value
