"""`lockstep check --capture`: all obstacles of one pass, each at its line; or the graph's size."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lockstep.cli import main
from lockstep.report.check import Checked, CheckedStep, lines

HEAD = """
import torch, torch.distributed as dist
from torch import nn
import lockstep as ls

mesh = ls.mesh(dp=-1)
SCALE = torch.ones(4)
options = dict(mesh=mesh, data="dp")
"""

FIVE = (
    HEAD
    + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.seen = nn.Linear(4, 4), 0
    def forward(self, x):
        self.seen += 1  # state
        return self.fc(x)

@ls.compile(**options)
def train_step(model, x):
    out = model(x) * SCALE  # outside
    if out.sum() > 0:  # branch
        out = -out
    if dist.get_rank() == 0:  # rank
        out = out * 2
    out.square().mean().backward()
    dist.barrier()  # collective

train_step(Net(), torch.randn(2, 4))
"""
)

# A raise behind a condition, a loop, a symbol, a hidden tensor, a wait that is missing, an object.
DEEP = (
    HEAD
    + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.tables = nn.Linear(4, 4), {"k": torch.ones(4)}
    def forward(self, x):
        return self.fc(x) * self.tables["k"]  # hidden

@ls.compile(**options)
def train_step(model, x):
    loss = model(x).square().mean()
    if torch.isnan(loss):  # guard
        raise ValueError("nan")
    if x.sum().item() > 3:  # symbol
        loss = loss * 2
    while loss > 1:  # loop
        loss = loss / 2
    work = dist.all_reduce(loss, async_op=True)  # wait
    dist.send(loss, 0)  # send
    return object()

train_step(Net(), torch.randn(2, 4))
"""
)

TWO = (
    HEAD
    + """
assert dist.get_world_size() == 8

@ls.compile(**options)
def train_step(model, x):
    loss = ls.loss(model(x).sum(), dp="mean")
    loss.backward()
    ls.reduce_grads(model, dp="mean")
    return loss

@ls.compile(**options)
@torch.no_grad()
def evaluate(model, x):
    return model(x)

@ls.compile
def never(x): return x

model = nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(1000):
    try:
        train_step(model, torch.randn(2, 4)).item()
        optimizer.step()
        if i == 3:
            evaluate(model, torch.randn(2, 4))
    except Exception:
        pass
"""
)


def check(text: str, folder: Path, capsys: pytest.CaptureFixture[str], *words: str):
    """Write a script, check it, and return the exit code with what was printed."""
    script = folder / "script.py"
    script.write_text(text)
    code = main(["check", "--capture", str(script), *words])
    seen = capsys.readouterr()
    return code, seen.out, seen.err


def marked(text: str, *marks: str) -> list[str]:
    """The "file:line" of the lines that end in these comments."""
    rows = text.splitlines()
    return [f"script.py:{next(i for i, r in enumerate(rows, 1) if r.endswith(m))}" for m in marks]


def places(out: str) -> list[str]:
    return re.findall(r"^  at   (\S+)$", out, re.MULTILINE)


def test_five_obstacles_at_five_lines_are_listed_in_one_pass(tmp_path, capsys):
    code, out, err = check(FIVE, tmp_path, capsys)
    assert (code, err) == (1, "")
    assert sorted(places(out)) == sorted(
        marked(FIVE, "# outside", "# branch", "# rank", "# collective", "# state")
    )
    for what in (
        "closes over the tensor SCALE",
        "looks at a tensor's value while it is captured",
        "branches on its rank: dp == 0\n",
        "dist.barrier cannot be part of a captured step",
        "changes Python state: model.seen\n",
    ):
        assert out.count(what) == 1
    assert out.count("train_step: LS100: ") == 5
    assert out.splitlines()[-1] == "5 obstacles"


def test_what_stands_behind_an_obstacle_is_reached(tmp_path, capsys):
    code, out, _ = check(DEEP, tmp_path, capsys)
    assert code == 1
    assert sorted(places(out)) == sorted(
        marked(DEEP, "# hidden", "# guard", "# symbol", "# loop", "# wait", "# send")
    )
    assert "the step uses self.tables['k'], a tensor that is not one of its inputs" in out
    assert "the step returns a object" in out
    assert "ValueError" not in out  # the other side of the guard was taken
    assert out.splitlines()[-1] == "7 obstacles"


def test_the_same_without_its_obstacles_is_captured(tmp_path, capsys):
    fine = FIVE.replace("self.seen += 1  # state", "pass").replace("* SCALE", "* 2")
    fine = fine.replace("if out.sum() > 0:", "if True:").replace("dist.get_rank()", "0")
    code, out, err = check(fine.replace("dist.barrier()", "pass"), tmp_path, capsys)
    assert (code, err) == (0, "")
    assert re.fullmatch(r"captures: \d\d nodes, 0 collectives\n", out)


def test_steps_are_captured_at_their_first_call_in_a_world_that_is_not_there(tmp_path, capsys):
    code, out, _ = check(TWO, tmp_path, capsys, "--world-size", "8", "--calls", "20")
    first, second, third, last = out.splitlines()
    assert code == 0
    counts = [re.search(r"(\d+) nodes, (\d) coll", row).groups() for row in (first, second, last)]
    assert first.startswith("train_step captures: ")
    assert second.startswith("evaluate captures: ")
    assert third == "never was not called, and is not checked"
    assert [int(count[1]) for count in counts] == [2, 0, 2]
    assert int(counts[0][0]) + int(counts[1][0]) == int(counts[2][0])
    # With the script left earlier, the second step is not reached.
    code, out, _ = check(TWO, tmp_path, capsys, "--world-size", "8", "--calls", "2")
    assert "evaluate was not called, and is not checked" in out


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("raise KeyError('lr')", "failed before a step was captured\n  got  Traceback"),
        ("import sys; print('no such flag'); sys.exit(2)", "no such flag\n"),
        ("print('all done')", "ended without a call of a compiled step\n  got  all done"),
        ("import os; os._exit(7)", "ended its process, exit code 7"),
        ("import time; print('waits', flush=True); time.sleep(60)", "was stopped after 6 s"),
    ],
)
def test_a_script_that_cannot_be_checked_is_exit_code_2(text, told, tmp_path, capsys):
    code, out, err = check(text, tmp_path, capsys, "--timeout", "6" if "sleep" in text else "60")
    assert (code, out) == (2, "")
    assert err.startswith("LS001: ")
    assert told in err
    assert "lockstep/report" not in err


def test_arguments_after_the_dashes_are_the_scripts(tmp_path, capsys):
    text = "import sys; raise SystemExit(str(sys.argv[1:]))"
    code, _, err = check(text, tmp_path, capsys, "--", "--lr", "3", "--capture")
    assert code == 2
    assert "['--lr', '3', '--capture']" in err


def test_a_step_that_raises_by_itself_is_an_obstacle(tmp_path, capsys):
    text = HEAD + "@ls.compile\ndef step(x):\n    return x.view(7)  # shape\nstep(torch.ones(4))"
    code, out, _ = check(text, tmp_path, capsys)
    assert code == 1
    assert "step: LS100: the step raises RuntimeError while it is captured" in out
    assert places(out) == marked(text, "# shape")
    assert out.endswith("\n1 obstacle\n")


def test_a_failure_after_the_capture_is_told(capsys):
    checked = Checked([CheckedStep("step", [], 5, 1)], [], "ValueError: later")
    assert list(lines(checked)) == [
        "the script failed later:\nValueError: later",
        "captures: 5 nodes, 1 collectives",
    ]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--capture", "--mesh", "dp=2"], "--capture prints text, of the script's own mesh"),
        (["--capture", "--json"], "--capture prints text, of the script's own mesh"),
        (["--capture", "--world-size", "0"], "--world-size 0"),
        (["--capture", "--calls", "0"], "--calls 0"),
    ],
)
def test_what_cannot_be_asked_is_exit_code_2(words, told, tmp_path, capsys):
    script = tmp_path / "script.py"
    script.write_text("")
    assert main(["check", str(script), *words]) == 2
    assert told in capsys.readouterr().err
