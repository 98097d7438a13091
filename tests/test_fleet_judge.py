"""What posted votes mean: the odd rank, the field, both values, a hit, or who may build."""

from __future__ import annotations

from typing import Any

from lockstep.errors import FleetError
from lockstep.fleet import Fault
from lockstep.fleet.faults import TRACE_LIMIT, is_consequence, is_told
from lockstep.fleet.judge import differing, judge_digests, judge_vote


def vote(**changes: Any) -> dict[str, Any]:
    contract = {"inputs": {"x": "f32[8, 16]"}, "mesh": "dp=4", "torch": "2.14.1"}
    plain = {"step": "train_step", "contract": contract, "have": None, "size": 0, "local_rank": 0}
    return {**plain, **changes}


def told(verdict: dict[str, Any]) -> str:
    return str(Fault.read(verdict["fault"]).error())


def test_the_odd_rank_is_named_with_the_field_and_both_values():
    odd = {**vote()["contract"], "inputs": {"x": "f32[4, 16]"}}
    verdict = judge_vote([vote(), vote(), vote(contract=odd), vote()])
    assert verdict["fault"]["rank"] == 2
    assert told(verdict) == (
        "LS400: rank 2 differs in inputs.x at train_step\n"
        "  got  inputs.x f32[4, 16] on rank 2\n"
        "  want inputs.x f32[8, 16] on ranks 0, 1, 3\n"
        "  why  one program runs on every rank, so all must ask for the same one\n"
        "  fix  give every rank the same shapes: "
        "for batch, weights in ls.even_batches(loader, mesh)"
    )


def test_of_two_ranks_the_first_is_taken_for_usual():
    odd = {**vote()["contract"], "torch": "2.15.0"}
    verdict = judge_vote([vote(), vote(contract=odd)])
    assert "rank 1 differs in torch at train_step" in told(verdict)
    assert "fix  install the same versions on every node" in told(verdict)


def test_several_odd_ranks_and_a_missing_field():
    odd = {"mesh": "dp=2", "torch": "2.14.1"}
    verdict = judge_vote([vote(contract=odd), vote(), vote(), vote(contract=odd), vote()])
    assert verdict["fault"]["rank"] is None
    assert "ranks 0, 3 differ in inputs, mesh at train_step" in told(verdict)
    assert "got  inputs nothing on ranks 0, 3; mesh dp=2 on ranks 0, 3" in told(verdict)


def test_different_steps_are_named_with_their_ranks():
    verdict = judge_vote([vote(), vote(step="eval_step"), vote()])
    assert verdict["fault"]["rank"] == 1
    assert "ranks call different steps" in told(verdict)
    assert "got  ranks 0, 2 called train_step; rank 1 called eval_step" in told(verdict)


def test_a_hit_takes_the_digest_that_most_hold():
    have = [None, "b" * 64, "a" * 64, "b" * 64]
    votes = [vote(have=digest, size=7, node=rank // 2) for rank, digest in enumerate(have)]
    done = {"digest": "b" * 64, "by": 1, "node": 0, "lack": 2, "size": 7, "built": False}
    assert judge_vote(votes) == {"done": done}


def test_a_miss_lets_one_rank_of_each_node_build_first():
    ranks = [vote(local_rank=rank % 3) for rank in range(6)]
    assert judge_vote(ranks) == {"candidates": [0, 3, 1, 2]}
    assert judge_vote([vote(local_rank=rank) for rank in range(2)]) == {"candidates": [0, 1]}


def test_digests_must_be_equal():
    assert judge_digests([{"digest": "a"}, {"digest": "a"}]) == {"ok": True}
    verdict = judge_digests([{"digest": "a"}, {"digest": "b"}, {"digest": "a"}])
    assert verdict["fault"]["rank"] == 1
    assert "rank 1 would load other bytes than the rest" in told(verdict)


def test_differing_goes_into_lists_and_stops_at_other_lengths():
    assert differing({"a": [1, 2]}, {"a": [1, 3]}) == [("a[1]", "2", "3")]
    assert differing({"a": [1]}, {"a": [1, 3]}) == [("a", "[1]", "[1,3]")]
    assert differing({"a": [1, {"b": None}]}, {"a": [1, {"b": None}]}) == []


def test_a_fault_goes_through_the_store_and_keeps_the_traceback():
    def deep() -> None:
        raise ValueError("no such layer: 7\nlayers: 0 to 5")

    try:
        deep()
    except ValueError as error:
        fault = Fault.of(error, 2, "building train_step")
    again = Fault.read(fault.record())
    assert again == fault
    report = again.report()
    assert report.startswith(
        "LS400: rank 2 failed while building train_step: ValueError: no such layer: 7\n"
        "  got  no such layer: 7\n       layers: 0 to 5\n"
        "  traceback of rank 2:\n    Traceback (most recent call last):\n"
    )
    assert "in deep" in report and report.endswith("layers: 0 to 5")
    assert is_told(again.error()) and not is_told(FleetError("another"))


def test_a_long_traceback_is_cut_in_the_middle():
    fault = Fault.of(ValueError("x" * 300_000), 0, "running")
    assert len(fault.trace) < TRACE_LIMIT + 100
    assert "characters left out" in fault.trace


def test_only_broken_connections_are_consequences():
    assert is_consequence(RuntimeError("gloo: Connection closed by peer [127.0.0.1]:1"))
    assert is_consequence(ConnectionResetError("Connection reset by peer"))
    assert not is_consequence(RuntimeError("shape '[3]' is invalid for input of size 4"))
    assert not is_consequence(ValueError("Connection closed by peer"))
    assert not is_consequence(FleetError("Connection closed by peer"))
