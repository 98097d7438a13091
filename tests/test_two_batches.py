"""`lockstep check --two-batches`: constants of a step that moved between its first two calls."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import lockstep as ls
from lockstep.build.moved import Seen, moved
from lockstep.cli import main
from lockstep.report.capture_check import Captured, Enough
from lockstep.report.two_batches import TwoBatches
from lockstep.run.modes import calls_go_to

HERE = "tests/test_two_batches.py"
count = 3
kept = 3
config = {"scale": 0.5}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.longest = 2
        self.eps = 1e-3

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)[:, : self.longest] + self.eps  # the attribute


def compared(function: Callable[..., Any], *calls: Callable[[], tuple[Any, ...]]) -> Captured:
    """What two calls of a step showed; each call's arguments are made just before it."""
    step = ls.compile(backend="graph")(function)
    check = TwoBatches(10)
    with calls_go_to(check), contextlib.suppress(Enough):
        for arguments in calls:
            step(*arguments())
    (found,) = check.captured.values()
    return found


def batch(i: int) -> torch.Tensor:
    return torch.full((3, 4), float(i))


def line_of(mark: str) -> str:
    lines = Path(__file__).read_text().splitlines()
    return f"{HERE}:{next(i for i, text in enumerate(lines, 1) if text.endswith(f'# {mark}'))}"


def test_an_int_that_was_counted_in_the_data() -> None:
    def step(x: torch.Tensor, n: int, k: int, lr: float) -> torch.Tensor:
        return x * lr / n + k  # the argument

    found = compared(step, lambda: (batch(0), 7, 2, 0.1), lambda: (batch(1), 9, 2, 0.2))
    (text,) = found.obstacles
    assert text.startswith("LS100: n moves from batch to batch: 7, then 9\n")
    assert f"at   {line_of('the argument')}" in text
    assert "fix  pass a float, which is read at each call: n=float(n)" in text


def test_a_global_a_closure_a_config_and_an_attribute(monkeypatch: pytest.MonkeyPatch) -> None:
    model, weight = Net(), 1.5

    def step(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y = net(x) * count  # the global
        y = y + weight * kept  # the closure
        return y * config["scale"]  # the config

    def second() -> tuple[Any, ...]:
        nonlocal weight
        labels = batch(2)
        weight, model.longest = float(labels.max()), int(labels.max()) + 1
        monkeypatch.setitem(config, "scale", 0.25)
        monkeypatch.setitem(globals(), "count", len(labels.tolist()) + 1)
        return model, batch(1)

    found = compared(step, lambda: (model, batch(0)), second)
    whole = "\n".join(found.obstacles)
    assert len(found.obstacles) == 4, whole
    for told, mark in (
        ("count moves from batch to batch: 3, then 4", "the global"),
        ("weight moves from batch to batch: 1.5, then 2.0", "the closure"),
        ("model.longest moves from batch to batch: 2, then 3", "the attribute"),
        ("config['scale'] moves from batch to batch: 0.5, then 0.25", "the config"),
    ):
        (text,) = [t for t in found.obstacles if told.replace("model.", "net.") in t]
        assert f"at   {line_of(mark)}" in text, text


def test_what_nothing_in_reach_tells_of_is_told_by_its_line(tmp_path: Path) -> None:
    data = tmp_path / "data.bin"
    data.write_bytes(b"abc")

    def step(x: torch.Tensor) -> torch.Tensor:
        return x * os.path.getsize(data)  # the file  # noqa: PTH202

    def second() -> tuple[Any, ...]:
        data.write_bytes(b"abcd")
        return (batch(1),)

    found = compared(step, lambda: (batch(0),), second)
    (text,) = found.obstacles
    assert "a constant of the graph moves from batch to batch: 3, then 4" in text
    assert line_of("the file  # noqa: PTH202") in text


def test_what_is_read_at_each_call_does_not_move() -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(net: nn.Module, optimizer: Any, x: torch.Tensor, scale: float) -> torch.Tensor:
        loss = (net(x) * scale).mean() * kept
        loss.backward()
        optimizer.step()
        return loss

    def second() -> tuple[Any, ...]:
        optimizer.param_groups[0]["lr"] = 0.05
        return model, optimizer, batch(1), 2.0

    found = compared(step, lambda: (model, optimizer, batch(0), 1.0), second)
    assert (found.obstacles, found.notes) == ([], [])
    assert found.nodes > 0


def test_another_shape_is_a_note_and_no_constant() -> None:
    found = compared(lambda x: x.sum(0) / len(x), lambda: (batch(0),), lambda: (batch(1)[:2],))
    assert found.obstacles == []
    assert found.notes == ["x: f32[3, 4], then f32[2, 4]"]


def test_a_value_that_is_no_constant_still_chooses_the_program() -> None:
    def step(x: torch.Tensor, name: str) -> torch.Tensor:
        return x + 1 if name else x

    found = compared(step, lambda: (batch(0), "a"), lambda: (batch(1), "b"))
    (text,) = found.obstacles
    assert "name moves from batch to batch: 'a', then 'b'" in text
    assert "got  no constant of the graph, but of what a program is chosen by" in text


def test_a_step_that_is_not_captured_says_why() -> None:
    found = compared(lambda x: x * x.max().item() if x.max() > 0 else x, lambda: (batch(1),))
    assert "looks at a tensor's value" in found.obstacles[0]


def test_rows_that_only_one_trace_has_are_no_constants() -> None:
    one = Seen({}, {}, {}, [["a.py:1", "", "%1 = add(%0, 1)"], ["a.py:2", "", "%2 = mul(%1, 2)"]])
    two = Seen({}, {}, {}, [["a.py:1", "", "%1 = add(%0, 1)"], ["a.py:2", "", "%3 = neg(%1)"]])
    assert moved(one, two).constants == []


SCRIPT = """\
import torch
import lockstep as ls

@ls.compile(mesh=ls.mesh(dp=-1), backend="graph")
def step(x, n):
    return x * n  # moved

for batch in ([1, 2], [3, 4, 5]){end}:
    step(torch.zeros(4), len(batch))
"""


@pytest.mark.parametrize(
    ("end", "code", "last"),
    [
        ("", 1, "1 constant moved, or could not be compared"),
        ("[:1]", 2, "no step was called twice: nothing was compared"),
    ],
)
def test_the_command(end: str, code: int, last: str, tmp_path: Path, capsys: Any) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.replace("{end}", end))
    assert main(["check", str(script), "--two-batches"]) == code
    out = capsys.readouterr().out.splitlines()
    assert out[-1] == last
    assert ("  at   train.py:6" in out) is (code == 1)


def test_flags_that_do_not_go_together(tmp_path: Path, capsys: Any) -> None:
    script = tmp_path / "train.py"
    script.write_text("")
    for words in (["--capture"], ["--json"], ["--mesh", "dp=2"]):
        assert main(["check", str(script), "--two-batches", *words]) == 2
        assert "--two-batches" in capsys.readouterr().err
