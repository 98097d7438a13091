"""Which of Inductor's options count as set by the user."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

CODE = """
from torch._inductor import config
from lockstep import _compat
from lockstep.build.inductor_backend import _OPTIONS
{before}
with _compat.inductor_options(_OPTIONS):
    pass
print(sorted(_compat.changed_inductor_options()))
"""


def changed(before: str = "pass", **environ: str) -> str:
    """What counts as set in a process that has compiled: after our own options have ended."""
    code = CODE.format(before=before)
    environment = {k: v for k, v in os.environ.items() if "INDUCTOR" not in k} | environ
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("name", ["FX_GRAPH_CACHE", "FX_GRAPH_CACHE_DEFAULT", "MAX_AUTOTUNE"])
def test_what_the_environment_sets_is_no_change_of_a_rank_that_compiled(name: str) -> None:
    # It is in the key as the variable that it is: a rank that compiles nothing must find the same.
    assert changed(**{f"TORCHINDUCTOR_{name}": "0"}) == "[]"


def test_what_the_user_sets_is_one() -> None:
    assert changed() == "[]"
    assert changed("config.epilogue_fusion = False") == "['epilogue_fusion']"
