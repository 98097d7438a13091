"""`lockstep check SCRIPT`: its set-up runs on real ranks, and all of them are judged together."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from lockstep.cli import main

SCRIPT = Path(__file__).with_name("check_script.py")


def check(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Return the exit code and what was printed."""
    code = main(["check", str(SCRIPT), *words])
    seen = capsys.readouterr()
    return code, seen.out, seen.err


def line_of(text: str) -> int:
    """The number of the one line of the script that holds this text."""
    (found,) = [i for i, row in enumerate(SCRIPT.read_text().splitlines(), 1) if text in row]
    return found


def test_a_right_script_is_judged_on_ranks_that_were_set_up_for_real(capsys):
    code, out, _ = check(capsys)
    assert code == 0, out
    assert out.startswith("established:\n  set-up: ")
    assert "ran on 2 gloo process(es)" in out
    assert "order: 2 collectives, the same on each of 2 ranks" in out
    assert "gradients: 3 of 3 parameters' are the derivative" in out
    assert "one rank: the same numbers for the loss and 3 gradients" in out
    assert out.endswith("evaluate was not called, and is not checked\ntrain_step: nothing found\n")


@pytest.mark.timeout(600)
def test_a_forgotten_conversion_is_named_at_its_line_with_a_fix(capsys):
    words = ("--mesh", "tp=2", "--json", "--repair-s", "400")
    code, out, err = check(capsys, *words, "--", "no convert")
    assert code == 1
    assert err == f"{SCRIPT}: the mesh has tp=2, as --mesh says\n"
    told = json.loads(out)
    (step,) = told["steps"]
    assert (told["ok"], step["ok"], step["step"]) == (False, False, "train_step")
    (finding,) = step["findings"]
    at = line_of("x = x * self.gain"), line_of("hidden = torch.relu(")
    assert finding["line"].rpartition(":")[0].endswith("check_script.py")
    assert int(finding["line"].rpartition(":")[2]) in at
    assert finding["axis"] == "tp"
    assert "ls.convert(" in finding["fix"] and "src=I, dst=R" in finding["fix"]
    assert finding["verified"] and step["tried"] >= 1


def test_without_its_broadcast_the_same_script_is_wrong(capsys):
    code, out, _ = check(capsys, "--repair-s", "0", "--", "no broadcast")
    assert code == 1
    assert "LS534: model.gain is claimed to be the same along tp" in out


@pytest.mark.parametrize(
    ("fault", "code", "told"),
    [
        ("raises", 2, "failed before a step was captured\n  got  Traceback"),
        ("rank 0 alone", 1, "train_step: not captured"),
    ],
)
def test_what_cannot_be_judged_is_told(fault, code, told, capsys):
    found, out, err = check(capsys, "--", fault)
    assert found == code, out + err
    assert told in out + err
    if fault == "rank 0 alone":
        assert "not every rank called train_step\n  got  rank(s) 0 of 2" in out


def test_a_mesh_that_does_not_come_about_is_told(capsys):
    code, _, err = check(capsys, "--mesh", "dp=2")
    assert code == 2
    assert "the mesh of train_step has other axes or sizes\n  got  tp=2\n  want dp=2" in err


SAME_BATCH = """
import torch
import lockstep as ls

mesh = ls.mesh(dp=-1)

@ls.compile(mesh=mesh, data="dp")
def train_step(model, x):
    loss = ls.loss(model(x).square().mean(), dp="mean")
    loss.backward()
    {reduction}
    return loss

torch.manual_seed(0)
train_step(torch.nn.Linear(4, 2), torch.randn(3, 4))
"""


@pytest.mark.parametrize(
    ("reduction", "code"), [("ls.reduce_grads(model, dp='mean')", 0), ("pass", 1)]
)
def test_ranks_that_were_given_one_batch_get_their_own(reduction, code, tmp_path, capsys):
    """Else a missing reduction would not show."""
    script = tmp_path / "train.py"
    script.write_text(SAME_BATCH.format(reduction=reduction))
    found = main(["check", str(script), "--repair-s", "0"])
    out = capsys.readouterr().out
    assert found == code, out
    assert "x: the same on every rank of dp, though data='dp'; each rank was given its own" in out
    assert ("model.weight" in out.partition("established:")[0]) == bool(code)


def test_a_reduction_that_is_said_to_come_later_is_admitted(tmp_path, capsys):
    script = tmp_path / "train.py"
    told = SAME_BATCH.replace('data="dp"', 'data="dp", pending={{"dp": "ddp mean"}}')
    script.write_text(told.format(reduction="pass"))
    found = main(["check", str(script), "--repair-s", "0"])
    out = capsys.readouterr().out
    assert found == 0, out
    assert "pending: mean over dp" in out


LIVE = """
import sys

import torch
import torch.distributed as dist
import layers
import lockstep as ls

mesh = ls.mesh(dp=-1)

@ls.compile(mesh=mesh, data="dp")
def train_step(model, x):
    loss = ls.loss(layers.settled(model(x)).square().mean(), dp="mean")
    if "apart" in sys.argv and dist.get_rank() == 0:
        dist.all_reduce(loss.detach())
    loss.backward()
    return loss

torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
x = torch.randn(6, 4).chunk(mesh.size())[mesh.get_local_rank()]
train_step(model, x)
"""
LAYERS = """
def settled(y):
    while y.abs().max() > 0.5:
        y = y / 3
    return y
"""


@pytest.mark.timeout(900)
def test_a_step_that_cannot_be_captured_runs_live_and_its_patch_makes_it_right(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "train.py"
    script.write_text(LIVE)
    (tmp_path / "layers.py").write_text(LAYERS)
    assert main(["check", "train.py", "--fix", "--repair-s", "400"]) == 1
    seen = capsys.readouterr()
    assert "at   train.py:" in seen.out and "axis dp  (live)" in seen.out
    assert "checked live, op by op, as it cannot be captured: the step looks at" in seen.out
    assert "tensor's value while it is captured, layers.py:3" in seen.out
    assert 'ls.reduce_grads(model, dp="mean")   (for train.py:16, verified)' in seen.out
    assert seen.err == "lockstep.patch: the fixes for train.py; git apply lockstep.patch\n"
    assert script.read_text() == LIVE
    subprocess.run(["git", "apply", "lockstep.patch"], check=True)
    assert script.read_text() == LIVE.replace(
        "    loss.backward()\n", '    loss.backward()\n    ls.reduce_grads(model, dp="mean")\n'
    )
    assert main(["check", "train.py"]) == 0
    out = capsys.readouterr().out
    assert "checked live" in out and "gradients: 2 of 2 parameters' are the derivative" in out
    assert out.endswith("train_step: nothing found\n")


def test_live_ranks_that_part_are_told_with_where_each_one_is(tmp_path, capsys):
    script = tmp_path / "train.py"
    script.write_text(LIVE)
    (tmp_path / "layers.py").write_text(LAYERS)
    assert main(["check", str(script), "--repair-s", "0", "--format", "github", "--", "apart"]) == 1
    told, last = capsys.readouterr().out.splitlines()
    assert told.startswith(f"::error file={script},line=15,title=LS510::")
    assert "rank 0: waits in all_reduce sum of f64[], at train.py:15, on dp" in told
    assert "rank 1: has left the step" in told
    assert last == "1 finding"
