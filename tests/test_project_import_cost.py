"""`import lockstep` is cheap and changes nothing."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.sources import ROOT

HEAVY = ("torch._inductor", "torch._dynamo", "triton", "sympy", "rich", "tyro", "fsspec")
SECONDS = 0.3

PROBE = """
import json, os, sys, threading, time
import torch, torch.distributed

def state():
    return {
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "threads": threading.active_count(),
        "torch threads": torch.get_num_threads(),
        "process group": torch.distributed.is_initialized(),
        "accelerator": torch.cuda.is_initialized(),
        "default dtype": str(torch.get_default_dtype()),
        "random state": torch.get_rng_state().sum().item(),
        "import hooks": len(sys.meta_path),
        "excepthook": sys.excepthook is sys.__excepthook__,
    }

before, modules, start = state(), set(sys.modules), time.process_time()
exec(sys.argv[1])
seconds, after = time.process_time() - start, state()
new = set(sys.modules) - modules
print(json.dumps({
    "seconds": seconds,
    "changed": sorted(key for key in before if before[key] != after[key]),
    "new": sorted(new),
}))
"""


def probe(statement: str) -> dict:
    """Run a statement in a fresh process, after torch, and return what it cost and changed."""
    command = [sys.executable, "-c", PROBE, statement]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def findings(seen: dict) -> list[str]:
    """Return what is wrong with an import, in words."""
    heavy = [name for name in HEAVY if name in seen["new"]]
    slow = [f"{seen['seconds']:.2f} s of CPU time"] if seen["seconds"] > SECONDS else []
    return heavy + seen["changed"] + slow


def test_importing_lockstep_is_cheap_and_changes_nothing():
    seen = probe("import lockstep")
    assert "lockstep" in seen["new"]
    assert findings(seen) == []


def test_the_path_to_the_first_step_needs_no_terminal_library():
    """What a loading rank needs is there without the libraries that only speak to people."""
    seen = probe("import lockstep; lockstep.mesh, lockstep.compile, lockstep.loss")
    assert findings(seen) == []


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("import torch._dynamo", "torch._dynamo"),
        ("import rich", "rich"),
        ("import os; os.environ['A'] = 'b'", "environment"),
        ("from threading import Timer; Timer(1, int).start()", "threads"),
        ("torch.distributed.init_process_group('gloo', rank=0, world_size=1,"
         " store=torch.distributed.HashStore())", "process group"),
        ("torch.manual_seed(3)", "random state"),
        ("import time\nwhile time.process_time() - start < 0.31: pass", "s of CPU time"),
    ],
)  # fmt: skip
def test_a_costly_or_harmful_import_is_found(statement, told):
    assert any(told in finding for finding in findings(probe(statement)))
