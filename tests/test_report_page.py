"""From a journal's events to what a page shows; the page itself is opened by `tests.page`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from lockstep.cli import main
from lockstep.report.page.collectives import by_axis
from lockstep.report.page.curves import charts_of
from lockstep.report.page.perfetto import as_trace
from lockstep.report.page.phases import PHASES, spans_of
from lockstep.report.page.render import as_html
from lockstep.report.page.run import Run, command_of, read_run, run_of
from tests.page import made_up


def events(world: int, steps: int = 0) -> list[dict]:
    found = [event for rank in range(world) for event in made_up.lines(rank, world, steps)]
    return sorted(found, key=lambda event: event["time"])


def run(world: int, steps: int = 0) -> Run:
    return run_of(events(world, steps), "made up")


def phases(own: list[dict]) -> list[tuple[str, float]]:
    return [(span.phase, round(span.seconds, 3)) for span in spans_of(own, own[-1]["time"])]


def test_the_builder_s_time_goes_to_the_phases_of_its_build():
    assert phases(made_up.lines(0, 8)) == [
        ("vote", 1.01), ("capture", 21.0), ("check", 2.0), ("compile", 60.0), ("wait", 1.5),
        ("compile", 0.5), ("ship", 1.0), ("load", 0.05), ("first step", 0.4),
    ]  # fmt: skip


def test_a_rehearsal_s_time_goes_to_what_was_done_before_it():
    own = made_up.lines(0, 8)
    ready = next(event for event in own if event["event"] == "ready")
    ready["seconds"] = {"read": 1.0, "rehearse": 28.0, "build": 60.5, "total": 89.5, "load": 0.5}
    assert phases(own) == [
        ("vote", 1.0), ("capture", 21.0), ("check", 2.0), ("wait", 1.5), ("check", 3.5),
        ("compile", 60.5), ("load", 0.5), ("first step", 0.4),
    ]  # fmt: skip
    ready["role"] = "loaded"
    assert ("wait", 28.0) in phases(own)


def test_who_loads_waits_and_its_phases_end_where_it_is_ready():
    own = made_up.lines(3, 8)
    assert [name for name, _ in phases(own)] == ["vote", "wait", "ship", "load", "first step"]
    ready = next(event["time"] for event in own if event["event"] == "ready")
    load = next(span for span in spans_of(own, ready) if span.phase == "load")
    assert load.begin + load.seconds == pytest.approx(ready)


def test_a_rank_that_never_came_so_far_is_shown_by_what_it_said():
    told = [
        {"event": "start", "time": 0.0},
        {"event": "stage", "time": 1.0, "stage": "capture", "topic": "step/v0"},
        {"event": "stage", "time": 4.0, "stage": "lower", "topic": "step/v0"},
    ]
    spans = spans_of(told, 10.0)
    found = [(span.phase, span.begin, span.seconds, span.open) for span in spans]
    assert found == [("capture", 1.0, 3.0, False), ("compile", 4.0, 6.0, True)]
    ended = [*told, {"event": "fault", "time": 5.0}]
    assert [span.open for span in spans_of(ended, 10.0)] == [False, True]
    assert spans_of(ended, 10.0)[-1].seconds == 1.0


def test_ranks_that_did_alike_are_one_group():
    found = run(1000)
    assert [group.name for group in found.groups] == ["built: rank 0", "loaded: ranks 1-999"]
    assert found.groups[1].indexes == list(range(8))
    (program,) = found.programs
    assert (program.loaded, program.builders, program.saved_s) == (999, [0], 999 * 84.5)
    assert found.said_of_code() == [f"train_step v0: all 1000 ranks ran the same code, {'ab' * 6}"]


def test_a_rank_with_another_program_is_not_said_to_run_the_same():
    odd = events(4)
    next(e for e in odd if e["event"] == "ready" and e["rank"] == 2)["digest"] = "cd" * 32
    found = run_of(odd, "odd")
    assert found.said_of_code()[0].startswith("train_step v0: 2 different programs on 4 ranks")
    assert len(found.groups) == 3


def test_collectives_are_added_up_by_axis():
    rows = [
        (row.axis, row.op, row.count, row.bytes, row.lines) for row in by_axis(made_up.SCHEDULE)
    ]
    each = 4096 * 1024 * 4
    assert rows == [
        ("dp", "all_reduce", 2, 2 * each, ["train.py:21", "train.py:22"]),
        ("tp", "all_reduce", 1, each, ["train.py:30"]),
    ]
    (unknown,) = by_axis([{"op": "all_gather", "axis": "dp", "shape": ["s0"], "dtype": "bf16"}])
    assert unknown.bytes is None


def test_few_ranks_have_curves_of_their_own_and_many_a_mean_with_a_band():
    few = run(2, steps=30).charts
    assert [chart.name for chart in few] == ["loss", "step time, s"]
    assert [series.label for series in few[0].series] == ["rank 0", "rank 1"]
    assert few[0].series[0].y[:2] == [5.0, 2.5] and few[1].series[0].y[0] == 1.0
    (mean,) = run(16, steps=1000).charts[0].series
    assert mean.label == "mean of 16 ranks" and len(mean.x) == 400
    assert all(low <= y <= high for low, y, high in zip(mean.low, mean.y, mean.high, strict=True))
    assert charts_of({0: [{"event": "record", "time": 1.0, "step": 1, "note": "text"}]}) == []


def test_the_line_that_reproduces_a_run():
    start = {
        "argv": ["/bin/python", "-u", "-X", "dev", "-m", "train", "--name", "a b"],
        "world": 16,
    }
    line = command_of({**start, "nproc": 8, "environment": {"LOCKSTEP_STORE": "/a b"}})
    assert line == (
        "LOCKSTEP_STORE='/a b' torchrun --nproc-per-node 8 --nnodes 2 -m train --name 'a b'"
    )
    alone = {"argv": ["python", "t.py"], "world": 1, "environment": {}}
    assert command_of(alone) == "python t.py"


def test_a_page_needs_nothing_else_and_what_a_journal_says_stays_text():
    told = events(2, steps=3)
    next(e for e in told if e["event"] == "program")["check"]["established"] = ["</script><b>&"]
    told.append({**told[-1], "event": "fault", "what": "<img src=x>", "culprit": 1})
    page = as_html([run_of(told, "</script><i>")], "a <run>")
    assert re.findall(r"""(?:src|href|url)\W+"([^"]*)""", page) == ["data:,"]
    assert "</script><i>" not in page and "</script><b>" not in page and "<img src" not in page
    assert page.count("</script>") == 2


def test_a_page_of_many_ranks_grows_by_a_few_bytes_a_rank():
    small, large = (len(as_html([run(world)], "")) for world in (8, 1008))
    assert (large - small) / 1000 < 300


def test_the_trace_holds_each_span_in_microseconds():
    trace = json.loads(as_trace(run(2)))["traceEvents"]
    spans = [event for event in trace if event["ph"] == "X" and event["tid"] == 0]
    assert {event["name"] for event in spans} == set(PHASES)
    assert next(e for e in spans if e["name"] == "capture")["dur"] == 21_000_000


def test_the_verb_writes_a_page_and_prints_its_path(tmp_path, capsys):
    folder = made_up.journal(tmp_path / "run", 2, steps=2)
    assert main(["report", str(folder), "--perfetto", str(tmp_path / "t.json")]) == 0
    path = Path(capsys.readouterr().out.strip())
    assert path == folder / "report.html" and "<!doctype html>" in path.read_text()
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert main(["report", str(folder), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["world"] == 2 and told["groups"][0]["roles"] == {"train_step v0": "built"}
    assert read_run(folder).seen == 2


@pytest.mark.parametrize(("words", "told"), [(["gone"], "is no folder"), (["."], "no journal")])
def test_what_is_no_run_is_exit_code_2(words, told, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["report", *words]) == 2
    assert told in capsys.readouterr().err
