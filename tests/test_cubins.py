"""A program for CUDA is made without CUDA: text and binaries hold no index; its kernels start.

The device is a pretended sm_90 in a process of its own; what a launch does there, nobody sees.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lockstep.build.artifact import Artifact
from lockstep.build.cubins import Triton, launcher_text
from lockstep.errors import ArtifactError
from lockstep.run.cubins import Cubin, cubins

ROOT = Path(__file__).parents[1]


def lowered(folder: Path, *arguments: str) -> dict[str, Any]:
    folders = {"TORCHINDUCTOR_CACHE_DIR": str(folder), "TRITON_CACHE_DIR": str(folder / "triton")}
    command = [sys.executable, "-m", "tests.devices.lowered", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | folders, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def at_0(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return lowered(tmp_path_factory.mktemp("at_0"), "0", "whole")


@pytest.fixture(scope="module")
def at_3(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return lowered(tmp_path_factory.mktemp("at_3"), "3")


def test_index_0_and_index_3_give_one_program(at_0: Any, at_3: Any) -> None:
    for part in ("graph", "text", "sources"):
        assert at_0[part] == at_3[part]
    assert at_0["same"], "what is compared between ranks is what is shipped"


def test_no_index_and_no_compiler_is_in_it(at_0: Any) -> None:
    (source,) = at_0["sources"].values()
    for text in (at_0["graph"], at_0["text"], source):
        assert "cuda:" not in text and "index=0" not in text and "/" + "tmp" not in text
    assert "index=None" in source
    assert "torch.cuda.current_device()" in at_0["text"]
    assert "triton_helpers" not in at_0["text"] and "import triton" not in at_0["text"]


def test_the_binary_is_shipped_and_the_kind_of_device_is_required(at_0: Any) -> None:
    (digest,) = at_0["sources"]
    kinds = ("cubin", "json", "py")
    assert [b for b in at_0["blobs"] if "kernels/" in b] == [f"kernels/{digest}.{k}" for k in kinds]
    assert at_0["requires"]["accelerator"] == {
        "type": "cuda",
        "name": "Pretended",
        "capability": "9.0",
    }


def test_a_kernel_is_loaded_on_the_current_device_and_started(at_0: Any) -> None:
    (loaded, again), (started,) = at_0["loaded"], at_0["started"]
    assert loaded == again and loaded[0].startswith("triton_per_fused") and loaded[1] == 0
    function, *grid, warps, shared, types, given, stream = started
    assert (function, grid, shared, stream) == (2, [4, 1, 1], 0, 7)
    assert warps in (1, 2, 4, 8)
    assert types == "OOOOOiiOO" and len(given) == len(types)
    assert given[-4:] == [4, 4, None, None], "sizes, and the two places for scratch memory"


def test_the_grid_is_computed_at_each_start() -> None:
    text = launcher_text(["x", "xnumel"], [], ["-(xnumel // -64)", 1, 1], ["x", "xnumel"])
    launch = {"entry": "k", "warps": 4, "shared": 16, "types": "Oi", "launcher": text}
    calls: list[Any] = []
    cubin = Cubin(9, launch, lambda *call: calls.append(call))
    cubin.run("a", 65, stream=1)
    cubin.run("b", 64, stream=2)
    assert calls == [
        (9, 2, 1, 1, 4, 16, "Oi", ("a", 65), 1),
        (9, 1, 1, 1, 4, 16, "Oi", ("b", 64), 2),
    ]


def test_another_source_is_another_kernel() -> None:
    assert Triton("k", "a").digest == Triton("k", "a").digest
    assert len({Triton("k", "a").digest, Triton("k", "b").digest, Triton("l", "a").digest}) == 3


def test_a_lost_binary_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ArtifactError, match="holds no binary for kernel 12ab"):
        cubins(Artifact({}, {}, "").blobs, "here")("12ab")
