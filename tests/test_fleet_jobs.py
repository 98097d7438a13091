"""Jobs of real processes: hits and misses, disagreement, failures, and that nothing hangs.

Each job runs a function of `tests.fleet_scenarios` on every rank. A job whose ranks would hang is
killed at a limit and shows exit code 999, which no assertion below accepts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.fleet_jobs import Ended, Jobs

KILLED = -9
STUCK = 75
UNWRITABLE = "/proc/store"  # nobody can make a folder there, not even root


@pytest.fixture(scope="module")
def jobs() -> Iterator[Jobs]:
    running = Jobs()
    yield running
    running.close()


def all_say(ended: Ended, *texts: str) -> None:
    """Every rank printed every text."""
    for rank, printed in enumerate(ended.errors):
        for text in texts:
            assert text in printed, f"rank {rank} does not say {text!r}:\n{printed}"


# ---- all is well ---------------------------------------------------------------------------------


def test_one_builds_the_others_load_and_the_next_start_hits(jobs, tmp_path):
    first = jobs.run("plain", tmp_path, world=4, nodes=2)
    assert first.codes == [0] * 4
    assert [row["role"] for row in first.results] == ["built", "loaded", "loaded", "loaded"]
    assert {row["by"] for row in first.results} == {0}
    assert len({row["digest"] for row in first.results}) == 1
    assert {row["path"] for row in first.results} == {str(tmp_path / "store/step.lockstep")}
    assert "rank 1 waits for rank 0 to build train_step (attempt 1, " in first.errors[1]
    assert first.errors[0] == "" or "waits for rank" in first.errors[0]
    assert len(first.of("built")) == 1 and len(first.of("confirmed")) == 4

    again = jobs.run("plain", tmp_path, world=4, nodes=2)
    assert again.codes == [0] * 4
    assert [(row["role"], row["by"]) for row in again.results] == [("loaded", None)] * 4
    assert "build" not in "".join(again.errors)
    assert len(again.of("built")) == 1  # the journal of both runs: nothing was built since


def test_a_node_without_the_bytes_gets_them_once_and_keeps_them(jobs, tmp_path):
    ended = jobs.run("own_stores", tmp_path, world=4, nodes=2, times=500_000)
    assert ended.codes == [0] * 4
    assert [row["data"] for row in ended.results] == [6_000_000] * 4
    shipped = ended.of("shipped")
    assert [(row["rank"], row["bytes"]) for row in shipped] == [(2, 6_000_000)]
    assert [row["path"] for row in ended.results] == [
        str(tmp_path / f"store{node}/step.lockstep") for node in (0, 0, 1, 1)
    ]


def test_a_hit_on_one_node_alone_is_shipped_to_the_other(jobs, tmp_path):
    (tmp_path / "store1").mkdir(mode=0o700)
    file = tmp_path / "store1/step.lockstep"
    file.write_bytes(b"from the last run")
    file.chmod(0o600)
    ended = jobs.run("own_stores", tmp_path, nodes=2)
    assert ended.codes == [0, 0]
    assert [(row["role"], row["data"]) for row in ended.results] == [("loaded", 17)] * 2
    assert ended.of("built") == [] and [row["rank"] for row in ended.of("shipped")] == [0]
    assert (tmp_path / "store0/step.lockstep").read_bytes() == b"from the last run"


def test_each_node_takes_the_bytes_from_its_parent_and_keeps_them(jobs, tmp_path):
    ended = jobs.run("own_stores", tmp_path, world=6, nodes=6, times=500_000)
    assert ended.codes == [0] * 6
    came = {row["rank"]: row for row in ended.of("shipped")}
    assert {rank: row["from_ranks"] for rank, row in came.items()} == {
        1: [0], 2: [0], 3: [0], 4: [0], 5: [1],
    }  # fmt: skip
    assert all(row["connections"] == 1 and row["mb_per_s"] > 0 for row in came.values())
    for node in range(6):
        assert (tmp_path / f"store{node}/step.lockstep").stat().st_size == 6_000_000


def test_what_a_store_by_url_lost_comes_from_a_peer_once_a_node(jobs, tmp_path):
    ended = jobs.run("lost_by_its_url", tmp_path, world=4, nodes=2)
    assert ended.codes == [0] * 4
    assert [(row["rank"], row["from_ranks"]) for row in ended.of("shipped")] == [(2, [0])]
    assert {row["path"] for row in ended.results} == {"memory://bucket/a.lockstep"}
    again = jobs.run("lost_by_its_url", tmp_path, world=4, nodes=2)  # from the nodes' copies
    assert [row["role"] for row in again.results] == ["loaded"] * 4
    assert len(again.of("built")) == 1 and len(again.of("shipped")) == 1


@pytest.mark.parametrize("how", ["kill", "flip", "lie"])
def test_a_parent_that_spoils_it_is_left_for_another_holder(jobs, tmp_path, how):
    """Killed in the middle, a byte flipped on its way, other bytes: the child has the right."""
    ended = jobs.run("tree", tmp_path, world=6, nodes=6, how=how)
    others = [0, 2, 3, 4, 5]
    assert [ended.codes[rank] for rank in others] == [0] * 5, ended.errors
    assert ended.codes[1] == (KILLED if how == "kill" else 0)
    below = ended.results[5]
    assert below["bytes"] == 1 << 18 and below["connections"] > 1
    kept_its_part = {"kill": True, "flip": True, "lie": False}[how]
    assert (below["from_ranks"][0] == 1) is kept_its_part and below["from_ranks"] != [1]
    assert [ended.results[rank]["from_ranks"] for rank in (2, 3, 4)] == [[0]] * 3


def test_a_store_that_keeps_nothing_leaves_the_job_running(jobs, tmp_path):
    ended = jobs.run("plain", tmp_path, world=3, store=UNWRITABLE)
    assert ended.codes == [0] * 3
    assert [row["path"] for row in ended.results] == [None] * 3
    assert len({row["digest"] for row in ended.results}) == 1
    assert "could not keep step.lockstep: No such file or directory" in ended.errors[0]
    assert sorted(row["rank"] for row in ended.of("shipped")) == [1, 2]


def test_a_store_that_must_keep_it_is_an_error_everywhere(jobs, tmp_path):
    ended = jobs.run("required", tmp_path, store=UNWRITABLE)
    assert ended.codes == [1, 1]
    all_say(ended, "LS230: the store cannot keep step.lockstep", f"at   {UNWRITABLE}")


def test_a_store_that_closes_after_the_work_is_no_fault(jobs, tmp_path):
    ended = jobs.run("closes_store_first", tmp_path)
    assert ended.codes == [0, 0]
    assert ended.of("fault") == ended.of("fault_seen") == []
    assert "LS400" not in "".join(ended.errors)


# ---- disagreement --------------------------------------------------------------------------------


def test_the_odd_contract_is_named_on_every_rank(jobs, tmp_path):
    ended = jobs.run("odd_contract", tmp_path, world=3)
    assert ended.codes == [1, 1, 1]
    all_say(
        ended,
        "LS400: rank 2 differs in inputs.tokens at train_step",
        "got  inputs.tokens i64[5, 16] on rank 2",
        "want inputs.tokens i64[8, 16] on ranks 0, 1",
        "fix  give every rank the same shapes",
    )
    assert ended.of("built") == []


def test_all_odd_ranks_and_fields_are_named_at_once(jobs, tmp_path):
    options = {"compilers": ["g++ 12", "g++ 13", "g++ 12", None], "rows": [8, 8, 5, 8]}
    ended = jobs.run("toolchains", tmp_path, world=4, **options)
    assert ended.codes == [1] * 4
    all_say(
        ended,
        "LS400: ranks 1, 2 differ in toolchain.compiler, inputs.tokens at train_step",
        "got  toolchain.compiler g++ 13 on rank 1; inputs.tokens i64[5, 16] on rank 2",
        "want toolchain.compiler g++ 12 on ranks 0, 3; inputs.tokens i64[8, 16] on ranks 0, 3",
    )


def test_a_rank_without_a_compiler_is_no_odd_one(jobs, tmp_path):
    ended = jobs.run("toolchains", tmp_path, compilers=["g++ 12", None], rows=[8, 8])
    assert ended.codes == [0, 0], ended.errors


def test_roles_build_their_own_programs_at_the_same_time(jobs, tmp_path):
    ended = jobs.run("roles", tmp_path, world=4, nodes=2)
    assert ended.codes == [0] * 4, ended.errors
    assert [(row["role"], row["by"]) for row in ended.results] == [
        *(("built", 0), ("loaded", 0), ("built", 2), ("loaded", 2)),
    ]
    digests = [row["digest"] for row in ended.results]
    assert digests[0] == digests[1] != digests[2] == digests[3]
    kept = {path.name: path.read_bytes() for path in (tmp_path / "store").glob("*.lockstep")}
    assert kept == {f"{n}.lockstep": b"program %d" % int(n[0]) for n in ("0", "1", "1b")}
    assert ended.of("fault") == []  # other steps in other roles are no other calls


def test_ranks_of_one_role_agree_and_a_fault_in_one_ends_all(jobs, tmp_path):
    odd = jobs.run("roles", tmp_path / "odd", world=4, nodes=2, odd=True)
    assert set(odd.codes) <= {1, STUCK}
    all_say(odd, "differs in rank at stage")
    failed = jobs.run("roles", tmp_path / "failed", world=4, nodes=2, fails=True)
    assert 0 not in failed.codes
    all_say(failed, "ValueError: no such stage")


def test_ranks_that_call_different_steps_are_told_at_once(jobs, tmp_path):
    ended = jobs.run("different_steps", tmp_path, world=3)
    assert ended.codes == [1, 1, 1]
    all_say(ended, "ranks call different steps", "ranks 0, 2 called train_step; rank 1 called")
    assert max(ended.seconds) < 5


def test_first_calls_are_compared(jobs, tmp_path):
    ended = jobs.run("different_calls", tmp_path, world=3)
    assert ended.codes == [1, 1, 1]
    all_say(
        ended,
        "LS400: rank 1 entered another call than ranks 0, 2",
        "got  eval_step (v0), its call 1 on rank 1",
        "want train_step (v0), its call 1 on ranks 0, 2",
    )


def test_a_rank_that_alone_meets_another_shape_does_not_hang_the_job(jobs, tmp_path):
    ended = jobs.run("lone_vote", tmp_path, world=3)
    assert set(ended.codes) <= {1, STUCK}
    all_say(
        ended,
        "rank 1 differs in inputs.tokens at call 3 of train_step: it alone met something new",
        "got  inputs.tokens i64[3, 16] on rank 1",
        "want inputs.tokens i64[8, 16] on ranks 0, 2",
        "ls.even_batches(loader, mesh)",
    )
    assert max(ended.seconds) < 5


def test_a_rank_that_alone_goes_on_is_the_odd_one(jobs, tmp_path):
    ended = jobs.run("known_alone", tmp_path, world=3)
    assert ended.codes == [1, 1, 1]
    all_say(
        ended,
        "rank 0 differs in inputs.tokens at call 2 of train_step: it alone went on with v0",
        "got  inputs.tokens i64[8, 16] on rank 0",
        "want inputs.tokens i64[3, 16] on ranks 1, 2",
    )


# ---- failures ------------------------------------------------------------------------------------


def test_an_error_in_the_builder_reaches_everyone_with_its_traceback(jobs, tmp_path):
    ended = jobs.run("builder_raises", tmp_path, world=3)
    assert ended.codes == [1, 1, 1]
    assert ended.errors[0].endswith("ValueError: no such layer: 7\n")
    for printed in ended.errors[1:]:
        told = "rank 0 failed while obtaining train_step: ValueError: no such layer: 7"
        assert printed.count(f"] LS400: {told}") == 1  # by the watcher, once
        assert "  traceback of rank 0:" in printed and ", in build" in printed
        assert f"lockstep.errors.FleetError: LS400: {told}" in printed
    assert sorted(row["rank"] for row in ended.of("fault_seen")) == [0, 1, 2]
    assert {row["culprit"] for row in ended.of("fault_seen")} == {0}


def test_a_damaged_artifact_is_an_error_everywhere(jobs, tmp_path):
    assert jobs.run("plain", tmp_path).codes == [0, 0]
    ended = jobs.run("damaged", tmp_path)
    assert ended.codes == [1, 1]
    all_say(ended, "ValueError: 12 bytes are not an artifact")


def test_an_uncaught_error_outside_of_any_guard_is_told(jobs, tmp_path):
    ended = jobs.run("uncaught", tmp_path)
    assert ended.codes == [1, 1]
    all_say(ended, "KeyError: 'learning_rate'")
    assert "rank 1 failed while running the script: KeyError: 'learning_rate'" in ended.errors[0]
    assert max(ended.seconds) < 5


def test_a_rank_that_swallows_its_error_is_ended(jobs, tmp_path):
    ended = jobs.run("swallows", tmp_path, world=3)
    assert ended.codes == [STUCK] * 3
    assert "still running train_step 1 s after the fault of rank 1, at " in ended.errors[0]
    assert "still running 1.5 s after the fault of rank 1, at " in ended.errors[1]
    assert "fleet_scenarios.py:" in ended.errors[1]
    assert "ValueError: bad batch" in ended.errors[2]
    assert max(ended.seconds) < 6


@pytest.mark.parametrize("signal", ["SIGKILL", "SIGSTOP"])
def test_the_build_is_taken_over_from_a_silent_builder(jobs, tmp_path, signal):
    ended = jobs.run("builder_struck", tmp_path, world=3, nodes=3, signal=signal, timing="dead=5")
    assert ended.codes[1:] == [1, 1] and ended.codes[0] != 0
    assert (tmp_path / "store/step.lockstep").read_bytes() == b"the artifact"  # for the restart
    takeovers = ended.of("takeover")
    assert len(takeovers) == 1 and takeovers[0]["rank"] in (1, 2)
    assert [row["rank"] for row in ended.of("built")] == [takeovers[0]["rank"]]
    for printed in ended.errors[1:]:
        assert "LS400: rank 0: no sign of life for 5 s, seen by rank 2" in printed


def test_a_builder_that_wakes_too_late_takes_the_winners_bytes(jobs, tmp_path):
    ended = jobs.run("builder_wakes", tmp_path, world=3, timing="dead=20")
    assert ended.codes == [0, 0, 0]
    assert len(ended.of("built")) == 2  # two built, one counts
    winner = ended.of("takeover")[0]["rank"]
    roles = ["built" if rank == winner else "loaded" for rank in range(3)]
    assert [row["role"] for row in ended.results] == roles
    assert {(row["by"], row["data"]) for row in ended.results} == {(winner, 12)}
    assert (tmp_path / "store/step.lockstep").read_bytes() == b"the artifact"


def test_a_machine_that_cannot_build_lets_another(jobs, tmp_path):
    ended = jobs.run("builder_full", tmp_path)
    assert ended.codes == [0, 0]
    assert [(row["role"], row["by"]) for row in ended.results] == [("loaded", 1), ("built", 1)]
    assert "cannot build here, another rank may: OSError" in ended.errors[0]
    assert "rank 1 takes over the build of train_step (attempt 2)" in ended.errors[1]


@pytest.mark.parametrize("options", [{"all": True}, {"stage": "capture"}])
def test_an_error_that_no_other_machine_would_cure_is_a_fault(jobs, tmp_path, options):
    ended = jobs.run("builder_full", tmp_path, **options)
    assert ended.codes == [1, 1]
    all_say(ended, "OSError: [Errno 28] No space left on device")
    assert ended.of("built") == []


def test_a_hung_compiler_ends_at_the_limit_of_those_that_wait(jobs, tmp_path):
    ended = jobs.run("builder_hangs", tmp_path, timing="build=2")
    assert ended.codes == [STUCK, 1]
    assert "LS400: gave up: rank 1 waits 2 s for rank 0 to build train_step" in ended.errors[1]
    assert "still obtaining train_step 1 s after a fault, at " in ended.errors[0]
    assert max(ended.seconds) < 2 + 1 + 5


def test_who_waits_says_for_whom_every_few_seconds(jobs, tmp_path):
    ended = jobs.run("builder_hangs", tmp_path, timing="build=3.5,say=1")
    for seconds in ("", "1 s ", "2 s ", "3 s "):
        told = f"rank 1 waits {seconds}for rank 0 to build train_step (attempt 1, "
        assert told in ended.errors[1], seconds


@pytest.mark.parametrize(("more", "kept"), [(1.5, True), (20.0, False)])
def test_a_takeover_may_end_its_build_within_a_bound(jobs, tmp_path, more, kept):
    timing = "dead=2.5,grace=1,finish=4"
    ended = jobs.run("takeover_is_slow", tmp_path, world=3, nodes=3, more=more, timing=timing)
    assert (tmp_path / "store/step.lockstep").exists() == kept
    taker = ended.of("takeover")[0]["rank"]
    assert ended.codes[taker] == (1 if kept else STUCK)
    assert f"rank {3 - taker} takes over" not in "".join(ended.errors)
    assert max(ended.seconds) < 2.5 + 1 + 4 + 5


@pytest.mark.parametrize("fails", [False, True])
def test_a_store_that_stops_holds_nobody_who_is_done_or_fails(jobs, tmp_path, fails):
    ended = jobs.run("store_stops", tmp_path, fails=fails)
    assert ended.codes == [0, STUCK if fails else 0], ended.errors
    if fails:
        told = "has not answered for 3 s; this rank tells the others of ValueError: bad batch"
        assert told in ended.errors[1]
    assert max(ended.seconds) < 10


def test_a_killed_peer_is_named_and_not_its_victim(jobs, tmp_path):
    ended = jobs.run("peer_killed", tmp_path, world=3)
    assert ended.codes == [1, KILLED, 1]
    for printed in (ended.errors[0], ended.errors[2]):
        assert "LS400: rank 1: no sign of life for 0.6 s, seen by rank" in printed
    assert {row["culprit"] for row in ended.of("fault_seen")} == {1}


def test_a_silent_rank_is_named(jobs, tmp_path):
    ended = jobs.run("silent_rank", tmp_path, world=3)
    assert ended.codes[:2] == [1, 1]
    for printed in ended.errors[:2]:
        assert "LS400: rank 2: no sign of life for 3 s, seen by rank 1" in printed
    assert "rank 0 waits 1 s for rank 2 to call train_step" in ended.errors[0]


def test_a_rank_that_has_ended_is_named(jobs, tmp_path):
    ended = jobs.run("leaves_early", tmp_path, world=3)
    assert ended.codes == [1, 0, 1]
    for printed in (ended.errors[0], ended.errors[2]):
        assert "LS400: rank 1 ended while the others wait for it to call train_step" in printed
    assert max(ended.seconds) < 5


def test_a_broken_watcher_is_a_fault_and_no_hang(jobs, tmp_path):
    ended = jobs.run("watcher_breaks", tmp_path)
    assert ended.codes == [1, STUCK]
    assert "rank 1 failed while watching the other ranks: ZeroDivisionError" in ended.errors[0]


@pytest.mark.parametrize("signal", ["SIGSTOP", "SIGKILL"])
def test_a_store_whose_host_is_struck_ends_the_wait(jobs, tmp_path, signal):
    ended = jobs.run("store_struck", tmp_path, signal=signal)
    if signal == "SIGSTOP":
        assert ended.codes == [STUCK, STUCK]
        all_say(ended, "the rendezvous store at 127.0.0.1:", "has not answered for 3 s; this rank")
    else:
        assert ended.codes == [1, 1]
        all_say(ended, "LS400: the rendezvous store at 127.0.0.1:", "or rank 0, has ended")
    assert max(ended.seconds) < 10


def test_a_wait_that_nobody_ends_gives_up(jobs, tmp_path):
    """The twin of all above: a rank that lives but never votes is only found by the limit."""
    ended = jobs.run("never_votes", tmp_path, timing="start=1,hard=1")
    assert ended.codes == [1, STUCK]
    assert "LS400: gave up: rank 0 waits 1 s for rank 1 to call train_step" in ended.errors[0]


def test_the_journal_has_whole_lines_only(jobs, tmp_path):
    jobs.run("builder_raises", tmp_path, world=3)
    for line in (tmp_path / "journal").read_text().splitlines():
        assert {"time", "event", "rank"} <= json.loads(line).keys()
