"""The parts of a build ahead of time: which ranks are traced, no values, what is compared."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import lockstep as ls
from lockstep import _compat
from lockstep.ahead.council import Council
from lockstep.ahead.files import Written
from lockstep.ahead.places import traced_ranks
from lockstep.ahead.results import not_run
from lockstep.ahead.unvalued import NoValue, objects_alone, unvalued
from lockstep.build.fingerprint import show
from lockstep.build.likeness import packed
from lockstep.capture.binding import Step
from lockstep.capture.capture import capture_call
from lockstep.errors import CaptureError
from lockstep.run.key import Bound
from lockstep.spmd.mesh import apart


def test_small_worlds_are_traced_whole_and_large_ones_at_ends_a_line_and_a_sample() -> None:
    assert sorted(traced_ranks({"dp": 4, "tp": 4}, 16)) == list(range(16))
    sizes = {"dp": 128, "tp": 8}
    ranks = traced_ranks(sizes, 1024)
    assert ranks[:2] == [0, 1023]
    assert {7, 1016} <= set(ranks)  # the other corners
    assert {1, 8} <= set(ranks)  # a step along each axis
    assert set(range(64 * 8, 64 * 8 + 8)) <= set(ranks)  # a line through the inside
    assert ranks == traced_ranks(sizes, 1024) != traced_ranks({"dp": 64, "tp": 16}, 1024)
    assert len(ranks) < 24
    assert sorted(traced_ranks(sizes, 1024, everything=True)) == list(range(1024))
    assert traced_ranks({"dp": 2}, 40)[:2] == [0, 39]  # a mesh that is not the whole world


def test_a_set_up_runs_without_values_until_one_is_asked_for() -> None:
    stepped, told = [False], []
    with unvalued(lambda: stepped[0], told.append) as values:
        model = nn.Linear(1 << 20, 1 << 20)  # 4 TB
        weight = model.weight
        nn.init.trunc_normal_(weight, std=0.02)
        model.to(torch.bfloat16)
        assert model.weight is weight and weight.dtype == torch.bfloat16
        assert show(weight) == "<torch.nn.parameter.Parameter>"
        assert torch.tensor(3).item() == 3
        with pytest.raises(NoValue, match="the set-up reads the value of a tensor") as caught:
            float(weight.detach().sum())
        assert "tests/test_ahead.py:" in str(caught.value)
        stepped[0] = True
        assert math.isnan(weight.detach().sum().item())
        assert f"{weight.detach().sum():.3f}" == "nan"
        assert int(weight.argmax()) == 0 and not (weight > 0).any()
        torch.save(model.state_dict(), "model.pt")
    assert not Path("model.pt").exists()
    assert told == ["torch.save to model.pt is left out: nothing has values here"]
    assert len(values.read_at) == 3


def test_optimizers_loaders_and_collectives_work_without_values() -> None:
    with _compat.fake_process_group(3, 4), apart(), objects_alone():
        with unvalued(lambda: False, print):
            mesh = ls.mesh(dp=2, tp=2)
            assert list(mesh.get_coordinate() or ()) == [1, 1]
            model = nn.Linear(4, 4)
            dist.broadcast(model.weight.data, 0)
            optimizer = torch.optim.AdamW(model.parameters())
            model.weight.grad, model.bias.grad = torch.ones(4, 4), torch.ones(4)
            optimizer.step()
            data = torch.utils.data.TensorDataset(torch.randn(8, 3))
            (batch,) = next(iter(torch.utils.data.DataLoader(data, batch_size=2, shuffle=True)))
            assert batch.shape == (2, 3)
            found: list[Any] = [None] * 4
            dist.all_gather_object(found, {"rank": 3})
            assert found == [{"rank": 3}] * 4
            given = ["seed"]
            dist.broadcast_object_list(given, 0)
            assert given == ["seed"]


def test_files_opened_for_writing_are_told_once(tmp_path: Path) -> None:
    told: list[str] = []
    written = Written(told.append)
    written._but = ()  # the test's own folder is temporary, too
    try:
        for name in ("a.txt", "a.txt", "b.txt"):
            (tmp_path / name).write_text("x")
        (tmp_path / "a.txt").read_text()
        written._but = (f"{tmp_path}/",)
        (tmp_path / "c.txt").write_text("x")
    finally:
        written.on = False
    assert [path for path in told if path.startswith(str(tmp_path))] == [
        str(tmp_path / "a.txt"), str(tmp_path / "b.txt"),
    ]  # fmt: skip


def step(model: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, int]:
    loss = model(x).sum()
    loss.backward()
    return loss, 7


def test_a_step_that_is_not_run_hands_back_what_it_would_in_shape() -> None:
    model, x, taken = nn.Linear(3, 2), torch.randn(4, 3), Step(step)
    call = taken.call((model, x), {})
    bound = Bound(taken, call)
    loss, seven = not_run(capture_call(taken, call, bound.state), "v0").run(call, bound)
    assert (loss.shape, loss.item(), seven) == (torch.Size([]), 0.0, 7)
    assert model.weight.grad is not None and model.weight.grad.shape == (2, 3)


def council(tmp_path: Path, own: dict[int, Any]) -> Council:
    """Three ranks with tables and graphs of one line, but for what `own` says of some."""
    made = Council("train_step", [0, 2, 1], every=True)
    for rank in made.ranks:
        value = own.get(rank, 5)
        table = {"module model": {"start": value}}
        made.asked[rank] = {"table": table, "place": {"dp": rank, "world": rank}}
        rows = [["train.py:7", "", f"%1 = add(x, {value})"]]
        file = tmp_path / f"rows-{rank}"
        file.write_text(json.dumps(rows))
        code = tmp_path / f"code-{rank}"
        code.write_text(f"def call(inputs):\n    return inputs[0] + {value}\n")
        made.views[rank], made.code[rank] = {**packed(rank, rows), "rows": str(file)}, str(code)
    return made


def test_ranks_that_are_alike_are_certified(tmp_path: Path) -> None:
    alike = council(tmp_path, {})
    assert alike.formulas() == []
    certificate = alike.graphs() | alike.texts([0, 2])
    assert certificate["ranks"] == [0, 1, 2] and certificate["every rank"]
    assert (certificate["code of"], certificate["rows"]) == ([0, 2], 1)


def test_numbers_with_a_formula_are_followed_others_are_told(tmp_path: Path) -> None:
    found = council(tmp_path, {0: 0, 1: 4, 2: 8}).formulas()
    assert found == [[["module model", "start"], {"at the origin": 0, "more per": {"dp": 4}}]]
    with pytest.raises(CaptureError) as caught:
        council(tmp_path, {1: 6}).formulas()
    assert "ranks 0 and 1 ask for different programs at train_step" in str(caught.value)
    assert "got  module model.start: 6 on rank 1" in str(caught.value)


def test_graphs_and_code_that_differ_are_told(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="ranks 0 and 1 capture different graphs") as caught:
        council(tmp_path, {1: 6}).graphs()
    assert "at   train.py:7" in str(caught.value)
    with pytest.raises(CaptureError, match="generate different code") as caught:
        council(tmp_path, {2: 6}).texts([0, 2])
    assert "return inputs[0] + 6" in str(caught.value)
