"""From a wrong gradient to the user's line, with the axis and a fix in the user's names."""

from __future__ import annotations

import pytest

from lockstep.checker import randomness
from lockstep.checker.after import judge_after
from lockstep.checker.finding import Finding
from lockstep.checker.simulation.locate import locate
from tests.checker_cases import CASES
from tests.test_checker_gold import gold


def findings(name: str, fault: str) -> list[Finding]:
    found = gold(name, fault)
    after, known = judge_after(found, found.judge_parameters())
    return [*after, *locate(found, known)]


@pytest.mark.parametrize("name", CASES)
def test_right_programs_have_no_findings(name: str):
    assert findings(name, "") == []


def test_a_missing_copy_is_at_the_operation_that_mixes():
    (finding,) = findings("tensor_parallel", "no copy")
    assert finding.code == "LS530" and finding.axis == "tp" and finding.want == "R"
    assert finding.source == "p = F.linear(F.gelu(F.linear(e, m.w1)), m.w2)"
    assert 'ls.convert(..., "tp", src=I, dst=R) around h' in finding.fix


def test_a_wrong_destination_is_at_the_collective():
    (finding,) = findings("tensor_parallel", "to R")
    assert (finding.code, finding.axis, finding.want) == ("LS532", "tp", "dst=I")
    assert finding.source.startswith("y = p if fault ==")


def test_a_second_reduction_is_at_its_line():
    (finding,) = findings("tensor_parallel", "twice")
    assert finding.code == "LS535" and finding.source.startswith("y = reduce_out(y)")


def test_a_gradient_left_partial_names_the_parameter():
    (finding,) = findings("sequence_parallel", "no hook")
    assert finding.code == "LS550" and "m.g" in finding.what and 'tp="sum"' in finding.fix
    (finding,) = findings("data_parallel", "one left")
    assert finding.code == "LS550" and "m.v" in finding.what and 'dp="mean"' in finding.fix


def test_a_sum_of_means_is_at_the_line_after_the_backward():
    (finding,) = findings("data_parallel", "sum")
    assert finding.code == "LS551" and "2 times" in finding.got and finding.axis == "dp"
    assert finding.source.startswith("p.grad /= 1")


def test_an_own_norm_is_at_its_root():
    (finding,) = findings("clipping", "own norm")
    assert finding.code == "LS552" and finding.axis == "tp"
    assert finding.source.startswith("norm = torch.sqrt(")


def test_draws_that_differ_on_what_is_the_same():
    found = gold("dropout", "own seed")
    (finding,), undecided = randomness.judge(found.sim, found.seen, {})
    assert finding.code == "LS520" and finding.axis == "tp" and undecided == []
    assert finding.source == "h = F.dropout(m.x * m.g, 0.5)"
    right = gold("dropout", "")
    assert randomness.judge(right.sim, right.seen, {}) == ([], [])
