"""A training in one process: it goes on from a checkpoint bit for bit, leaves, and rolls back."""

from __future__ import annotations

import dataclasses
import math
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import lockstep as ls
from lockstep.configs import find
from lockstep.errors import UsageError
from lockstep.models import llama
from lockstep.run.session import session
from lockstep.trainer import metrics
from lockstep.trainer.config import Guard, Schedule, TrainConfig
from lockstep.trainer.guard import Watched
from lockstep.trainer.loop import Training
from lockstep.trainer.saved import newest
from lockstep.trainer.schedule import rate
from lockstep.trainer.signals import Leave
from lockstep.trainer.twin import check_twin
from tests.bitwise.compare import same

MODEL = llama.config("debug", dim=16, layers=1, heads=2, kv_heads=1, ffn=32, vocab=64)


def config(folder: Path, **groups: Any) -> TrainConfig:
    """A small training of 6 steps that saves every second; `groups` change fields of its parts."""
    folder.mkdir(exist_ok=True)
    array = folder.parent / "tokens.npy"
    np.save(array, (np.arange(400) * 7 % 64).astype(np.uint8))
    base = find("llama3:debug")
    parts = {
        "data": {"paths": (str(array),), "batch": 4, "sequence": 8, "micro_batches": 2},
        "schedule": {"steps": 6, "warmup": 2},
        "checkpoint": {"every": 2},
        "metrics": {"every": 1},
    }
    for name, fields in groups.items():
        parts[name] = {**parts.get(name, {}), **fields}
    made = {name: dataclasses.replace(getattr(base, name), **f) for name, f in parts.items()}
    return dataclasses.replace(base, folder=str(folder), backend="graph", model=MODEL, **made)


def trained(made: TrainConfig, leave: Leave | None = None) -> tuple[int, Training]:
    """Train in this process, from the newest checkpoint; returns the exit code too."""
    folder = Path(made.folder) / "checkpoints"
    resume = newest(folder)[0] if folder.exists() else None
    training = Training(made, ls.mesh(dp=1), session(), leave or Leave())
    return training.run(resume), training


def rows(made: TrainConfig, kind: str = "train") -> list[tuple[Any, ...]]:
    read = metrics.read(Path(made.folder) / "metrics.jsonl")
    return [
        (r["step"], r["loss"], r.get("grad_norm"), r.get("lr")) for r in read if r["kind"] == kind
    ]


def state(training: Training) -> dict[str, torch.Tensor]:
    return {name: value.detach() for name, value in training.model.state_dict().items()}


@pytest.mark.parametrize("write", ["async", "sync"])
def test_a_training_that_left_goes_on_bit_for_bit(write, tmp_path):
    through = config(tmp_path / "a", checkpoint={"write": write}, eval={"every": 3, "part": 0.2})
    code, one = trained(through)
    assert code == 0 and [step for step, *_ in rows(through)] == [1, 2, 3, 4, 5, 6]
    assert [step for step, *_ in rows(through, "eval")] == [3, 6]

    again = dataclasses.replace(through, folder=str(tmp_path / "b"))
    with Leave() as leave:
        signal.raise_signal(signal.SIGUSR1)
        code, other = trained(again, leave)
    assert (code, other.step) == (75, 1)
    code, other = trained(again)
    assert (code, other.step) == (0, 6)
    assert rows(again) == rows(through) and rows(again, "eval") == rows(through, "eval")
    a, b = state(one), state(other)
    assert all(same(a[name], b[name]) for name in a)
    assert sorted(p.name for p in (tmp_path / "b" / "checkpoints").iterdir()) == [
        "step-00000004",
        "step-00000006",
    ]


def test_another_seed_is_another_training(tmp_path):
    runs = [config(tmp_path / name) for name in "ab"]
    runs[1] = dataclasses.replace(runs[1], seed=1)
    for made in runs:
        assert trained(made)[0] == 0
    assert rows(runs[0]) != rows(runs[1])


def test_micro_batches_add_up_to_the_same_training(tmp_path):
    runs = [config(tmp_path / str(n), data={"micro_batches": n}) for n in (1, 2)]
    for made in runs:
        assert trained(made)[0] == 0
    one, two = (np.array(rows(made)) for made in runs)
    np.testing.assert_allclose(one, two, rtol=1e-5)


def test_bf16_trains_close_to_fp32_with_parameters_in_fp32(tmp_path):
    runs = [config(tmp_path / p, optimizer={"precision": p}) for p in ("fp32", "bf16")]
    ended = [trained(made)[1] for made in runs]
    assert {p.dtype for p in ended[1].model.parameters()} == {torch.float32}
    wide, narrow = (np.array(rows(made))[:, 1] for made in runs)
    assert not (wide == narrow).all()
    np.testing.assert_allclose(wide, narrow, rtol=0.02)


def test_a_loss_that_is_not_finite_stops_with_its_code_and_is_never_saved(tmp_path):
    made = config(tmp_path / "a", optimizer={"lr": 1e30, "clip": 0.0}, checkpoint={"every": 1})
    code, _ = trained(made)
    assert code == 3
    last = rows(made)[-1]
    assert math.isfinite(last[1])
    assert newest(tmp_path / "a" / "checkpoints")[0].step == last[0] < 6


def test_a_spike_rolls_back_and_goes_on_with_the_data_after(tmp_path, monkeypatch):
    made = config(tmp_path / "a", guard={"spike": 4.0, "action": "roll back"})
    seen = []

    def odd(self: Watched, loss: float, norm: float) -> str:
        seen.append(loss)
        return "a spike" if len(seen) == 4 else ""

    monkeypatch.setattr(Watched, "odd", odd)
    code, training = trained(made)
    assert (code, training.rolled_back, len(seen)) == (0, 1, 4 + 4)
    assert training.batches.position == (4 + 4) * 4
    made = config(tmp_path / "b", guard={"action": "stop"})
    seen.clear()
    assert trained(made)[0] == 3


def test_a_loss_far_above_its_mean_is_odd_only_where_asked():
    told = [Watched(Guard(spike=spike)) for spike in (0.0, 2.0)]
    for watched in told:
        assert watched.odd(1.0, 1.0) == ""
    assert [watched.odd(2.5, 1.0) for watched in told] == ["", "loss 2.5 is 2.5 times its mean"]
    assert told[0].odd(1.0, math.inf) == "gradient norm inf"


def test_tensorboard_gets_the_numbers_and_its_absence_is_told(tmp_path, monkeypatch):
    board: list[Any] = []
    fake = SimpleNamespace(
        add_scalar=lambda name, value, step: board.append((name, value, step)),
        close=lambda: board.append("closed"),
    )
    module = SimpleNamespace(SummaryWriter=lambda folder, purge_step: fake)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    written = metrics.Metrics(tmp_path, 0, tensorboard=True)
    written.write("train", 3, loss=0.5, mfu=None)
    written.close()
    assert board == [("train/loss", 0.5, 3), "closed"]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(UsageError, match="needs the package tensorboard: pip install"):
        metrics.writer(tmp_path)


@pytest.mark.parametrize(
    ("decay", "rates"),
    [
        ("cosine", [0.5, 1.0, 0.7875, 0.3625, 0.15]),
        ("linear", [0.5, 1.0, 0.7166666, 0.4333333, 0.15]),
        ("none", [0.5, 1.0, 1.0, 1.0, 1.0]),
    ],
)
def test_the_rate_warms_up_and_decays(decay, rates):
    schedule = Schedule(steps=5, warmup=2, decay=decay, final=0.15)
    assert [rate(schedule, 1.0, step) for step in range(5)] == pytest.approx(rates)


def test_the_shrunken_twin_is_checked_and_a_missing_reduction_is_found(tmp_path, monkeypatch):
    made = config(tmp_path / "a", data={"micro_batches": 1})
    report = check_twin(made, {"pp": 2, "dp": 64})
    assert report.ok, str(report)
    assert "stages: nothing; all layers were checked as one stage" in report.established
    monkeypatch.setattr("lockstep.parallel.reduce_grads", lambda model: None)
    report = check_twin(made, {"dp": 64}, repair_s=0)
    assert not report.ok and report.findings[0].axis == "dp"
