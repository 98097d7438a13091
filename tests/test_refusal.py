"""Refusals are raised, or collected while the trace goes on; either way all is put back."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import lockstep as ls
from lockstep.capture.capture import capture
from lockstep.capture.refusal import Obstacles, collecting, collector, refuse
from lockstep.errors import CaptureError, LockstepError
from lockstep.report.capture_check import CaptureCheck, Captured, Enough, capture_all
from lockstep.run.modes import calls_go_to

HIDDEN = {"weight": nn.Parameter(torch.ones(3)), "scale": torch.full((3,), 2.0)}


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.seen: list[int] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(1)
        return (self.weight * x).sum()


def collected(step: Any, *args: Any) -> list[str]:
    """The first lines of what a collecting capture refuses."""
    return [text.splitlines()[0] for text in capture_all(ls.compile(step), args, {}).obstacles]


def test_a_refusal_is_raised_where_nothing_collects():
    assert collector() is None
    with pytest.raises(LockstepError, match="odd"):
        refuse(LockstepError("odd"))


def test_a_refusal_is_kept_once_where_something_collects():
    thing = object()
    with collecting(Obstacles()) as obstacles:
        assert collector() is obstacles
        refuse(LockstepError("one"))
        refuse(LockstepError("one"))
        refuse(LockstepError("two"), about=thing)
        refuse(LockstepError("two, in other words"), about=thing)
    assert [error.what for error in obstacles.found] == ["one", "two"]
    assert collector() is None


def test_a_branch_goes_true_once_and_then_false_or_as_assumed():
    free, bound = Obstacles(), Obstacles({"a:1": False})
    assert [free.side("a:1"), free.side("a:2"), free.side("a:1")] == [True, True, False]
    assert [bound.side("a:1"), bound.side("a:2")] == [False, True]
    assert bound.taken == ["a:1", "a:2"]


def test_the_model_is_as_it_was_after_a_collecting_capture():
    def step(model: Model, x: torch.Tensor) -> torch.Tensor:
        loss = model(x)
        if loss > 0:
            loss = loss * HIDDEN["scale"].sum()
        loss.backward()
        return loss

    model = Model()
    weight = model.weight
    found = collected(step, model, torch.ones(3))
    assert found == [
        "LS100: the step looks at a tensor's value while it is captured",
        "LS100: the step uses HIDDEN['scale'], a tensor that is not one of its inputs",
        "LS100: the step changes Python state: model.seen",
    ]
    assert model.weight is weight
    assert model.weight.grad is None
    assert model.seen == []
    with pytest.raises(CaptureError, match="looks at a tensor's value"):
        capture(step, model, torch.ones(3))  # an ordinary capture still stops at the first


def test_a_hidden_parameter_is_told_once_and_keeps_its_gradient_to_itself():
    def step(x: torch.Tensor) -> torch.Tensor:
        loss = (HIDDEN["weight"] * x).sum() + (HIDDEN["weight"] + x).sum()
        loss.backward()
        return loss

    (told,) = collected(step, torch.ones(3))
    assert told.startswith("LS100: the step uses HIDDEN['weight']")
    assert HIDDEN["weight"].grad is None


def test_numbers_of_tensors_get_a_stand_in():
    def step(x: torch.Tensor) -> torch.Tensor:
        for _ in range(int(x.sum())):
            x = x * float(x.sum())
        return x * [1.0, 2.0][x.argmax()]

    assert len(collected(step, torch.ones(3))) == 3


def test_a_wrapped_model_is_the_last_that_is_seen():
    def step(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return model(x)

    wrapped = nn.DataParallel(Model())
    assert collected(step, wrapped, torch.ones(3)) == ["LS100: model is wrapped by DataParallel"]


def test_a_compiled_step_inside_another_is_told_and_passed_through():
    ls.mesh(dp=-1)
    inner = ls.compile(lambda x: x + 1)

    def step(x: torch.Tensor) -> torch.Tensor:
        return inner(x) * 2

    outer, check = ls.compile(step), CaptureCheck(calls=5)
    with calls_go_to(check), pytest.raises(Enough):
        for _ in range(6):  # at most: other tests' steps are never called
            outer(torch.ones(3))
    ((told,),) = [seen.obstacles for seen in check.captured.values()]
    assert "is compiled, and is called inside another compiled step" in told


def test_a_guard_that_raises_on_its_true_side_is_taken_on_the_other():
    def step(x: torch.Tensor) -> Any:
        if x.isnan().any():
            raise ValueError("nan in the batch")
        return [x, {1, 2}]

    assert collected(step, torch.ones(3)) == [
        "LS100: the step looks at a tensor's value while it is captured",
        "LS100: the step returns a set",
    ]


def test_what_is_captured_tells_its_size():
    def step(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    assert capture_all(ls.compile(step), (torch.ones(3),), {}) == Captured(
        f"{step.__qualname__}", [], nodes=3, collectives=0
    )
