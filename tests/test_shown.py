"""`lockstep show --html`: an artifact's graph as a page, and what `ls.record` keeps."""

from __future__ import annotations

import json

import pytest
import torch

import lockstep as ls
from lockstep.build.artifact import Artifact, pack
from lockstep.build.bundle import pack_bundle
from lockstep.build.graph_table import packed_table
from lockstep.build.program import Program
from lockstep.cli import main
from lockstep.journal import read_journals
from lockstep.report.shown import render
from lockstep.run import session as sessions
from tests.page import made_up

PROGRAM = Program("graph", "def call(inputs): ...\n", {}, {})


def test_the_page_holds_every_node_and_needs_nothing_else(tmp_path, capsys):
    file = made_up.artifact(tmp_path / "a.lockstep", layers=1)
    page = tmp_path / "a.html"
    assert main(["show", "--html", "-o", str(page), str(file)]) == 0
    text = page.read_text()
    assert capsys.readouterr().out.strip() == str(page)
    assert text.count("aten.mm.default") == 480 and text.count("_c10d_functional.all_red") == 8
    assert "train.py:21" in text and "https:" not in text
    assert "blobs (3)" in text


def test_a_value_s_type_and_its_gradient_s_stand_in_its_row():
    table = [["x", "forward", "t.py:1", "layer", "%0 = x"], ["g", "backward", "", "", "%1 = g"]]
    types = {"x": {"dp": "R|I"}, "g": {"dp": "P", "tp": "S(0)"}}
    rows = json.loads(packed_table(table, types, {"x": "g"}))
    assert rows == [
        ["%0 = x", "t.py:1", "layer", "forward", "dp: R|I", "dp: P, tp: S(0)", "x"],
        ["%1 = g", "", "", "backward", "dp: P, tp: S(0)", "", "g"],
    ]


def test_a_file_without_a_graph_says_so_and_a_bundle_is_refused(tmp_path, capsys):
    file = tmp_path / "old.lockstep"
    file.write_bytes(pack({"step": "s"}, PROGRAM).to_bytes())
    assert "holds no table of its graph." in render.as_html(file)
    bundle = tmp_path / "b.lockstep"
    bundle.write_bytes(pack_bundle({"a.lockstep": file.read_bytes()}))
    assert main(["show", "--html", str(bundle)]) == 2
    assert "is a bundle" in capsys.readouterr().err


def test_a_step_s_graph_and_what_is_recorded_are_kept(monkeypatch):
    mesh = ls.mesh(dp=-1)

    @ls.compile(mesh=mesh, backend="graph")
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    with monkeypatch.context() as patch:
        patch.setattr(sessions, "_journal", None)
        with pytest.raises(ls.LockstepError, match="before the first call of a compiled step"):
            ls.record(1, loss=1.0)
    double(torch.ones(3))
    here = sessions.session()
    monkeypatch.setattr(sessions, "_journal", here.journal)
    ls.record(1, loss=torch.tensor(2.5))
    events = read_journals(here.folder)
    assert [e["loss"] for e in events if e["event"] == "record"][-1] == 2.5
    ready = [e for e in events if e["event"] == "ready" and e["step"] == double.name][-1]
    (noted,) = [e for e in events if e["event"] == "program" and e["step"] == double.name]
    assert noted["schedule"] == [] and noted["check"]["mode"] == "types"
    with open(ready["path"], "rb") as file:  # noqa: PTH123
        nodes = render.nodes_of(Artifact.from_bytes(file.read()))
    (row,) = [row for row in nodes if "aten.mul" in row[0]]
    assert row[0].endswith("-> float32[3]") and row[3] == "forward"
    assert row[1].startswith("tests/test_shown.py:")
