"""What posted votes mean: the odd rank, the field, both values, a hit, or who may build."""

from __future__ import annotations

from typing import Any

from lockstep.errors import FleetError, StepMismatch
from lockstep.fleet import Fault
from lockstep.fleet.faults import TRACE_LIMIT, is_consequence, is_told
from lockstep.fleet.judge import differing, judge_digests, judge_tags, judge_vote


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
    role = [vote(have="a" * 64, node=4 + rank) for rank in range(2)]  # its tree is of its own nodes
    verdict = judge_vote(role, [8, 10])
    assert (verdict["nodes"], verdict["done"]["by"], verdict["done"]["node"]) == ([4, 5], 8, 4)
    assert judge_vote([{**one, "have": None} for one in role], [8, 10])["nodes"] == [4, 5]


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


def test_all_odd_ranks_and_all_fields_are_named_at_once():
    plain = vote()["contract"]
    shapes = [{**plain, "inputs": {"x": f"f32[{n}, 16]"}} for n in (4, 2)]
    odd = [vote(contract=shapes[0]), vote(), vote(contract=shapes[1]), vote(), vote()]
    odd.append(vote(contract={**plain, "torch": "2.15.0"}))
    verdict = judge_vote(odd)
    assert verdict["fault"]["rank"] is None
    assert "LS400: ranks 0, 2, 5 differ in inputs.x, torch at train_step" in told(verdict)
    assert (
        "got  inputs.x f32[4, 16] on rank 0, f32[2, 16] on rank 2; torch 2.15.0 on rank 5"
        in told(verdict)
    )
    many = {**plain, **{f"f{n}": n for n in range(12)}}
    assert "f6, f7 and 4 more at train_step" in told(judge_vote([vote(), vote(contract=many)]))


def test_toolchains_are_agreed_on_but_for_what_a_rank_lacks():
    tools = [{"compiler": "g++ 12"}, {"compiler": None}, {"compiler": "g++ 12"}, {}]
    assert "candidates" in judge_vote([vote(toolchain=tool) for tool in tools])
    tools[3] = {"compiler": "clang 17"}
    verdict = judge_vote([vote(toolchain=tool) for tool in tools])
    assert verdict["fault"]["rank"] == 3
    assert "rank 3 differs in toolchain.compiler at train_step" in told(verdict)
    assert "want toolchain.compiler g++ 12 on ranks 0, 1, 2" in told(verdict)
    assert "fix  install the same versions on every node" in told(verdict)


def test_ranks_of_a_role_are_told_by_their_numbers_in_the_world():
    odd = {**vote()["contract"], "torch": "2.15.0"}
    verdict = judge_vote([vote(), vote(), vote(contract=odd)], [4, 5, 7])
    assert verdict["fault"]["rank"] == 7
    assert "want torch 2.14.1 on ranks 4, 5" in told(verdict)
    assert judge_vote([vote(), vote(local_rank=1)], [4, 5]) == {"candidates": [4, 5]}
    held = [vote(), vote(have="a", size=3)]
    assert judge_vote(held, [4, 5])["done"]["by"] == 5
    assert judge_digests([{"digest": "a"}, {"digest": "b"}], [4, 5])["fault"]["rank"] == 5


def test_calls_that_differ_are_a_mismatch_of_its_own_kind():
    calls = [f"call {n} of train_step (v0)" for n in (2, 3, 2)]
    assert judge_tags([{"call": calls[0]}] * 3, range(3)) == {"ok": True}
    verdict = judge_tags([{"call": call} for call in calls], [4, 5, 6])
    assert verdict["fault"]["rank"] == 5
    error = Fault.read(verdict["fault"]).error()
    assert type(error) is StepMismatch and is_told(error)
    assert "got  call 3 of train_step (v0) on rank 5" in str(error)
    assert "want call 2 of train_step (v0) on ranks 4, 6" in str(error)
    two = judge_tags([{"call": call} for call in calls[:2]], range(2))
    assert two["fault"]["rank"] is None  # of two nobody knows which one is odd
