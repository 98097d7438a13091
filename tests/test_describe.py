"""`lockstep show`'s text: everything in the manifest, in rows, from the file's bytes alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import lockstep as ls
from lockstep.build.artifact import pack
from lockstep.build.describe import describe
from lockstep.build.program import Program
from lockstep.errors import ArtifactError

MANIFEST = {
    "step": "train_step",
    "nodes": 12,
    "built": {"time": 0, "rank": 0, "world": 2, "seconds": {"lower": 2.04, "capture": 1}},
    "fingerprint": {"mesh dp": 2, "backend": "graph"},
    "contract": {
        "inputs": [
            {"name": "wte", "kind": "param", "shape": [8, 4], "dtype": "float32", "ties": ["head"]},
            {"name": "tokens", "kind": "arg", "shape": [2], "dtype": "int64", "ties": []},
        ],
        "returns": [{"kind": "output", "index": 0, "value": None}],
        "effects": [{"kind": "grad", "name": "wte", "output": 1, "input": None}],
    },
    "schedule": [
        {
            "op": "all_reduce",
            "axis": "dp",
            "shape": [8, 4],
            "dtype": "bfloat16",
            "line": "train.py:9",
            "phase": "backward",
        }
    ],
    "later": [1],
}


def shown(tmp_path: Path) -> str:
    path = tmp_path / "step.lockstep"
    program = Program("graph", "raise SystemExit", {}, {"torch": "2.14.1", "ops": []})
    path.write_bytes(pack(MANIFEST, program).to_bytes())
    return describe(path)


def test_the_whole_text(tmp_path: Path) -> None:
    lines = shown(tmp_path).splitlines()
    assert lines[0].startswith("step.lockstep: verified, ") and lines[0].endswith(", format 3")
    assert lines[1].startswith("  sha256    ") and len(lines[1].split()[1]) == 64
    assert lines[2] == "  signed    by nobody"
    blobs = ("  program.code  ", "  program.py    16 bytes   deflated to 24 bytes  ")
    assert [next((b for b in blobs if line.startswith(b)), line) for line in lines[3:]] == [
        "  step      train_step, back end graph, 12 nodes",
        "  built     1970-01-01 00:00:00 UTC, by rank 0 of 2, capture 1.0 s, lower 2.0 s",
        "",
        "requires (1)",
        "  torch  2.14.1",
        "",
        "inputs (2)",
        "  param  wte = head  f32[8, 4]",
        "  arg    tokens      i64[2]",
        "",
        "returns (1)",
        "  output  index 0",
        "",
        "effects (1)",
        "  grad  wte  output 1",
        "",
        "collectives (1)",
        "  all_reduce  dp  bf16[8, 4]  backward  train.py:9",
        "",
        "blobs (2)",
        *blobs,
        "",
        "fingerprint (2)",
        "  backend  graph",
        "  mesh dp  2",
        "",
        "also (1)",
        "  later  [1]",
    ]


def test_a_bare_artifact_and_a_damaged_one(tmp_path: Path) -> None:
    path = tmp_path / "bare.lockstep"
    data = pack({}, Program("graph", "", {}, {})).to_bytes()
    path.write_bytes(data)
    assert "step      no name, back end graph" in describe(path)
    path.write_bytes(data[:-30])
    with pytest.raises(ArtifactError, match=r"bare\.lockstep"):
        describe(path)


def test_sizes_that_may_differ_are_ranges_and_what_has_to_hold_is_told(tmp_path):
    def step(x, y):
        return (x + y)[: x.shape[0] // 2]

    mesh = ls.mesh(dp=-1)
    dynamic = {"x": {0: (2, 64)}, "y": {0: (2, 64)}}
    compiled = ls.compile(step, mesh=mesh, backend="graph", store=tmp_path, dynamic=dynamic)
    compiled(torch.ones(8, 3), torch.ones(8, 3))
    (path,) = tmp_path.glob("*.lockstep")
    text = describe(path)
    assert "arg  x  f32[2..64, 3]" in text
    assert any(line.split() == ["x.shape[0]", "2..64"] for line in text.splitlines())
    assert "  x.shape[0] == y.shape[0]" in text
    assert "tests/test_describe.py:" in text
