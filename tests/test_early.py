"""Ints that were read of the rank before the step: in fingerprints, and in a capture's places."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from lockstep.build.early import agreeing, formulas, name_of, settled
from lockstep.capture.binding import Step
from lockstep.capture.capture import capture_call
from lockstep.capture.early import Early, located
from lockstep.capture.graph import StepGraph
from lockstep.capture.reach import reach
from lockstep.capture.state import collect
from lockstep.checker.world import simulated_rank
from lockstep.errors import CaptureError
from lockstep.spmd.affine import Affine

MESH = {"tp": 4}
PLACES = [{"tp": rank, "world": rank} for rank in range(4)]
FORMULA = Affine(0, {"tp": 2})


def tables(*fields: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"backend": "graph", **own} for own in fields]


def test_ints_in_reach_are_found_with_their_names():
    seen = tables(
        *(
            {
                "module model": {"class": "Model", "bounds": [[2 * rank, 4]], "hooks": [["f"]]},
                "object config": {"rank": rank},
                "value train:RANK": rank + 1,
                "contract rank": -rank,
            }
            for rank in range(4)
        )
    )
    found = formulas(seen, PLACES)
    assert {name_of(path): str(formula) for path, formula in found} == {
        "model.bounds[0][0]": "2*tp",
        "config.rank": "tp",
        "train:RANK": "tp + 1",
        "rank": "-1*tp",
    }
    assert all(settled(table, found) == settled(seen[0], found) for table in seen)
    assert seen[1]["value train:RANK"] == 2, "the tables themselves stay"


@pytest.mark.parametrize(
    "fields",
    [
        [{"module model": {"hooks": [["partial", "f", [rank]]]}} for rank in range(4)],
        [{"module model": {"first": rank == 0}} for rank in range(4)],
        [{"module model": {"scale": float(rank).hex()}} for rank in range(4)],
        [{"module model": {"start": rank or None}} for rank in range(4)],
        [{"mesh tp": rank} for rank in range(4)],
        [{"module model": {"start": int(rank == 2)}} for rank in range(4)],
    ],
)
def test_nothing_else_is_given_a_formula(fields: list[dict[str, Any]]):
    assert formulas(tables(*fields), PLACES) == []


def test_an_artifact_that_holds_formulas_is_known_by_each_rank_alone():
    kept = {"module model": {"start": FORMULA.record(), "size": 4}}
    for rank, place in enumerate(PLACES):
        mine = {"module model": {"start": 2 * rank, "size": 4}}
        assert agreeing(mine, kept, place) == kept
        assert agreeing({"module model": {"start": 2 * rank + 1}}, kept, place) != kept
    assert agreeing({"module model": 3}, kept, PLACES[0]) == {"module model": 3}
    assert agreeing(mine, kept, {"dp": 3, "world": 3}) == mine, "a formula of an axis not there"


# ---- the places of a capture


@dataclass(frozen=True)
class Config:
    """What holds a number, and can't be changed."""

    rank: int


class Pair(NamedTuple):
    """A tuple with names."""

    rank: int
    other: int


class Model(nn.Module):
    """A number in many places."""

    rank = 6

    def __init__(self) -> None:
        super().__init__()
        self.start = 6
        self.rows = [(6, 1)]
        self.pair = Pair(6, 1)
        self.table = {3: {"rank": 6}}
        self.config = Config(6)
        self.part = slice(0, 6)

    def forward(self, x: Tensor) -> Tensor:
        found = (self.start, self.rows[0][0], self.pair.rank, self.table[3]["rank"])
        return x + sum(found) + self.config.rank + self.part.stop + type(self).rank + RANK


RANK = 6


def train(model: nn.Module, x: Tensor, size: int = 6, *, first: int = 6) -> Tensor:
    return model(x) + size + first


def early_of(function: Callable[..., Any], args: tuple[Any, ...], *paths: list[Any]) -> Any:
    """A step, its call and state, and each path's number as the formula."""
    step = Step(function)
    call = step.call(args, {})
    state = collect(call)
    found = reach(step, call, state)
    return step, call, state, [located(p, FORMULA, call, state, found) for p in paths]


def captured(function: Callable[..., Any], args: tuple[Any, ...], *paths: list[Any]) -> StepGraph:
    step, call, state, early = early_of(function, args, *paths)
    return capture_call(step, call, state, None, (), early)


@pytest.fixture
def rank_3() -> Iterator[Any]:
    with simulated_rank(3, MESH) as mesh:
        yield mesh


PATHS: list[list[Any]] = [
    ["module model", "start"],
    ["module model", "rows", 0, 0],
    ["module model", "pair", 0],
    ["module model", "table", "3", "rank"],
    ["module model", "config", "rank"],
    ["module model", "part", "stop"],
    [f"value {__name__}.Model:rank"],
    [f"value {__name__}:RANK"],
    [f"value {__name__}.train:size"],
    [f"value {__name__}.train:first"],
]


def test_every_place_holds_its_formula_while_it_is_captured_and_its_int_afterwards(rank_3: Any):
    model, x = Model(), torch.zeros(2)
    rows, table = model.rows, model.table
    graph = captured(train, (model, x), *PATHS)
    (out,) = graph.gm(x)
    assert out.tolist() == train(model, x).tolist() == [60.0, 60.0]
    with simulated_rank(1, MESH):
        assert graph.gm(x)[0].tolist() == [20.0, 20.0]  # ten times 2*tp
    assert (model.rows, model.pair, model.config) == ([(6, 1)], Pair(6, 1), Config(6))
    assert (model.rows, model.table) == (rows, table) and model.rows is rows
    assert model.table == {3: {"rank": 6}} and model.part == slice(0, 6)
    assert (Model.rank, RANK, train.__defaults__, train.__kwdefaults__) == (
        6, 6, (6,), {"first": 6},
    )  # fmt: skip


@pytest.mark.parametrize("path", PATHS, ids=lambda path: str(path[-1]))
def test_each_place_counts(rank_3: Any, path: list[Any]):
    """Without it, its 6 stays a literal: the sum at another rank is off by what it lacks."""
    model, x = Model(), torch.zeros(2)
    graph = captured(train, (model, x), *(p for p in PATHS if p is not path))
    with simulated_rank(1, MESH):
        assert graph.gm(x)[0].tolist() == [9 * 2.0 + 6] * 2


def test_places_are_put_back_when_the_capture_fails(rank_3: Any):
    model = Model()

    def step(model: Model, x: Tensor) -> Tensor:
        return x if model.start else x + 1

    with pytest.raises(CaptureError, match=r"the step branches on its rank: 2\*tp != 0"):
        captured(step, (model, torch.zeros(2)), ["module model", "start"])
    assert model.start == 6 and type(model.start) is int


def test_a_place_that_the_step_writes_to_is_told(rank_3: Any):
    model = Model()

    def step(model: Model, x: Tensor) -> Tensor:
        model.start += 1
        return x + model.start

    with pytest.raises(CaptureError, match=r"changes Python state: model\.start"):
        captured(step, (model, torch.zeros(2)), ["module model", "start"])
    assert model.start == 6


@pytest.mark.parametrize(
    ("value", "path", "kind"),
    [
        (True, ["module model", "start"], "bool"),
        (functools.cached_property(int), ["module model", "start", 1], "NoneType"),
        (6, ["module model", "gone"], "NoneType"),
        (6, ["contract optimizer.group0", "step"], "NoneType"),
    ],
)
def test_what_can_hold_no_formula_is_refused(rank_3: Any, value: Any, path: Any, kind: str):
    model = Model()
    model.start = value
    with pytest.raises(CaptureError) as refusal:
        early_of(train, (model, torch.zeros(2)), path)
    assert "was read of the rank before the step, and cannot be followed" in str(refusal.value)
    assert f"a {kind}, which is 2*tp on each rank" in str(refusal.value)


def test_it_says_what_it_is(rank_3: Any):
    *_, early = early_of(train, (Model(), torch.zeros(2)), ["module model", "rows", 0, 0])
    (one,) = early
    assert isinstance(one, Early) and str(one) == "model.rows[0][0] = 2*tp"
