"""What a call compares in place of the whole key tells the same calls apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from lockstep.capture.binding import Step
from lockstep.run.key import Bound
from lockstep.run.same import Same
from lockstep.run.watch import Watch

nn = torch.nn


def function(model: Any, *batch: Any, **more: Any) -> Any:
    return model(batch[0])


def call_of(step: Step, model: Any, *batch: Any, **more: Any) -> Any:
    return step.call((model, *batch), more)


X = torch.zeros(4, 3)
BATCHES: dict[str, Callable[[], tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "one": lambda: ((X,), {}),
    "another shape": lambda: ((torch.zeros(5, 3),), {}),
    "another dtype": lambda: ((X.double(),), {}),
    "other strides": lambda: ((torch.zeros(3, 4).T,), {}),
    "needs grad": lambda: ((X.clone().requires_grad_(),), {}),
    "two": lambda: ((X, X.clone()), {}),
    "one twice": lambda: ((X, X), {}),
    "in a list": lambda: (([X],), {}),
    "in a tuple": lambda: (((X,),), {}),
    "in a dictionary": lambda: (({"x": X},), {}),
    "with a flag": lambda: ((X,), {"flag": True}),
    "with another flag": lambda: ((X,), {"flag": False}),
    "with a number": lambda: ((X,), {"flag": 1}),
    "under another name": lambda: ((X,), {"other": True}),
    "with two flags": lambda: ((X,), {"flag": True, "other": True}),
    "with an empty list": lambda: ((X, []), {}),
}


def test_calls_are_told_apart_as_by_the_whole_key() -> None:
    step, model = Step(function), nn.Linear(3, 2)
    bound = Bound(step, call_of(step, model, X))
    seen: dict[str, tuple[Any, Any]] = {}
    for name, batch in BATCHES.items():
        args, more = batch()
        calls = [call_of(step, model, *args, **more) for _ in range(2)]
        assert bound.quick_key(calls[0]) == bound.quick_key(calls[1])
        seen[name] = bound.quick_key(calls[0]), bound.key(calls[0])
    assert len({quick for quick, _ in seen.values()}) == len(BATCHES)
    assert len({key for _, key in seen.values()}) == len(BATCHES)


def test_arguments_are_taken_apart_as_a_tree_is() -> None:
    step, model = Step(function), nn.Linear(3, 2)
    for _ in range(2):  # the second time by their types alone
        call = call_of(step, model, X, 3, flag=True)
        assert call.names == ["model", "batch[0]", "batch[1]", "flag"]
        args, more = call.arguments(call.leaves)
        assert args[0] is model and args[1] is X and (args[2:], more) == ((3,), {"flag": True})
    with pytest.raises(TypeError, match="function"):
        step.call((), {})


def freeze(model: Any) -> None:
    model.weight.requires_grad_(False)


def give_gradient(model: Any) -> None:
    model.weight.grad = torch.zeros(2, 3)


def reshape(model: Any) -> None:
    model.weight.data = torch.zeros(5, 3)


def cast(model: Any) -> None:
    model.bias.data = model.bias.data.double()


@pytest.mark.parametrize("change", [freeze, give_gradient, reshape, cast, nn.Module.eval])
def test_a_change_of_the_model_is_seen(change: Callable[[Any], Any]) -> None:
    step, model = Step(function), nn.Linear(3, 2)
    call = call_of(step, model, X)
    bound = Bound(step, call)
    before = bound.quick_key(call), bound.key(call)
    change(model)
    assert bound.quick_key(call) != before[0] and bound.key(call) != before[1]


@pytest.mark.parametrize(
    "mode", [torch.no_grad, lambda: torch.autocast("cpu", dtype=torch.bfloat16)]
)
def test_a_mode_is_seen(mode: Callable[[], Any]) -> None:
    step, model = Step(function), nn.Linear(3, 2)
    call = call_of(step, model, X)
    bound = Bound(step, call)
    before = bound.quick_key(call)
    with mode():
        assert bound.quick_key(call) != before
    assert bound.quick_key(call) == before


class Holder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(3, 2, bias=False), nn.ReLU())


@pytest.mark.parametrize(
    "change",
    [
        lambda m: setattr(m.inner[0], "weight", nn.Parameter(torch.zeros(2, 3))),
        lambda m: setattr(m.inner[0], "bias", nn.Parameter(torch.zeros(2))),
        lambda m: m.inner[0].register_buffer("scale", torch.ones(1)),
        lambda m: m.inner[1].add_module("late", nn.Linear(1, 1)),
        lambda m: m.inner.append(nn.Tanh()),
        lambda m: m.inner.__setitem__(1, nn.Tanh()),
        lambda m: setattr(m.inner[1], "table", torch.ones(1)),
    ],
)
def test_what_is_put_in_a_model_is_seen(change: Callable[[Any], Any]) -> None:
    step, model = Step(function), Holder()
    call = call_of(step, model, X)
    bound = Bound(step, call)
    assert bound.holds(call)
    change(model)
    assert not bound.holds(call)


def test_a_hook_of_every_module_is_seen() -> None:
    step, model = Step(function), Holder()
    call = call_of(step, model, X)
    bound = Bound(step, call)
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        assert not bound.holds(call)
    finally:
        handle.remove()
    assert bound.holds(call)


def test_each_kind_of_container_is_compared() -> None:
    table, row, empty, sized = {"a": 1}, [object()], [], {1}
    same = Same([(table, "a", 1), (table, "b", None)], [row, empty], [sized])
    assert same.holds()
    for change, back in (
        (lambda: table.update(a=2), lambda: table.update(a=1)),
        (lambda: table.update(b=2), lambda: table.pop("b")),
        (lambda: row.append(3), lambda: row.pop()),
        (lambda: empty.append(3), lambda: empty.pop()),
        (lambda: sized.add(3), lambda: sized.remove(3)),
    ):
        change()
        assert not same.holds()
        back()
        assert same.holds()
    row[0] = object()
    assert not same.holds()


def test_an_equal_value_in_another_object_holds_and_is_watched_on() -> None:
    held: dict[str, Any] = {"rows": [1.5, [2]], "rate": 0.5, "name": "a"}
    watched = Watch([(held, key, value) for key, value in held.items()], [], [])
    first = held["rows"]
    held.update(rows=[float("1.5"), [2]], rate=float("0.5"))
    assert watched.holds() and watched.holds()
    first.append(3)  # nobody holds it any more
    assert watched.holds()
    for change, back in (
        (lambda: held["rows"][1].append(3), lambda: held["rows"][1].pop()),
        (lambda: held.update(rate=0.25), lambda: held.update(rate=0.5)),
        (lambda: held.update(rate=1), lambda: held.update(rate=0.5)),
        (lambda: held.update(name="b"), lambda: held.update(name="a")),
        (lambda: held.pop("name"), lambda: held.update(name="a")),
    ):
        change()
        assert not watched.holds()
        back()
        assert watched.holds()


def test_a_long_list_is_compared_by_its_first_elements_and_its_length() -> None:
    held = {"rows": list(range(1000))}
    watched = Watch([(held, "rows", held["rows"])], [], [])
    held["rows"][500] = -1
    assert watched.holds()
    held["rows"][5] = -1
    assert not watched.holds()
    held["rows"][5] = 5
    held["rows"].append(1)
    assert not watched.holds()
