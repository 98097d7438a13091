"""What a call's key sees of Python values, and what it leaves alone."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import pytest
import torch

from lockstep.run.watch import Watch, snapshot


@dataclasses.dataclass
class Options:
    eps: float = 1e-5


@dataclasses.dataclass(slots=True)
class Slotted:
    eps: float = 1e-5


@dataclasses.dataclass(frozen=True, slots=True)
class FrozenSlotted:
    eps: float = 1e-5


@dataclasses.dataclass(frozen=True)
class Frozen:
    eps: float = 1e-5
    sizes: tuple[int, ...] = (1, 2)


def watch(**values: Any) -> tuple[Watch, dict[str, Any]]:
    held = dict(values)
    return Watch([(held, key, value) for key, value in held.items()], [], []), held


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (1, 2),
        (1, 1.0),
        (1, True),
        (None, 0),
        ("a", "b"),
        (torch.relu, torch.tanh),
        (functools.partial(max, 1), functools.partial(max, 2)),
        (torch.float32, torch.bfloat16),
        ((1, 2), (1, 3)),
        ((1, 2), [1, 2]),
        (Options(), Options(1e-6)),
        (Frozen(), Frozen(1e-6)),
        (Slotted(), Slotted(1e-6)),
        (FrozenSlotted(), FrozenSlotted(1e-6)),
        (int, float),
    ],
)
def test_another_value_is_seen(before: Any, after: Any) -> None:
    watched, held = watch(x=before)
    assert watched.holds()
    held["x"] = after
    assert not watched.holds()
    assert watch(x=before)[0].signature != watch(x=after)[0].signature
    held["x"] = before
    assert watched.holds()


@pytest.mark.parametrize(
    ("value", "change", "back"),
    [
        ([1, 2], lambda v: v.append(3), lambda v: v.pop()),
        ({"a": 1}, lambda v: v.update(a=2), lambda v: v.update(a=1)),
        ({"a": [1]}, lambda v: v["a"].append(2), lambda v: v["a"].pop()),
        ({1, 2}, lambda v: v.add(3), lambda v: v.remove(3)),
        (Options(), lambda v: setattr(v, "eps", 0.1), lambda v: setattr(v, "eps", 1e-5)),
        (Slotted(), lambda v: setattr(v, "eps", 0.1), lambda v: setattr(v, "eps", 1e-5)),
    ],
)
def test_a_change_in_place_is_seen(value: Any, change: Any, back: Any) -> None:
    watched, _ = watch(x=value)
    assert watched.holds()
    change(value)
    assert not watched.holds()
    back(value)
    assert watched.holds()


def test_a_foreign_object_is_left_alone() -> None:
    watched, held = watch(x=object())
    held["x"] = object()
    assert watched.holds()
    assert snapshot(object()) == snapshot(object())


def test_a_picture_is_bounded() -> None:
    assert hash(snapshot(list(range(10**5)))) != hash(snapshot(list(range(10**5 + 1))))
    assert len(snapshot(list(range(10**5)))[2]) == 64


def test_hooks_of_modules_and_parameters() -> None:
    layer = torch.nn.Linear(2, 2)
    watched = Watch([], [layer], [layer.weight, layer.bias])
    assert watched.holds()
    for register in (
        layer.register_forward_hook,
        layer.register_forward_pre_hook,
        layer.register_full_backward_hook,
        layer.register_full_backward_pre_hook,
        layer.bias.register_hook,
        layer.bias.register_post_accumulate_grad_hook,
    ):
        handle = register(lambda *_: None)
        assert not watched.holds(), register
        changed = Watch([], [layer], [layer.weight, layer.bias])
        assert changed.holds() and changed.signature != watched.signature
        handle.remove()
        assert watched.holds() and not changed.holds()
