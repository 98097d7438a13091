"""Every example does what it says, on the ranks that it asks for."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from lockstep.report.job import run_job

EXAMPLES = Path(__file__).parents[2] / "examples"
RANKS = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
# Example -> what comes before it, and what its output must hold.
WANTED = {
    "data_parallel.py": (RANKS, r"mean error of all ranks: 0\.\d\d"),
    "fully_sharded.py": (RANKS, r"step 2: loss \d\.\d{3}"),
    "tensor_parallel.py": (RANKS, r"step 2: loss \d\.\d{3}"),
    "jagged_recommender.py": (RANKS, r"loss 0\.\d\d -> 0\.[0-5]\d"),
    "port_tensor_parallel.py": ([], r"(?s)by_hand\n.*4 gradients.*ported\n.*4 gradients"),
    "check_megatron.py": ([], r"(?s)1\. .*one rank: the same.*2\. .*LS5\d\d: .*norm"),
    "wrong_gradient.py": ([], r"(?s)ls\.convert\(.*\(verified\).*3 of 3 parameters'"),
}
SMALL = ["--steps", "3", "--layers", "1", "--backend", "graph"]  # the compiler has its own tests
FEW = {"fully_sharded.py": SMALL, "tensor_parallel.py": SMALL}
# The demo, which bench/demo.py runs; stages, which `python -m tests.pipeline` runs; what needs
# packages of its own, which `make bars` runs.
BY_ITSELF = {
    "train_llama.py",
    "pipeline.py",
    "finetune_hf_llama.py",
    "with_lightning.py",
    "with_ray.py",
}


def test_every_example_is_run_and_is_short():
    found = {path.name for path in EXAMPLES.glob("*.py")}
    assert found == {*WANTED, *BY_ITSELF}
    lengths = {name: len((EXAMPLES / name).read_text().splitlines()) for name in found}
    assert {name: n for name, n in lengths.items() if n > 80} == {}


@pytest.mark.timeout(480)  # a cold compiler cache, on a busy machine
@pytest.mark.parametrize("name", WANTED)
def test_an_example_runs(name, tmp_path):
    before, wanted = WANTED[name]
    environment = os.environ | {
        "LOCKSTEP_STORE": str(tmp_path / "store"),
        "LOCKSTEP_RUNS": str(tmp_path / "runs"),
        "PYTHONPATH": str(EXAMPLES.parent),
    }
    command = [sys.executable, *before, str(EXAMPLES / name), *FEW.get(name, [])]
    done = run_job(command, environment, 460)
    assert done.code == 0, done.output
    assert re.search(wanted, done.output), done.output
