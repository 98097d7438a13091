"""The benchmarks measure what they say, and a line that does not hold fails."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
import torch

from bench import startup, step
from bench.measure import age_seconds, cpu_seconds, spread

BURN = "import time\nwhile time.process_time() < 0.5: pass"


def test_cpu_seconds_count_children_that_ended_and_that_live():
    before = cpu_seconds()
    subprocess.run([sys.executable, "-c", BURN], check=True)
    ended = cpu_seconds() - before
    assert 0.4 < ended < 2
    child = subprocess.Popen(
        [sys.executable, "-c", f"{BURN}\nprint(1, flush=True)\ninput()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert child.stdout.readline() == b"1\n"
        assert cpu_seconds() - before - ended > 0.4
    finally:
        child.communicate(b"\n")


def test_cpu_seconds_do_not_count_waiting():
    before = cpu_seconds()
    subprocess.run(["sleep", "0.5"], check=True)
    assert cpu_seconds() - before < 0.3


def test_age_is_that_of_the_process():
    code = "from bench.measure import age_seconds; print(age_seconds())"
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 0 < float(done.stdout) <= time.monotonic() - start + 0.02
    assert age_seconds() > float(done.stdout)


def starts(cpu: float, wall: float, first: float) -> startup.Starts:
    return startup.Starts([cpu], [wall], [first])


def measured(**changes: startup.Starts) -> tuple[dict, dict]:
    ours, own, shared, graph = (
        way.name for way in (startup.OURS, startup.OWN, startup.SHARED, startup.GRAPH)
    )
    cold = {
        ours: changes.get("ours", starts(30, 25, 20)),
        own: starts(120, 75, 60),
        shared: starts(60, 40, 30),
        f"one rank, {ours}": changes.get("alone", starts(30, 20, 18)),
        f"one rank, {own}": starts(30, 20, 18),
    }
    warm = {
        ours: changes.get("again", starts(1, 3, 0.1)),
        own: starts(20, 9, 4.0),
        shared: starts(20, 9, 4.1),
        graph: starts(1, 3, 0.08),
    }
    return cold, warm


def test_lines_that_hold_are_told_with_their_figures():
    lines = startup.judge(*measured(), ranks=4)
    assert [holds for holds, _ in lines] == [True] * 4
    assert (
        "(a) compile CPU seconds over 4 ranks: 0.250 of every rank's own, at most 0.312"
        in (lines[0][1])
    )
    assert "4 ranks share these" in lines[1][1]
    assert "3.00 times faster" in lines[1][1]
    assert "0.100 s, 40.0 times faster than warm torch.compile" in lines[3][1]
    assert "graph 0.080 s" in lines[3][1]


@pytest.mark.parametrize(
    ("changes", "fails"),
    [
        ({"ours": starts(38, 25, 20)}, [0]),
        ({"ours": starts(30, 31, 20)}, [1]),
        ({"alone": starts(30, 27, 18)}, [2]),
        ({"again": starts(1, 3, 0.3)}, [3]),
    ],
)
def test_a_line_that_does_not_hold_fails(changes, fails):
    lines = startup.judge(*measured(**changes), ranks=4)
    assert [i for i, (holds, _) in enumerate(lines) if not holds] == fails


def test_the_spread_of_one_and_of_several():
    assert spread([2.0]) == "2.00"
    assert spread([1.0, 9.0, 2.0], digits=1) == "2.0 (1.0-9.0)"


def test_peak_bytes_are_those_live_at_once():
    def both():
        return torch.ones(1000), torch.ones(1000)

    def in_turn():
        torch.ones(1000)
        torch.ones(1000)

    assert step.peak_bytes(both) >= 8000
    assert 4000 <= step.peak_bytes(in_turn) < 8000


def test_steps_are_timed_in_turn():
    order = []
    made = {name: lambda name=name: order.append(name) for name in "abc"}
    taken = step.seconds(made, lambda: None, 2)
    assert "".join(order) == "abcbca"
    assert [len(times) for times in taken.values()] == [2, 2, 2]


def fake_start(way, ranks, layers, caches, *, cold_s, warm_s=0.0):
    """Pretend a job: by back end, the first start in a folder is cold, later ones are warm."""
    mark = caches / "seen"
    cost = warm_s if mark.exists() else cold_s[way.backend]
    mark.touch()
    share = cost if way.own_caches or way.backend == "torch" else cost / ranks
    return [{"cpu_s": share, "wall_s": cost + 2, "start_s": cost}] * ranks


@pytest.mark.parametrize(("torch_s", "code", "told"), [(200.0, 1, "3 of 4"), (20.0, 1, "2 of 4")])
def test_startup_runs_each_way_cold_and_warm_and_fails_as_a_whole(
    torch_s, code, told, monkeypatch, capsys
):
    cold = {"torch": torch_s, "inductor": 20.0, "graph": 2.0}

    def start(way, ranks, layers, caches):
        return fake_start(way, ranks, layers, caches, cold_s=cold, warm_s=1.0)

    monkeypatch.setattr(startup, "start", start)
    monkeypatch.setenv("COLUMNS", "160")
    assert startup.main(ranks=4, repeat=2) == code
    out = capsys.readouterr().out
    assert out.splitlines()[-1] == f"{told} lines hold; medians of 2"
    assert "FAILS  (d) restart, slowest rank: 1.000 s, 1.0 times faster" in out
    for way in (startup.OURS, startup.OWN, startup.SHARED, startup.GRAPH):
        assert f"cold: {way.name}" in out
        assert f"warm: {way.name}" in out
    assert f"cold: one rank, {startup.OWN.name}" in out


def test_a_job_that_fails_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(startup, "ROOT", tmp_path)  # where there is no script to start
    with pytest.raises(SystemExit, match=r"Lockstep, graph: the job ended with 1"):
        startup.start(startup.GRAPH, 1, 1, tmp_path)
