"""Every rule has a case, and its kinds hold on simulated ranks for drawn shapes and types."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.checker.inference.kinds import EQUAL, VARYING, shard
from lockstep.checker.inference.rules import find, known, registry
from tests.rule_numbers import F64, FEW
from tests.rule_table import pointwise, products, reductions, rows, shapes
from tests.rule_table.cases import Case, T, hold, op, value, values
from tests.test_rules_collectives import HELD

TABLES = (pointwise, shapes, reductions, products, rows)
CASES: list[Case] = [case for table in TABLES for case in table.CASES]
# A piece of several results: every case with more than one goes through it in `tests/test_rules_*`.
ELSEWHERE = {"getitem"}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.op)
@settings(**{**FEW, "max_examples": 6})
@given(data=st.data())
def test_a_rule_holds_in_numbers(case: Case, data: st.DataObject) -> None:
    hold(case, data.draw(values(case)))


def _without_case(names: frozenset[str]) -> set[str]:
    return set(names) - {case.name for case in CASES} - HELD - ELSEWHERE


def test_every_rule_has_a_case() -> None:
    assert _without_case(known()) == set()
    assert _without_case(known() | {"fft"}) == {"fft"}


def test_every_case_is_of_a_rule() -> None:
    assert {case.name for case in CASES} <= known()


@pytest.mark.parametrize(
    ("name", "wrong"), [("tanh", EQUAL), ("tanh", shard(1)), ("sum", EQUAL), ("add", EQUAL)]
)
def test_a_rule_that_does_not_hold_is_found(
    name: str, wrong: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, sizes = T("nm"), {"n": 4, "m": 6}
    case = {"tanh": op("tanh", x), "sum": op("sum", x), "add": op("add.Tensor", x, x)}[name]
    drawn = [value(x, shard(0), (sizes, sizes), seed) for seed in range(len(case.operands))]
    outcome = hold(case, drawn)
    assert outcome is not None and outcome.said and not outcome.faults
    rule = find(name)
    assert rule is not None
    monkeypatch.setitem(registry._rules, name, registry.Rule(lambda ctx: wrong, rule.linear))
    with pytest.raises(AssertionError, match="is said to be"):
        hold(case, drawn)


def test_what_says_nothing_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    x, sizes = T("nm"), {"n": 4, "m": 6}
    monkeypatch.setitem(registry._rules, "tanh", registry.Rule(lambda ctx: VARYING, False))
    outcome = hold(op("tanh", x), [value(x, shard(0), (sizes, sizes), 0)])
    assert outcome is not None and not outcome.said
    assert outcome.kinds == [VARYING] and F64.is_floating_point
