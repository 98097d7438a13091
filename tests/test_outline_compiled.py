"""The compiler's program of repeated layers equals that of the whole graph, bit by bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lockstep.build.artifact import pack
from lockstep.build.backends import code_of, lower
from lockstep.build.describe import describe
from lockstep.build.inductor_backend import lower_inductor
from lockstep.build.settings import build_settings
from lockstep.errors import UsageError
from lockstep.run.loader import load_program
from lockstep.spmd.mesh import mesh
from tests.graphs import trace
from tests.test_outline import Parallel, adam, model

pytestmark = pytest.mark.timeout(600)  # a cold compiler cache takes most of it


def test_dropout_collectives_and_an_optimizer_equal_to_the_bit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    mesh("cpu", dp=-1)
    step, inputs = adam(model(lambda at: Parallel, 4))
    traced = trace(step, inputs)
    once = lower(traced, "inductor")
    assert once.repeats["calls"] > 2 * once.repeats["bodies"] - 1
    assert code_of(traced, "inductor") == (once.text, once.sources)
    assert "repeats" not in build_settings("inductor")
    monkeypatch.setenv("LOCKSTEP_REPEATS", "flot")
    with pytest.raises(UsageError, match="want flat or once"):
        build_settings("inductor")
    monkeypatch.setenv("LOCKSTEP_REPEATS", "flat")
    assert build_settings("inductor")["repeats"] == "flat"
    flat = lower_inductor(traced)
    assert flat.repeats == {"flat": "LOCKSTEP_REPEATS=flat"}
    results = []
    for program in (once, flat):
        artifact = pack({"step": "train"}, program)
        call, held = load_program(artifact), [value.clone() for value in inputs]
        for seed in range(2):  # the second from what the first has written
            torch.manual_seed(seed)
            held += [value.clone() for value in call(list(held[: len(inputs)]))]
        results.append(held)
        file = tmp_path / "step.lockstep"
        file.write_bytes(artifact.to_bytes())
        told = "compiled once for" if program is once else "compiled as a whole: LOCKSTEP_REPEATS"
        assert told in describe(file)
    assert all(map(torch.equal, *results))
