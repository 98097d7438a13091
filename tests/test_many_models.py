"""One compiled step, many models: each is looked through once, none is kept for long."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

import lockstep as ls
from lockstep.run import step as module
from lockstep.run.key import number_of


def train_step(model: Any, x: torch.Tensor) -> torch.Tensor:
    loss = model(x).square().mean()
    loss.backward()
    return loss


@pytest.fixture
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("LOCKSTEP_RUNS", str(tmp_path / "runs"))
    monkeypatch.delenv("LOCKSTEP", raising=False)

    def make(**options: Any) -> Any:
        return ls.compile(train_step, backend="graph", store=tmp_path / "store", **options)

    return make


def test_more_models_than_variants_are_fine_and_go_away(
    compiled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_VARIANTS", 3)
    step, x, seen = compiled(), torch.randn(4, 3), []
    for _ in range(14):
        model = torch.nn.Linear(3, 2)
        want = model(x).square().mean()
        assert torch.equal(step(model, x), want.detach())
        seen.append(weakref.ref(model))
    del model, want
    gc.collect()
    assert sum(reference() is not None for reference in seen) <= 8


def test_objects_made_anew_at_each_call_are_told(
    compiled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_OBJECTS", 3)
    step, x = compiled(), torch.randn(4, 3)
    for _ in range(3):
        step(torch.nn.Linear(3, 2), x)
    with pytest.raises(ls.LockstepError, match="was given 3 sets of objects for 1 programs"):
        step(torch.nn.Linear(3, 2), x)


def test_only_arguments_are_a_new_shape(compiled: Any) -> None:
    step, model, x = compiled(on_new_shape="error"), torch.nn.Linear(3, 2), torch.randn(4, 3)
    step(model, x)
    step(model, x)  # now with a .grad
    step(model.eval(), x)
    step(torch.nn.Linear(3, 2), x)
    with pytest.raises(ls.LockstepError, match=r"got  x: f32\[2, 3\]"):
        step(model, x[:2])


def test_a_number_is_never_used_again() -> None:
    numbers = [number_of(torch.nn.Linear(1, 1)) for _ in range(50)]
    assert len(set(numbers)) == 50
    kept = torch.nn.Linear(1, 1)
    assert number_of(kept) == number_of(kept)
    assert number_of(torch.float32) == number_of(torch.float32) != number_of(torch.float64)
