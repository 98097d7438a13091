"""A comparison's rows, tables, JSON, and what it says where a job fails."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from lockstep.cli import main
from lockstep.errors import FleetError, UsageError
from lockstep.journal import Journal
from lockstep.report import compare as module
from lockstep.report.compare import Comparison, Row, compare, rows_of
from lockstep.report.compare_text import as_json, last_line, same_code, show
from lockstep.report.compilers import Recorder
from lockstep.report.job import Outcome
from lockstep.run.modes import ON, TORCH, TORCH_ONE_RANK

STATIC = {"torch": "2.14.1", "device": "cpu", "index": None, "flag": False, "devices": 2}


def ready(rank: int, role: str, **fields: object) -> dict:
    seconds = {"build": 4.0, "total": 5.0, "load": 0.5} if role == "built" else {}
    return {
        **STATIC, "event": "ready", "rank": rank, "role": role, "step": "train", "variant": "v0",
        "path": "s/a.lockstep", "digest": "ab" * 32, "by": 0,
        "seconds": {"total": 4.25, "load": 0.25, **seconds}, **fields,
    }  # fmt: skip


def ran(rank: int, call: int, seconds: float) -> dict:
    return {
        **STATIC, "event": "ran", "rank": rank, "step": "train", "variant": "v0", "call": call,
        "seconds": seconds,
    }  # fmt: skip


def torch_ready(rank: int, **fields: object) -> dict:
    seconds = {"compile": 9.0, "total": 11.0, "cpu": 12.0, "load": 0.0}
    return ready(rank, "built", seconds=seconds, frames=8, lowerings=3, hits=0, misses=3, **fields)


@pytest.fixture
def recorder(tmp_path) -> Recorder:
    made = Recorder(tmp_path / "compilers")
    (tmp_path / "compilers" / "starts").write_text("0 g++\n0 g++\n1 g++\n? g++\n")
    return made


def test_lockstep_rows_say_who_built_and_what_the_first_call_cost(recorder):
    events = [ready(1, "loaded"), ready(0, "built"), ran(0, 1, 1.0), ran(0, 2, 0.1), ran(1, 1, 2.0)]
    built, loaded = rows_of(ON, "cold", events, recorder)
    assert (built.rank, built.role, built.flag, built.compilers) == (0, "built", "building", 2)
    assert (built.compile_s, built.first_call_s) == (4.0, 6.5)
    assert (loaded.rank, loaded.role, loaded.flag, loaded.compilers) == (1, "loaded", "off", 1)
    assert (loaded.compile_s, loaded.first_call_s) == (0.0, 6.5)
    assert (built.path, built.digest, built.device) == ("s/a.lockstep", "ab" * 32, "cpu")


def test_torch_rows_count_the_run_within_the_first_call(recorder):
    events = [torch_ready(1, flag=True, device="cuda", index=3, devices=8), ran(1, 1, 11.0)]
    (row,) = rows_of(TORCH_ONE_RANK, "cold", events, recorder)
    assert (row.compile_s, row.first_call_s) == (9.0, 11.0)
    assert (row.flag, row.device, row.index, row.devices) == ("on", "cuda", 3, 8)
    assert row.role == "built"
    assert (row.detail["lowerings"], row.detail["processes"]) == (3, {"g++": 1})


def test_a_refusal_is_a_row_with_its_text(recorder):
    event = {**STATIC, "event": "refused", "rank": 0, "step": "train", "text": "LS200: no"}
    (row,) = rows_of(TORCH, "cold", [event], recorder)
    assert (row.role, row.digest, row.detail["text"]) == ("refused", None, "LS200: no")


def comparison(recorder: Recorder) -> Comparison:
    rows = [
        *rows_of(TORCH, "cold", [torch_ready(0), torch_ready(1)], recorder),
        *rows_of(ON, "cold", [ready(0, "built"), ready(1, "loaded")], recorder),
    ]
    return Comparison("t.py", 2, "2.14.1", rows, {TORCH: {"cold": 20.0}, ON: {"cold": 10.0}})


def test_the_tables_hold_each_rank_the_sums_and_the_last_line(recorder):
    out = Console(file=io.StringIO(), width=100)
    show(comparison(recorder), out)
    lines = [" ".join(line.split()) for line in out.file.getvalue().splitlines()]
    assert "torch cold 0 built abababab 9.00 11.00 2 off cpu (2)" in lines
    assert "Lockstep cold 1 loaded abababab 0.00 4.50 1 off cpu (2)" in lines
    assert "torch cold 2 0 1 18.00 11.00 3 20.0" in lines  # built, loaded, artifacts, sums
    assert "Lockstep cold 1 1 1 4.00 5.50 3 10.0" in lines
    assert "abababab Lockstep: s/a.lockstep" in lines
    assert lines[-1] == (
        "torch 2.14.1, 2 rank(s), compile_on_one_rank: torch off, Lockstep building or off"
    )


def test_whether_all_ranks_ran_the_same_code_is_said(recorder):
    rows = rows_of(TORCH, "cold", [torch_ready(0), torch_ready(1, digest="cd" * 32)], recorder)
    rows += rows_of(ON, "warm", [ready(rank, "loaded") for rank in range(3)], recorder)
    assert list(same_code(rows)) == [
        "torch, cold: the 2 ranks ran 2 different programs, 2 of 2 compiled it (train v0)",
        "Lockstep, warm: all 3 rank(s) ran the same code, 0 of 3 compiled it (train v0)",
    ]


def test_a_script_with_two_programs_names_them(recorder):
    events = [ready(0, "built"), ready(0, "built", step="evaluate", digest="cd" * 32)]
    rows = rows_of(ON, "cold", events, recorder)
    out = Console(file=io.StringIO(), width=120)
    show(Comparison("t.py", 1, "2.14.1", rows, {ON: {"cold": 1.0}}), out)
    text = out.file.getvalue()
    assert "evaluate v0" in text
    assert "train v0" in text
    # Its compilers were started by one process, and are counted once in the sum.
    assert "Lockstep cold 2 0 2 8.00 5.50 2 1.0" in " ".join(text.split())


def test_json_is_the_whole_comparison(recorder):
    found = comparison(recorder)
    read = json.loads(as_json(found))
    assert [Row(**row) for row in read.pop("rows")] == found.rows
    assert read.pop("same_code")[1] == (
        "Lockstep, cold: all 2 rank(s) ran the same code, 1 of 2 compiled it (train v0)"
    )
    assert read == {
        "script": "t.py", "world": 2, "torch": "2.14.1",
        "wall_s": {"torch": {"cold": 20.0}, "on": {"cold": 10.0}},
    }  # fmt: skip


def jobs(monkeypatch, outcomes: dict[str, Outcome], events: dict[str, list[dict]]) -> list[dict]:
    """Give `compare` these outcomes and journals, by LOCKSTEP's value; returns the environments."""
    seen = []

    def run_job(command: list[str], env: dict[str, str], limit_s: float) -> Outcome:
        seen.append({**env, "command": command})
        way = env["LOCKSTEP"] or ON
        journal = Journal(Path(env["LOCKSTEP_RUNS"]) / "latest" / "rank-0.jsonl", 0)
        for event in events.get(way, []):
            journal.event(event["event"], **{k: v for k, v in event.items() if k != "event"})
        journal.close()
        return outcomes.get(way, Outcome(0, "", 1.0))

    monkeypatch.setattr(module, "run_job", run_job)
    return seen


def test_each_way_has_caches_of_its_own_and_warm_follows_cold(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCKSTEP", "off")
    monkeypatch.setenv("TORCH_COMPILE_ON_ONE_RANK", "1")
    events = {way: [torch_ready(0)] for way in (TORCH, TORCH_ONE_RANK)} | {ON: [ready(0, "built")]}
    seen = jobs(monkeypatch, {}, events)
    told: list[str] = []
    found = compare(
        Path("t.py"), ("--lr", "3"), world=2, folder=tmp_path, limit_s=5, tell=told.append
    )
    assert [env["LOCKSTEP"] for env in seen] == ["torch"] * 2 + ["torch-one-rank"] * 2 + [""] * 2
    assert all("TORCH_COMPILE_ON_ONE_RANK" not in env for env in seen)
    for name in ("LOCKSTEP_STORE", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        assert len({env[name] for env in seen}) == 3
    assert len({env["LOCKSTEP_RUNS"] for env in seen}) == 6
    assert seen[0]["command"][1:] == [
        "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "t.py", "--lr", "3",
    ]  # fmt: skip
    assert told[0] == "torch, cold: t.py on 2 rank(s)"
    assert [(row.way, row.start) for row in found.rows] == [
        (way, start) for way in (TORCH, TORCH_ONE_RANK, ON) for start in ("cold", "warm")
    ]
    assert found.torch == "2.14.1"


def test_a_failing_script_is_told_with_the_end_of_its_output(tmp_path, monkeypatch):
    output = "\n".join(f"line {i}" for i in range(100)) + "\nKeyError: 'lr'\n"
    jobs(monkeypatch, {TORCH: Outcome(1, output, 1.0)}, {})
    with pytest.raises(FleetError) as caught:
        compare(Path("t.py"), (), world=2, folder=tmp_path, limit_s=5)
    text = str(caught.value)
    assert text.startswith("LS400: t.py failed, exit code 1 (torch, cold)\n  got  line 71\n")
    assert "KeyError: 'lr'\n  fix  LOCKSTEP=torch torchrun t.py alone shows the same" in text


def test_a_job_at_its_limit_names_the_flag(tmp_path, monkeypatch):
    jobs(monkeypatch, {TORCH: Outcome(None, "epoch 1", 5.0)}, {})
    with pytest.raises(FleetError, match=r"was stopped after 5 s[^$]*epoch 1\n  fix  --timeout"):
        compare(Path("t.py"), (), world=2, folder=tmp_path, limit_s=5)


def test_a_script_without_a_compiled_step_is_refused(tmp_path, monkeypatch):
    jobs(monkeypatch, {}, {})
    with pytest.raises(UsageError, match="without a call of a compiled step"):
        compare(Path("t.py"), (), world=1, folder=tmp_path, limit_s=5)


def test_what_torch_refuses_does_not_stop_the_comparison(tmp_path, monkeypatch, capsys):
    refused = {**STATIC, "event": "refused", "step": "train", "text": "LS200: no such op"}
    events = {TORCH: [torch_ready(0)], TORCH_ONE_RANK: [refused], ON: [ready(0, "built")]}
    seen = jobs(monkeypatch, {TORCH_ONE_RANK: Outcome(1, "", 1.0)}, events)
    script = tmp_path / "t.py"
    script.write_text("")
    page = tmp_path / "three.html"
    assert main(["compare", str(script), "--keep", str(tmp_path / "kept"), "-o", str(page)]) == 1
    assert len(seen) == 5  # a refused way has no warm start
    shown = capsys.readouterr()
    assert "refused" in shown.out
    assert "LS200: no such op" in shown.out
    assert "torch+flag, cold" in shown.err and str(page) in shown.err
    text = page.read_text()
    assert text.count('<article class="run"') == 5 and "--wide: 3" in text
    assert "Lockstep, warm: all 1 rank(s) ran the same code" in text


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["gone.py"], "LS001: gone.py is missing"),
        (["{script}", "--nproc-per-node", "0"], "LS001: --nproc-per-node 0 --timeout 1800"),
        (["{script}", "--keep", "{folder}"], "is not empty"),
    ],
)
def test_what_cannot_be_asked_is_exit_code_2(words, told, tmp_path, capsys):
    script = tmp_path / "t.py"
    script.write_text("")
    argv = [word.format(script=script, folder=tmp_path) for word in words]
    assert main(["compare", *argv]) == 2
    assert told in capsys.readouterr().err


def test_the_last_line_names_only_the_ways_that_ran(recorder):
    rows = rows_of(ON, "warm", [ready(0, "loaded")], recorder)
    assert last_line(Comparison("t.py", 1, "2.14.1", rows, {})) == (
        "torch 2.14.1, 1 rank(s), compile_on_one_rank: Lockstep off"
    )
