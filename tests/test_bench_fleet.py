"""The benchmark of a fleet: its model is held to larger jobs, and what grows too much fails."""

from __future__ import annotations

import dataclasses

import pytest

from bench import fleet
from bench.fleet_ranks import Costs


def job(ranks, **changes):
    """What a job costs that is as the model has it: 10 messages a rank, and 1 ms of CPU."""
    nodes = -(-ranks // 2)
    made = Costs(
        ranks, [0.3, 0.1], [10.0] * ranks, ranks * 0.001, 1e-5, [1.0] * nodes,
        fleet.depth(nodes), 0.002,
    )  # fmt: skip
    return dataclasses.replace(made, **changes)


def judged(**changes):
    """The lines of two kinds of jobs, of which the largest that agree are changed."""
    sizes = (2, 4, 8, 32)
    agreed = [job(ranks, **(changes if ranks == 32 else {})) for ranks in sizes]
    models = [fleet.model_of(agreed, 1e-6), fleet.model_of(list(map(job, sizes)), 1e-6)]
    return fleet.judge(agreed, list(map(job, sizes)), models), models[0]


def test_the_model_is_found_in_small_jobs_and_says_what_a_large_one_costs():
    lines, model = judged()
    assert (model.calls, model.host_s, model.hop_s) == (10, 1e-5, 0.002)
    assert model.rank_s == pytest.approx(0.001)
    assert model.there(16384) == pytest.approx(0.001 + 6 * 0.002 + 16384 * (1e-4 + 1e-6))
    assert [holds for holds, _ in lines] == [True] * 6
    assert lines[4][1] == ("32 ranks agree in 35.2 ms of CPU, 1.00 times the model's, at most 2")
    assert "6 levels at 16384" in lines[3][1]


@pytest.mark.parametrize(
    ("changes", "fails"),
    [
        ({"reads": [1.0] * 15 + [2.0]}, [0]),
        ({"calls": [20.0] * 32}, [1]),
        ({"rank_cpu_s": 0.1}, [4]),
        ({"rank_cpu_s": 0.001}, [4]),
    ],
)
def test_a_job_that_costs_otherwise_fails(changes, fails):
    lines, _ = judged(**changes)
    assert [i for i, (holds, _) in enumerate(lines) if not holds] == fails


def test_bytes_that_pass_too_many_nodes_fail():
    jobs = [job(2), job(32, hops=9)]
    lines = fleet.judge(jobs, jobs, [fleet.model_of(jobs, 1e-6)] * 2)
    assert [i for i, (holds, _) in enumerate(lines) if not holds] == [3]


def test_a_tree_of_four_is_as_deep_as_it_has_to_be():
    assert [fleet.depth(nodes) for nodes in (1, 2, 5, 6, 21, 22, 2048)] == [0, 1, 1, 2, 2, 3, 6]
