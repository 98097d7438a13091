"""What a check says of ranks that run other programs: messages, claims, what one rank computes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import lockstep as ls
from lockstep.spmd.types import I, P

FIRST, SECOND = "first", "second"


class Parts(nn.Module):
    """Two matrices, of which a stage has its own."""

    def __init__(self, mesh) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.at, self.stages = mesh.get_local_rank("pp"), mesh.size()
        whole = {FIRST: nn.Linear(3, 4), SECOND: nn.Linear(4, 2)}
        held = whole if self.stages == 1 else {name: whole[name] for name in [[*whole][self.at]]}
        self.parts = nn.ModuleDict(held)


def make(mesh):
    return Parts(mesh), torch.arange(6.0).view(2, 3) / 6


def step(
    stage: Parts, x: Tensor, factor: float = 1.0, reduced: bool = True, said: bool = True
) -> Tensor:
    """A stage's step; what it returns is the loss on every rank."""
    loss = torch.zeros(())
    if stage.stages == 1:
        loss = stage.parts[SECOND](stage.parts[FIRST](x)).square().mean()
        loss.backward()
    elif stage.at == 0:
        hidden = stage.parts[FIRST](x)
        ls.send(hidden, "pp", to=1)
        hidden.backward(ls.recv(hidden, "pp", from_=1) * factor)
    else:
        hidden = ls.recv(x.new_empty(2, 4), "pp", from_=-1).requires_grad_()
        loss = stage.parts[SECOND](hidden).square().mean()
        loss.backward()
        ls.send(hidden.grad, "pp", to=-1)
    loss = ls.settle(loss)
    if stage.stages == 1:
        return loss
    loss = ls.all_reduce(loss, "pp", src=P, dst=I) if reduced else loss
    if not said:
        return loss
    return ls.typed(loss, pp=I)


def line_with(mark: str) -> str:
    """The first line of this file that holds a text."""
    lines = Path(__file__).read_text().splitlines()
    return f"tests/test_check_apart.py:{next(i for i, t in enumerate(lines, 1) if mark in t)}"


def checked(step, make=make):
    return ls.check(step, make, mesh={"pp": 2}, repair_s=0)


def test_stages_have_the_numbers_of_one_rank():
    report = checked(step)
    assert report.ok, report
    assert report.established[-1] == (
        "one rank: the same numbers for what the step returns and 4 gradients"
    )
    assert "not judged but by what one rank computes" in report.established[1]


def test_a_loss_of_one_stage_that_is_claimed_to_be_all_ranks_is_found_at_the_claim():
    def told(stage, x):
        return step(stage, x, reduced=False)

    (finding,) = checked(told).findings
    assert (finding.code, finding.axis) == ("LS538", "pp")
    assert finding.line == line_with("return ls.typed(loss")
    assert checked(lambda stage, x: step(stage, x, reduced=False, said=False)).ok


def test_a_gradient_that_one_rank_does_not_have_is_found_at_the_backward():
    (finding,) = checked(lambda stage, x: step(stage, x, factor=2.0)).findings
    assert (finding.code, finding.line) == ("LS540", line_with("hidden.backward("))
    assert "the gradient of" in finding.got and "2 times the true one" in finding.got


@pytest.mark.parametrize("silent", [0, 1])
def test_a_message_that_nobody_answers_is_found_where_it_waits(silent):
    def lonely(stage, x):
        at = stage.at
        if at == 0 and silent == 1:
            ls.send(x, "pp", to=1)
        if at == 1 and silent == 0:
            x = ls.recv(x, "pp", from_=-1)
        return ls.settle(stage.parts[[FIRST, SECOND][at]].weight.sum() + x.sum())

    (finding,) = checked(lonely).findings
    word = "x = ls.recv(" if silent == 0 else "ls.send(x, "
    assert (finding.code, finding.line) == ("LS510", line_with(word))
    assert f"rank {1 - silent}: waits at {finding.line}" in finding.got


def test_one_program_that_sends_round_a_ring_is_replayed_too():
    def ring(x):
        ls.send(x, "pp", to=1)
        got = ls.recv(x, "pp", from_=-1)
        return ls.settle(ls.typed(got, pp=I))

    def own(mesh):
        return torch.full((2,), float(mesh.get_local_rank("pp")))

    (finding,) = checked(ring, own).findings
    assert finding.code == "LS538"
    report = checked(ring, lambda mesh: torch.ones(2))
    assert report.ok
    assert report.established[1:] == [
        "gradients: not judged but by what one rank computes, the ranks send each other messages",
        "one rank: the same numbers for what the step returns",
    ]


def test_what_a_rank_alone_has_is_compared_with_nothing():
    def other(mesh):
        stage, x = make(mesh)
        return stage, x + stage.at

    report = checked(step, other)
    assert report.ok
    assert "one rank: not compared, x on rank 1 is not what it is on one rank" in str(report)
