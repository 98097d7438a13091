"""The guard of a step: rank 1's step 3 is never summed with rank 0's step 2."""

from __future__ import annotations

from pathlib import Path

from tests.ranks.launch import Torchrun


def test_a_rank_that_left_out_a_step_is_named_before_anything_is_summed(tmp_path: Path) -> None:
    with Torchrun() as torchrun:
        ended = torchrun.run("tests.ranks.guard", folder=tmp_path)
    assert ended.code == 1, ended.report()
    for result in ended.results:
        # Without a guard the second sum is 2 + 3, and nobody is told.
        assert result["sums"] == [2.0, 5.0, 2.0]
        assert result["kind"] == "StepMismatch"
        assert result["told"] == (
            "LS410: rank 1 would run another call together with rank 0\n"
            "  got  call 2 of total#2 (v0), at 3 on rank 1\n"
            "  want call 2 of total#2 (v0), at 2 on rank 0\n"
            "  why  what one rank computes would be summed with another's step\n"
            "  fix  let no rank leave out a step alone: decide on all, "
            "or give its batch no weight"
        )
