"""A whole training step on an accelerator that is not there: forward, backward, optimizer."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_a_training_step_at_two_indices_is_one_program() -> None:
    command = [sys.executable, "-m", "tests.devices.trained"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    first, second = json.loads(done.stdout.splitlines()[-1])
    assert first == second
    text, contract = first["text"], first["contract"]
    assert "pretended:" not in json.dumps(first), "no index, in text or metadata"
    assert "device=device(type='pretended')" in text
    for part in ("native_dropout.", "embedding_dense_backward", "native_dropout_backward", "sqrt"):
        assert part in text, part
    kinds = {spec["kind"]: spec["device"] for spec in contract["inputs"] if spec["kind"] != "state"}
    assert kinds == {"param": "pretended", "arg": "pretended", "float": "cpu"}
