"""Who keeps a job from going on, by what its ranks have called."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import pytest

from lockstep.build.artifact import PROGRAM, pack
from lockstep.build.bytecode import filename_of
from lockstep.build.program import Program
from lockstep.cli import main
from lockstep.errors import UsageError
from lockstep.journal import Journal
from lockstep.report.hang.dumps import calls_of, read_dumps
from lockstep.report.hang.judge import Hang, judge
from lockstep.report.hang.program import lines_of
from lockstep.report.hang.text import lines
from lockstep.run import traced


def entry(number: int, line: int, done: bool = True, size: int = 8, **more: object) -> dict:
    frames = [
        {"name": "all_reduce", "filename": "/lib/torch/distributed/c10d.py", "line": 9},
        {"name": "step", "filename": "/home/me/train.py", "line": line},
    ]
    return {
        "record_id": number, "profiling_name": "gloo:all_reduce", "frames": frames,
        "process_group": ("0", "default_pg"), "input_sizes": [[size]], "input_dtypes": ["Float"],
        "state": "completed" if done else "started", "is_p2p": False, **more,
    }  # fmt: skip


def dump(*lines: int, open_last: bool = True, first: int = 0, world: int = 4) -> dict:
    """A rank that has called on these lines, and stands in the last one."""
    ends = [not (open_last and i == len(lines) - 1) for i in range(len(lines))]
    ranks = json.dumps(list(range(world)))
    return {
        "entries": [entry(first + i, line, ends[i]) for i, line in enumerate(lines)],
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": ranks}},
        "version": "2.10",
    }


def hang(**dumps: dict) -> Hang:
    return judge({int(name[1:]): calls_of(int(name[1:]), d, {}) for name, d in dumps.items()})


ALL, ON = dump(1, 2, 3), "all_reduce over all ranks of f32[8] at train.py"


def test_a_skipped_call_is_named_with_its_rank_and_line():
    found = hang(r0=dump(1, 2, 3, 4), r1=dump(1, 2, 3, 4), r2=dump(1, 3, 4, open_last=False))
    assert found.culprits == [2]
    assert found.said == [f"rank 2 skipped collective 2, {ON}:2: it went on to {ON}:3"]
    assert list(lines(found))[2:] == [
        f"ranks 0-1: collective 4 of 4, {ON}:4: waits for rank 2 to join it",
        f"rank 2: collective 3 of 4, {ON}:4: has made it, and calls no other",
    ]


def test_swapped_and_added_and_other_calls():
    swapped = hang(r0=ALL, r1=ALL, r2=dump(1, 3, 2))
    assert swapped.said == [f"rank 2 swapped collectives 2 and 3: first {ON}:3, then {ON}:2"]
    added = hang(r0=ALL, r1=ALL, r2=dump(1, 9, 2))
    assert added.said == [f"rank 2 alone made collective 2, {ON}:9"]
    other = hang(r0=dump(1, 2), r1=dump(1, 2), r2=dump(1, 9))
    assert other.said == [f"rank 2 made {ON}:9 as collective 2, the others {ON}:2"]


def test_a_rank_that_is_behind_and_one_that_left_nothing():
    behind = hang(r0=ALL, r1=ALL, r2=ALL, r3=dump(1, 2, open_last=False))
    assert behind.culprits == [3]
    assert behind.said == [
        f"rank 3 stands after collective 2, {ON}:2, and never made collective 3, {ON}:3"
    ]
    gone = hang(r0=ALL, r1=ALL, r2=ALL)
    assert gone.culprits == [3]
    told = f"rank 3 left no record: ended before all were through with collective 3, {ON}:3"
    assert gone.said == [told]


def test_nothing_hangs_where_every_call_has_ended():
    done = dump(1, 2, open_last=False, world=2)
    retired = {
        **done,
        "entries": [{**e, "state": "scheduled", "retired": True} for e in done["entries"]],
    }
    found = hang(r0=done, r1=retired)
    assert found.culprits == [] and not any(stand.waits for stand in found.stands)


def test_records_that_are_rings_are_compared_from_where_all_reach_back_to():
    found = hang(r0=dump(3, 4, first=2), r1=dump(2, 3, 4, first=1), r2=ALL, r3=dump(3, first=2))
    assert found.culprits == [2, 3]
    assert found.said[0].endswith(f"and never made collective 4, {ON}:4")


class Bomb:
    def __reduce__(self) -> tuple:
        return os.system, ("touch exploded",)


def test_a_dump_runs_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "trace_0"
    file.write_bytes(pickle.dumps({"entries": [Bomb()]}))
    with pytest.raises(UsageError, match=r"is no flight-recorder dump\n  got  UnpicklingError"):
        read_dumps([file])
    assert not Path("exploded").exists()
    pickle.loads(file.read_bytes())  # the twin: an ordinary reader runs it
    assert Path("exploded").exists()


def test_the_verb_reads_pickles_and_json(tmp_path, capsys):
    for rank in range(4):
        found = dump(1, 2, open_last=False) if rank == 1 else ALL
        file = tmp_path / f"nccl_trace_rank_{rank}"
        data = pickle.dumps(found) if rank % 2 else json.dumps(found).encode()
        file.write_bytes(data)
    assert main(["explain-hang", str(tmp_path)]) == 1
    assert capsys.readouterr().out.startswith("rank 1 stands after collective 2, all_reduce over")
    assert main(["explain-hang", str(tmp_path / "gone_1")]) == 2


TEXT = """def call(inputs):
    a = torch.ops._c10d_functional.all_reduce.default(x, 'sum', 'dp')
    a = torch.ops._c10d_functional.wait_tensor.default(a)
    return (torch.ops._c10d_functional.all_reduce.default(a, 'sum', 'dp'),)
"""


def test_a_program_s_lines_are_told_as_the_user_s(tmp_path):
    schedule = [{"op": "all_reduce", "line": f"train.py:{line}"} for line in (31, 32)]
    made = pack({"step": "s", "schedule": schedule}, Program("graph", TEXT, {}, {}))
    file = tmp_path / "s.lockstep"
    file.write_bytes(made.to_bytes())
    (name,) = found = lines_of([file])
    assert found == {name: {2: "train.py:31", 4: "train.py:32"}}
    assert name == filename_of(json.loads(json.dumps(made.manifest["code"]["source"])))
    assert made.blobs[PROGRAM].decode() == TEXT
    frames = [{"name": "call", "filename": name, "line": 4}]
    told = {"entries": [entry(0, 9, frames=frames)], "pg_config": {}}
    (call,) = calls_of(0, told, found).calls
    assert call.line == "train.py:32"


class FakeOps:
    """Stands for torch's operators: each gives back what it gets."""

    def __getattr__(self, name: str) -> FakeOps:
        return self

    def __call__(self, x: object, *_: object) -> object:
        return x


def test_a_traced_program_writes_down_where_it_is(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(traced, "_record", traced.Record(tmp_path / "rank-00000.calls", 0))
    monkeypatch.setattr(traced._compat, "functional_collectives", FakeOps)
    text = traced.traced_text(TEXT)
    assert "torch" not in text and text.count("lockstep_traced.") == 3
    scope: dict = {**traced.scope(), "x": 1}
    exec(text, scope)
    monkeypatch.setenv(traced.VARIABLE, "1")
    program = traced.told(scope["call"], "step v0")
    program([])
    program([])
    at = json.loads((tmp_path / "rank-00000.calls").read_text())
    assert (at["program"], at["call"], at["began"], at["ended"]) == ("step v0", 2, 2, 1)
    schedule = [{"op": "all_reduce", "axis": "dp", "line": f"t.py:{line}"} for line in (3, 4)]
    noted = {"step": "step", "variant": "v0", "schedule": schedule}
    Journal(tmp_path / "rank-00000.jsonl", 0, world=2).event("program", **noted)
    assert main(["explain-hang", str(tmp_path)]) == 1
    told = capsys.readouterr().out
    assert told.startswith("rank 1 left no record: ended before all were through with collective 2")
    assert "rank 0: step v0, call 2, collective 2 of 2" in told and "t.py:4" in told
    monkeypatch.setenv(traced.VARIABLE, "0")
    assert traced.told(program, "step v0") is program  # the twin: nothing is written down
