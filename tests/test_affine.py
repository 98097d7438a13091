"""Whole numbers of each rank as a formula of its coordinates."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from lockstep.spmd.affine import LARGEST, Affine, fitted, read_affine

PLACES = [
    {"dp": dp, "tp": tp, "world": 3 * dp + tp} for dp, tp in itertools.product(range(4), range(3))
]


def fit(number: Callable[[dict[str, int]], int]) -> str:
    return str(fitted([number(place) for place in PLACES], PLACES))


@pytest.mark.parametrize(
    ("number", "formula"),
    [
        (lambda at: 4 * at["tp"] + 1, "4*tp + 1"),
        (lambda at: at["world"], "3*dp + tp"),
        (lambda at: 9 - at["dp"], "-1*dp + 9"),
        (lambda at: 7, "7"),
        (lambda at: -at["tp"] - 2, "-1*tp - 2"),
    ],
)
def test_the_axes_of_the_mesh_give_it(number: Callable[[dict[str, int]], int], formula: str):
    assert fit(number) == formula


@pytest.mark.parametrize(
    "number",
    [
        lambda at: at["dp"] * at["tp"],
        lambda at: 2 ** at["world"],
        lambda at: int(at["world"] == 5),  # one rank, at no end of any axis
        lambda at: int(at["world"] == 11),
        lambda at: at["dp"] // 2,
        lambda at: LARGEST * at["tp"],
    ],
)
def test_what_no_formula_gives_to_every_rank(number: Callable[[dict[str, int]], int]):
    assert fit(number) == "None"


def test_the_rank_in_the_world_where_no_axis_says_it():
    """Ranks that a mesh has in another order than its rows."""
    places = [{"dp": place, "world": rank} for rank, place in enumerate((2, 0, 1))]
    assert str(fitted([0, 5, 10], places)) == "5*world"
    assert str(fitted([2, 0, 1], places)) == "dp"


def test_two_meshes_that_do_not_know_each_other():
    places = [{"dp": rank % 2, "world": rank} for rank in range(4)]
    assert str(fitted([0, 1, 0, 1], places)) == "dp"
    assert fitted([0, 1, 2, 0], places) is None
    assert fitted([0, 1], [{"dp": 0, "world": 0}, {"tp": 1, "world": 1}]) is None


def test_a_formula_goes_through_json_and_nothing_else_is_read_as_one():
    formula = Affine(3, {"tp": 2})
    assert read_affine(formula.record()) == formula
    others = [3, None, {"at the origin": 3}, {"at the origin": 3, "more per": 4}]
    others += [{"at the origin": first, "more per": {}} for first in ("3", True)]
    assert [read_affine(other) for other in others] == [None] * 6
