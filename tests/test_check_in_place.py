"""Values that a Function computes over in their own memory; where a program parts from one rank.

Cross entropy of divided logits is the pattern: softmax in place of the logits, `out=` overloads.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

import lockstep as ls
from lockstep.checker.finding import Report
from lockstep.checker.lines import source_of
from lockstep.checker.simulation.memory import overwritten
from tests.library import Scattered

ROWS, WIDE, VOCAB = 4, 4, 8


class Gathered(torch.autograd.Function):
    """S(0) to I: the backward takes the own slice."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, missing: bool) -> Tensor:
        ranks = dist.get_world_size()
        if missing:
            return x.repeat(ranks, 1)
        whole = torch.empty(len(x) * ranks, *x.shape[1:])
        dist.all_gather_into_tensor(whole, x.contiguous())
        return whole

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad.chunk(dist.get_world_size())[dist.get_rank()], None


class Copied(torch.autograd.Function):
    """I to R, unless its backward lacks the reduction."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, missing: bool) -> Tensor:
        ctx.missing = missing
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        grad = grad.clone()
        if not ctx.missing:
            dist.all_reduce(grad)
        return grad, None


class Entropy(torch.autograd.Function):
    """Cross entropy of logits whose vocabulary is divided, in their own memory."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, without: str) -> Tensor:
        largest = logits.max(-1).values
        if without != "maximum":
            dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        logits -= largest.unsqueeze(-1)
        first = dist.get_rank() * logits.shape[-1]
        elsewhere = (labels < first) | (labels >= first + logits.shape[-1])
        own = (labels - first).masked_fill(elsewhere, 0)
        picked = logits.gather(-1, own.unsqueeze(-1)).squeeze(-1).masked_fill(elsewhere, 0.0)
        torch.exp(logits, out=logits)
        total = logits.sum(-1)
        for part in (picked, total):
            dist.all_reduce(part)
        logits.div_(total.unsqueeze(-1))
        ctx.save_for_backward(logits, own, elsewhere)
        return total.log() - picked

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        softmax, own, elsewhere = ctx.saved_tensors
        here = (~elsewhere).to(softmax.dtype).unsqueeze(-1)
        return softmax.scatter_add(-1, own.unsqueeze(-1), -here) * grad.unsqueeze(-1), None, None


class Model(nn.Module):
    """A layer whose input and result are whole, and divided logits."""

    def __init__(self, mesh: Any) -> None:
        super().__init__()
        first, output = torch.randn(WIDE, WIDE), torch.randn(WIDE, VOCAB)
        self.first = nn.Parameter(first)
        self.output = nn.Parameter(output.chunk(mesh.size(), 1)[mesh.get_rank()].clone())
        ls.typed(self.first, tp=ls.I)
        ls.typed(self.output, tp=ls.S(1))

    def forward(self, x: Tensor, labels: Tensor, without: str) -> Tensor:
        h = (x @ self.first).tanh()
        logits = Copied.apply(h, without == "copy") @ self.output
        return Entropy.apply(logits, labels, without).mean()


@functools.cache
def checked(without: str = "") -> Report:
    """Check the model, with something left out."""

    def make(mesh: Any) -> Any:
        return Model(mesh), torch.randn(ROWS, WIDE), torch.tensor([0, 3, 5, 6])

    def step(model: Model, x: Tensor, labels: Tensor) -> Tensor:
        loss = model(x, labels, without)
        loss.backward()
        return loss

    return ls.check(step, make, mesh={"tp": 2}, repair_s=0)


def test_a_function_that_computes_over_its_input_has_true_gradients():
    report = checked()
    assert report.ok, str(report)
    assert "gradients: 2 of 2 parameters' are the derivative" in report.established


def test_what_lies_before_such_a_function_is_blamed_for_its_own_fault():
    (finding,) = checked("copy").findings
    assert finding.source == "grad = grad.clone()", str(finding)  # in Copied's backward


def test_where_its_forward_goes_wrong_is_its_own_line():
    (finding,) = checked("maximum").findings
    assert finding.source == "return Entropy.apply(logits, labels, without).mean()", str(finding)


def test_values_that_are_computed_over_are_known():
    def step(x: Tensor) -> Tensor:
        y = x * 2
        view = y.view(-1)
        z = y + 1
        view.sub_(1)
        buffer = torch.zeros(4)
        buffer.add_(1)
        copied = x * 3
        copied.copy_(y)
        return y + z + buffer + copied

    nodes = list(make_fx(step)(torch.ones(4)).graph.nodes)
    places = overwritten(nodes, [True] * len(nodes))
    assert [str(nodes[at].target) for at in sorted(places)] == [
        "aten.mul.Tensor",
        "aten.view.default",
    ]
    assert overwritten(nodes, [False] * len(nodes)) == set()


def order(missing: bool) -> Report:
    """Check two gathers around a scatter; the second repeats its own part where it is missing."""

    def make(mesh: Any) -> Any:
        weight = nn.Parameter(torch.randn(WIDE, WIDE))
        model = nn.Module()
        model.weight = weight
        return model, torch.randn(ROWS, WIDE), mesh.get_group("tp")

    def step(model: nn.Module, x: Tensor, group: Any) -> Tensor:
        own = Scattered.apply(x @ model.weight / group.size(), group)
        whole = Gathered.apply(own.tanh(), missing)
        flipped = whole.flip(0)
        loss = (flipped * x).cos().sum()
        loss.backward()
        return loss

    return ls.check(step, make, mesh={"tp": 2}, repair_s=0)


def test_a_gather_that_is_missing_is_told_though_its_values_are_those_of_one_rank():
    (finding,) = order(missing=True).findings
    told = [source_of(line) for line in (finding.line, *finding.related)]
    assert "whole = Gathered.apply(own.tanh(), missing)" in told, str(finding)


def averaged(parts: int) -> Report:
    """Check a gradient that is averaged beside itself and copied back, as a reducer does."""

    def make(mesh: Any) -> Any:
        model = nn.Linear(WIDE, 1)
        return model, torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(ROWS * 2, WIDE)

    def step(model: nn.Module, optimizer: Any, x: Tensor) -> Tensor:
        loss = ls.loss(model(x).square().mean(), dp="mean")
        loss.backward()
        for parameter in model.parameters():
            mean = parameter.grad / parts
            dist.all_reduce(mean)
            parameter.grad.copy_(mean)
        optimizer.step()
        return loss.detach()

    return ls.check(step, make, mesh={"dp": 2}, data="dp", repair_s=0)


def test_what_a_copy_writes_over_does_not_scale_it():
    assert averaged(parts=2).findings == []
    (finding,) = averaged(parts=1).findings
    assert "right after backward(), and wrong when the optimizer takes it" in str(finding)
