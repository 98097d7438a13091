"""A miss says why: the nearest artifact of the same step, and each field that differs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lockstep.build.artifact import pack
from lockstep.build.differing import rows_of, table
from lockstep.build.program import Program
from lockstep.cli import main
from lockstep.errors import ArtifactError
from lockstep.fleet.stores import ArtifactStore
from lockstep.run.hit import verify
from lockstep.run.nearest import nearest, why_missed

HAD: dict[str, Any] = {
    "step": "train_step",
    "source model.forward": "ab12",
    "module model": {"class": "m.Model", "eps": (0.5).hex(), "sizes": [1, 2]},
    "flag mkldnn": True,
    "not covered": [],
}
WANTED: dict[str, Any] = {
    **HAD,
    "module model": {"class": "m.Model", "eps": (0.25).hex(), "sizes": [1, 3]},
    "flag mkldnn": False,
    "value m:SCALE": 2,
}


def artifact(fields: dict[str, Any], code: str = "def call(inputs): ...") -> bytes:
    return pack(
        {"step": fields["step"], "fingerprint": fields}, Program("graph", code, {}, {})
    ).to_bytes()


def kept(folder: Path, name: str, fields: dict[str, Any], code: str = "x = 1") -> Path:
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"{name}.lockstep"
    path.write_bytes(artifact(fields, code))
    return path


def test_rows_are_told_to_the_leaf_under_what_they_decide() -> None:
    assert table(rows_of(HAD, WANTED)) == [
        "3 that can change the program",
        "  module model: eps       0.5 -> 0.25",
        "  module model: sizes[1]  2 -> 3",
        "  value m:SCALE           - -> 2",
        "1 that can change how it is compiled",
        "  flag mkldnn             true -> false",
    ]
    assert rows_of(HAD, dict(HAD)) == []
    assert [row.decides for row in rows_of(HAD, {**HAD, "not covered": ["x"]})] == ["neither"]


def test_of_several_the_nearest_of_the_same_step_is_named(tmp_path: Path) -> None:
    store = tmp_path / "store"
    near = kept(store, "near", HAD)
    kept(store, "far", {**HAD, "source model.forward": "cd34", "module model": {}})
    kept(store, "other", {**WANTED, "step": "eval_step"})
    (store / "torn.lockstep").write_bytes(near.read_bytes()[:-1])
    found = nearest(store, WANTED)
    assert found is not None and found.path == near and len(found.rows) == 4
    told, event = why_missed(ArtifactStore(store), WANTED)
    assert told.startswith(f"nothing fits in {store}: nearest is near.lockstep, built ")
    assert told.endswith(
        "4 differ: module model: eps (0.5 -> 0.25), module model: sizes[1] (2 -> 3), "
        "value m:SCALE (- -> 2) and 1 more"
    )
    assert event["differ"] == 4 and event["rows"][0]["name"] == "module model: eps"


def test_a_first_build_says_that_it_is_the_first(tmp_path: Path) -> None:
    told, event = why_missed(ArtifactStore(tmp_path / "none"), WANTED)
    assert (told, event) == (f"no program of train_step in {tmp_path / 'none'} yet", {})


def test_the_mismatch_error_has_the_same_rows() -> None:
    with pytest.raises(ArtifactError) as raised:
        verify(artifact(HAD), WANTED, "a.lockstep", {})
    assert raised.value.got == "\n".join(
        ["module model: eps: 0.5", "module model: sizes[1]: 2", "value m:SCALE: -",
         "flag mkldnn: true"]
    )  # fmt: skip


def test_diff_prints_old_and_new(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = kept(tmp_path, "old", HAD), kept(tmp_path, "new", WANTED)
    assert main(["diff", str(old), str(new)]) == 1
    text = capsys.readouterr().out
    assert text.startswith("- old.lockstep: train_step, graph\n+ new.lockstep: train_step, graph\n")
    assert "  module model: eps       0.5 -> 0.25\n" in text
    assert main(["diff", str(old), str(old)]) == 0
    assert "one fingerprint, and their bytes are the same" in capsys.readouterr().out
    again = kept(tmp_path, "again", HAD, "x = 2")
    assert main(["diff", str(old), str(again)]) == 1
    assert "their bytes differ: built twice" in capsys.readouterr().out


def test_why_miss_reads_what_the_job_wrote(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, run = tmp_path / "store", tmp_path / "run"
    kept(store, "near", HAD)
    told, event = why_missed(ArtifactStore(store), WANTED)
    line = {"time": 1.0, "event": "missed", "rank": 0, "step": "train_step", "why": told, **event}
    run.mkdir()
    (run / "rank-00000.jsonl").write_text(json.dumps(line) + "\n")
    assert main(["why-miss", str(run), "--most", "2"]) == 1
    text = capsys.readouterr().out
    assert text.startswith(f"train_step: nothing fits in {store}: nearest is near.lockstep")
    assert text.endswith("  module model: sizes[1]  2 -> 3\n  and 2 more\n")
    (run / "rank-00000.jsonl").write_text(json.dumps({"time": 1.0, "event": "ready", "rank": 0}))
    assert main(["why-miss", str(run)]) == 0
    assert capsys.readouterr().out == (
        "nothing was missed: 1 programs were loaded from the store\n"
    )
    assert main(["why-miss", str(tmp_path / "gone")]) == 2
