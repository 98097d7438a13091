"""What one program cannot hold is refused at the user's own line, with what to do instead."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import lockstep as ls
from lockstep.capture.capture import capture
from lockstep.errors import CaptureError, UsageError
from lockstep.spmd.mesh import axis_of
from tests.steps import Tiny, batch, train_step

OUTSIDE = torch.ones(3)
COUNT = 0
HISTORY: list[float] = []


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.steps = 0
        self.tables = {"k": torch.ones(3)}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.weight * x).sum()

    def count(self) -> None:
        self.steps += 1  # counted here


def closes_over(model: Model, x: torch.Tensor) -> torch.Tensor:
    return model(x) * OUTSIDE.sum()  # the line


def branches(model: Model, x: torch.Tensor) -> torch.Tensor:
    loss = model(x)
    if loss > 3:  # the line
        return loss * 2
    return loss


def loops(model: Model, x: torch.Tensor) -> torch.Tensor:
    for _ in range(int(x.sum())):  # the line
        x = x + 1
    return model(x)


def reads_a_hidden_tensor(model: Model, x: torch.Tensor) -> torch.Tensor:
    return model(x) * model.tables["k"].sum()  # the line


def counts(model: Model, x: torch.Tensor) -> torch.Tensor:
    model.count()
    return model(x)


def counts_globally(model: Model, x: torch.Tensor) -> torch.Tensor:
    global COUNT
    COUNT += 1  # the line
    return model(x)


def remembers(model: Model, x: torch.Tensor) -> torch.Tensor:
    loss = model(x)
    _note(loss)
    return loss


def _note(loss: torch.Tensor) -> None:
    HISTORY.append(loss)  # type: ignore[arg-type]  # noted here


def draws(model: Model, x: torch.Tensor) -> torch.Tensor:
    return model(x) * random.random()  # the line


def decides_by_its_rank(model: Model, x: torch.Tensor) -> torch.Tensor:
    return model(x) if dist.get_rank() == 0 else x.sum()  # the line


def counts_by_its_group(model: Model, x: torch.Tensor) -> torch.Tensor:
    return model(x) + float(dist.group.WORLD.rank())  # type: ignore[union-attr]  # the line


def sends(model: Model, x: torch.Tensor) -> torch.Tensor:
    dist.send(x, 0)  # the line
    return model(x)


def forgets_to_wait(model: Model, x: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(x, async_op=True)  # the line
    return model(x)


def reduces_by_an_unknown_group(model: Model, x: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(x, group=OTHER)  # the line
    return model(x)


def seeds(model: Model, x: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(0)  # the line
    return model(x) + torch.rand(1)


def rewinds(model: Model, x: torch.Tensor) -> torch.Tensor:
    state = torch.get_rng_state()
    first = torch.rand(3)
    torch.set_rng_state(state)
    return model(x) + first + torch.randn(3)  # the line


def returns_an_object(model: Model, x: torch.Tensor) -> Any:
    return model(x), model


OTHER: Any = None

CASES: list[tuple[Callable[..., Any], str, str, str]] = [
    (closes_over, "the step closes_over closes over the tensor OUTSIDE", "the line", "pass it"),
    (branches, "the step looks at a tensor's value", "the line", "torch.where"),
    (loops, "the step looks at a tensor's value", "the line", "return the tensor"),
    (reads_a_hidden_tensor, "the step uses model.tables['k']", "the line", "register_buffer"),
    (counts, "the step changes Python state: model.steps", "counted here", "outside the step"),
    (counts_globally, "the step changes Python state: COUNT", "the line", "in-place update"),
    (remembers, "the step changes Python state: HISTORY", "noted here", "let the caller keep it"),
    (draws, "the step changes Python state: random", "the line", "outside the step"),
    (decides_by_its_rank, "the step branches on its rank: {axis} == 0", "the line", "torch.where"),
    (counts_by_its_group, "turns its rank into a Python number: {axis}", "the line", "int()"),
    (sends, "dist.send cannot be part of a captured step", "the line", "a collective"),
    (forgets_to_wait, "the step never waits for an async all_reduce", "the line", "work.wait()"),
    (reduces_by_an_unknown_group, "a process group that is no mesh axis", "the line", "ls.mesh"),
    (seeds, "the step seeds the random generator", "the line", "seed outside the step"),
    (rewinds, "draws other random numbers than its first forward", "the line", "draw the same"),
    (returns_an_object, "the step returns a Model", "", "as tensors"),
]


@pytest.fixture(autouse=True)
def world_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    ls.mesh(dp=-1)
    monkeypatch.setitem(globals(), "OTHER", dist.new_group([0], backend="cpu:gloo"))


def test_a_thread_that_draws_meanwhile_is_named() -> None:
    go_on = threading.Event()
    other = threading.Thread(target=go_on.wait, name="prefetch")
    other.start()
    with pytest.raises(CaptureError, match="another; or a thread drew meanwhile, one of") as told:
        capture(draws, Model(), torch.ones(3))
    go_on.set()
    assert "prefetch" in str(told.value)


@pytest.mark.parametrize(
    ("step", "what", "mark", "fix"), CASES, ids=lambda c: getattr(c, "__name__", "")
)
def test_refused_at_its_line(step: Any, what: str, mark: str, fix: str) -> None:
    model = Model()
    with pytest.raises(CaptureError) as caught:
        capture(step, model, torch.ones(3))
    text, axis = str(caught.value), axis_of(None)  # of a world of one, whose axes are all the same
    assert axis is not None and what.format(axis=axis.name) in text and fix in text
    if mark:
        assert f"tests/test_obstacles.py:{_line(step, mark)}" in text
    assert (model.steps, COUNT, HISTORY) == (0, 0, [])
    assert isinstance(model.weight, nn.Parameter) and model(torch.ones(3)).item() == 3


def _line(step: Any, mark: str) -> int:
    """The number of the marked line: below the step's start, or the only one of its words."""
    lines = Path(__file__).read_text().splitlines()
    start = step.__code__.co_firstlineno if mark == "the line" else 1
    return next(i for i in range(start, len(lines) + 1) if f"# {mark}" in lines[i - 1])


def test_the_users_own_error_stays_what_it_is() -> None:
    def broken(model: Model, x: torch.Tensor) -> torch.Tensor:
        raise ValueError("my own")

    with pytest.raises(ValueError, match="my own"):
        capture(broken, Model(), torch.ones(3))


def test_a_step_without_obstacles_passes_all_of_them() -> None:
    assert len(capture(lambda model, x: model(x), Model(), torch.ones(3)).gm.graph.nodes) > 3


@pytest.mark.filterwarnings("ignore:Using `torch.compile")
def test_a_part_that_torch_compiles_is_refused_at_its_line() -> None:
    model = Tiny()
    model.linear = torch.compile(model.linear)  # type: ignore[assignment]
    with pytest.raises(CaptureError, match="calls something that") as caught:
        capture(train_step, model, *batch(0))
    assert "at   tests/steps.py:" in str(caught.value) and "._orig_mod" in str(caught.value)


def test_wrapped_models_are_refused_by_name() -> None:
    model = nn.DataParallel(Tiny())
    with pytest.raises(CaptureError, match="model is wrapped by DataParallel") as caught:
        capture(train_step, model, *batch(0))
    assert "ls.reduce_grads" in str(caught.value)
    assert str(caught.value.where).startswith("tests/test_obstacles.py:")  # who calls the step


def test_compiled_steps_are_not_nested() -> None:
    inner = ls.compile(backend="graph")(train_step)
    outer = ls.compile(backend="graph")(lambda model, *given: inner(model, *given))
    with pytest.raises(UsageError, match="inside another compiled step"):
        outer(Tiny(), *batch(0))


def test_an_optimizer_that_cannot_start_from_zeros_is_refused() -> None:
    def step(model: nn.Module, optimizer: Any, *given: torch.Tensor) -> torch.Tensor:
        loss = train_step(model, *given)
        optimizer.step()
        return loss

    model = Tiny()
    with pytest.raises(CaptureError, match="is a RMSprop without state"):
        capture(step, model, torch.optim.RMSprop(model.parameters()), *batch(0))
    foreign = torch.optim.SGD(Tiny().parameters())
    with pytest.raises(CaptureError, match="of no module that the step reaches"):
        capture(step, model, foreign, *batch(0))
