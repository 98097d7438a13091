"""What is removed of a client is replaced, only while inside, and what was called is known."""

from __future__ import annotations

import torch.distributed as dist

import lockstep as ls
from clients.programs import named
from clients.removed import ANYWHERE, OWN, Removal, missed, removals, told

BUCKET = named("collectives", "flat bucket, async")


def test_a_right_program_is_silent_and_its_collective_is_missed_at_its_line() -> None:
    assert told(BUCKET) == ([], [])
    (removal,) = OWN[BUCKET.name]
    with removal.left_out() as called:
        findings, _ = told(removal.change(BUCKET))
    assert called.is_set()
    code, line = findings[0]
    assert code == "LS514" and line.startswith("clients/programs/collectives.py:")


def test_what_a_program_does_not_call_is_no_removal_of_it() -> None:
    reduce_grads = ls.reduce_grads
    with ANYWHERE[0].left_out() as called:
        assert ls.reduce_grads is not reduce_grads
        assert told(BUCKET) == ([], [])
    assert ls.reduce_grads is reduce_grads and not called.is_set()


def test_a_removal_that_leaves_all_as_it_is_finds_nothing() -> None:
    same = Removal("nothing", "torch.distributed:all_reduce", lambda original: original)
    before = dist.all_reduce
    with same.left_out() as called:
        assert told(BUCKET) == ([], []) and called.is_set()
    assert dist.all_reduce is before


def test_a_step_that_no_program_is_made_of_and_a_finding_without_a_line_are_not_found() -> None:
    assert missed([("LS100", "a.py:1"), ("LS537", "a.py:2"), ("LS514", "")]) is None
    assert missed([("LS537", "a.py:2"), ("LS514", "a.py:3")]) == ("LS514", "a.py:3")


def test_the_list_is_by_the_names_of_programs() -> None:
    assert [one.name for one in removals(named("wrapped", "FSDP2"))][-1].startswith("its reduce-")
    assert removals(named("wrapped", "DDP"))[: len(ANYWHERE)] == ANYWHERE
