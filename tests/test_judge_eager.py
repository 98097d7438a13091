"""The verdict on a graph beside its step: of one rank, and of several that saw different things."""

from __future__ import annotations

from typing import Any

from lockstep.errors import EagerMismatch
from lockstep.fleet.faults import Fault, is_told
from lockstep.fleet.judge_eager import judge_eager


def one(
    differs: Any = (), counts: Any = (), itself: Any = None, beyond: Any = None
) -> dict[str, Any]:
    seen = {"differs": list(differs), "itself": itself, "beyond": beyond, "times": 2.5}
    return {"step": "train", "counts": list(counts), **seen}


def error_of(verdict: dict[str, Any]) -> EagerMismatch:
    error = Fault.read(verdict["fault"]).error()
    assert type(error) is EagerMismatch and is_told(error)
    return error


def test_where_nothing_differs_all_is_equal():
    assert judge_eager([one(), one()], [0, 1]) == {"result": "equal"}


def test_values_that_differ_are_looked_at_again_before_they_are_a_fault():
    first = [one(), one(["w.grad"])]
    assert judge_eager(first, [0, 1]) == {"result": "again"}
    steady = [one(itself=[]), one(["w.grad"], itself=[])]
    assert judge_eager(steady, [0, 1]) == {"result": "measure"}
    far = [one(itself=[], beyond=[]), one(["b.grad", "w.grad"], itself=[], beyond=["w.grad"])]
    error = error_of(judge_eager(far, [0, 1]))
    assert error.where == "w.grad" and "more than rounding in 1 gradient(s): w.grad" in str(error)
    unsteady = [one(itself=["b.grad"]), one(["w.grad"], itself=[])]
    assert judge_eager(unsteady, [0, 1]) == {
        "result": "not comparable",
        "why": "two runs of it differ by themselves: b.grad",
    }


def test_what_rounding_explains_is_told():
    near = [one(itself=[], beyond=[]), one(["w.grad"], itself=[], beyond=[])]
    assert judge_eager(near, [0, 1]) == {
        "result": "rounding",
        "why": "1 value(s) have other bits, 2.5 times as far off as rounding moves them, as where "
        "a package computes the same by other operators once it sees that it is traced: w.grad",
    }


def test_a_missing_and_an_extra_collective_are_faults_at_once():
    counts = [["all_reduce", "dp", 2, 0], ["broadcast", "tp", 0, 1]]
    posted = [one(["w.grad", "output 0"], counts), one([], counts)]
    assert str(error_of(judge_eager(posted, [4, 5]))).splitlines() == [
        "LS420: the captured graph of train does not do what train does: no artifact is made",
        "  at   w.grad",
        "  got  all_reduce over dp: 2 in the step, 0 in the graph: 2 missing",
        "       broadcast over tp: 0 in the step, 1 in the graph: 1 extra",
        "       other bits in 1 gradient(s), 1 other value(s): w.grad, output 0",
        "       on ranks 4, 5",
        "  want the collectives of the step run eagerly from the same state, and but for rounding "
        "its values",
        "  why  a graph may lose or freeze what no rule knows of: a hook, a reducer, a value",
        '  fix  mend it, or ls.compile(eager_check="off") runs the graph as it is; '
        "`lockstep check --eager SCRIPT` compares train again",
    ]


def test_many_names_are_counted_and_a_lone_rank_is_the_culprit():
    names = [f"w{i}.grad" for i in range(9)]
    seen = [one(itself=[], beyond=[]), one(names, itself=[], beyond=names)]
    verdict = judge_eager(seen, [0, 1])
    assert Fault.read(verdict["fault"]).rank == 1
    text = str(error_of(verdict))
    assert "more than rounding in 9 gradient(s): w0.grad" in text and "w5.grad and 3 more" in text
