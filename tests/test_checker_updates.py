"""A step that changes its weights itself is judged by what it made of them."""

from __future__ import annotations

from tests.fault_cases.expected import at
from tests.fault_cases.judged import judge
from tests.fault_cases.spread_updates import spread_update, updated_by_hand


def test_a_weight_that_is_updated_by_hand_needs_the_whole_gradient():
    assert judge("right", updated_by_hand(False), None).silent
    found = judge("wrong", updated_by_hand(True), at("dp", "weight -= 0.1"))
    assert found.placed, [*map(str, found.findings)]
    assert "model.inner is changed by a gradient that differs along dp" in str(found.findings[0])


def test_an_update_of_another_ranks_rows_is_told_beside_one_rank():
    assert judge("right", spread_update(False), None).silent
    found = judge("wrong", spread_update(True), at("dp", "weight.chunk(model.ranks)"))
    assert found.placed, [*map(str, found.findings)]
    assert "model.inner after the step" in found.findings[0].got
