"""What decides the compiled code beside the graph is told, and nothing else is."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from lockstep.build.settings import build_settings


def test_the_graph_back_end_depends_on_none() -> None:
    assert build_settings("graph") == {}


def test_cpu_threads_environment_and_options(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch._inductor.config as config

    before = build_settings("inductor")
    assert before["cpu threads"] == torch.get_num_threads()
    assert before["cpu features"] == sorted(before["cpu features"])
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/elsewhere")
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "7")
    assert build_settings("inductor") == before
    monkeypatch.setenv("TORCHINDUCTOR_MAX_AUTOTUNE", "1")
    with config.patch({"cpp.simdlen": 8}):
        changed = build_settings("inductor")
    more = {"environment TORCHINDUCTOR_MAX_AUTOTUNE": "1", "option cpp.simdlen": "8"}
    assert changed == before | more
    assert config.codegen_config(), "a patch that has ended leaves something behind"
    monkeypatch.delenv("TORCHINDUCTOR_MAX_AUTOTUNE")
    assert build_settings("inductor") == before


def test_what_the_environment_set_is_no_option_too() -> None:
    """A process that has imported the compiler wants the same program as one that has not."""
    code = (
        "from lockstep.build.settings import build_settings as f; before = f('inductor');"
        "import torch._inductor.config;"
        "print(f('inductor') == before, 'environment TORCHINDUCTOR_MAX_AUTOTUNE' in before)"
    )
    env = {**os.environ, "TORCHINDUCTOR_MAX_AUTOTUNE": "1"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    assert done.stdout == "True True\n"


def test_asking_imports_no_compiler() -> None:
    code = (
        "import sys; from lockstep.build.settings import build_settings as f; f('inductor');"
        "print([m for m in sys.modules if m.startswith(('torch._inductor', 'torch._dynamo'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
