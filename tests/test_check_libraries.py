"""What libraries do that a step of one's own hardly does: a check takes it, right and wrong."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import lockstep as ls
from lockstep.checker.finding import Report
from lockstep.checker.lines import source_of
from tests import library

BUCKET = "grad.copy_(piece.view(grad.shape))"


def checked(reduces: bool = True, finishes: bool = True) -> Report:
    """Check the layers, as they are or without one of their reductions."""

    def make(mesh: Any) -> Any:
        library.SCRATCH[0] = library.Scratch()
        group = library.own_group()
        x = torch.randn(library.TOKENS, library.WIDE)
        return library.Layers(group), x, group

    def step(model: library.Layers, x: Tensor, group: Any) -> Tensor:
        loss = model(x, group, reduces)
        loss.backward()
        library.bucketed(model, group, finishes)
        return loss

    return ls.check(step, make, mesh={"tp": 2}, repair_s=0)


def test_layers_of_a_library_pass():
    report = checked()
    assert report.ok, str(report)
    told = "\n".join(report.established)
    assert "gradients: 5 of 5 parameters' are the derivative" in told
    assert "one rank: the same numbers for the loss and 5 gradients" in told
    assert report.undecided == [] and not report.unknown_ops


def test_a_backward_without_its_reduction_is_told_by_the_function_s_own_name():
    (finding,) = checked(reduces=False).findings
    assert finding.code == "LS536" and finding.axis == "tp", str(finding)
    assert finding.what == "the backward of Gathered does not add up what the ranks of tp give it"
    assert finding.source == "before = grad @ weight.T"
    assert finding.line.startswith("tests/library.py:")


def test_a_bucket_that_is_not_reduced_is_told_as_partial_with_the_line_it_went_through():
    (finding,) = checked(finishes=False).findings
    assert finding.what.startswith("model.norm.grad is still partial on tp"), str(finding)
    assert finding.source.endswith("* self.norm")
    assert [source_of(line) for line in finding.related] == [BUCKET]


class Marked(torch.nn.Module):
    """A layer of constant parameters, which only marks can place; `marked`: with them."""

    def __init__(self, mesh: Any, marked: bool) -> None:
        super().__init__()
        size = mesh.size()
        self.shard = torch.nn.Parameter(torch.zeros(8 // size))
        self.strided = torch.nn.Parameter(torch.zeros(8 // size))
        self.copy = torch.nn.Parameter(torch.ones(()))
        self.tokens = torch.nn.Parameter(torch.ones(()))
        if marked:
            self.shard.tensor_model_parallel, self.shard.partition_dim = True, 0
            self.strided.tensor_model_parallel, self.strided.partition_dim = True, 0
            self.strided.partition_stride = 2
            self.copy.sequence_parallel, self.tokens.sequence_parallel = False, True

    def forward(self, x: Tensor) -> Tensor:
        own = x.chunk(8 // len(self.shard))[self.rank]
        h = self.copy * library.Summed.apply((own * self.shard.cos()).sum(), None)
        return h + library.Summed.apply((self.tokens * own * self.strided.cos()).sum(), None)


def marked(marks: bool) -> Report:
    """Check a layer with or without Megatron's marks on its parameters."""

    def make(mesh: Any) -> Any:
        model = Marked(mesh, marks)
        model.rank = mesh.get_rank()
        return model, torch.arange(8.0)

    def step(model: Marked, x: Tensor) -> Tensor:
        loss = model(x)
        loss.backward()
        dist.all_reduce(model.tokens.grad)
        return loss

    return ls.check(step, make, mesh={"tp": 2}, repair_s=0)


def test_marks_are_placements():
    report = marked(True)
    assert report.ok and report.undecided == [], str(report)
    (line,) = marked(False).undecided  # it is the marks that placed them
    assert "model.shard, model.strided, model.copy and 1 more are constant and equal" in line


def test_a_mark_that_the_values_contradict_is_found():
    def make(mesh: Any) -> Any:
        model = torch.nn.Linear(2, 2, bias=False)
        model.weight.data.fill_(mesh.get_rank())
        model.weight.sequence_parallel = False  # type: ignore[assignment]
        return model, torch.ones(2)

    def step(model: torch.nn.Linear, x: Tensor) -> None:
        model(x).sum().backward()

    (finding,) = ls.check(step, make, mesh={"tp": 2}, repair_s=0).findings
    assert finding.code == "LS534" and "model.weight" in finding.what


class Frozen(torch.autograd.Function):
    """A linear layer that has a gradient for its input alone, as for weights that are frozen."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(weight)
        return x @ weight + bias

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad @ ctx.saved_tensors[0].T, None, None


def test_a_backward_may_give_none_and_what_trains_without_a_gradient_is_found():
    def make(mesh: Any) -> Any:
        model = torch.nn.Linear(4, 4)
        model.weight.requires_grad_(False)
        model.first = torch.nn.Linear(4, 4)
        return model, torch.randn(4)

    def step(model: torch.nn.Linear, x: Tensor) -> None:
        Frozen.apply(model.first(x), model.weight, model.bias).cos().sum().backward()

    (finding,) = ls.check(step, make, mesh={"tp": 2}, repair_s=0).findings
    assert finding.what == "the gradient of model.bias is missing: .grad is None"
    assert finding.source.startswith("Frozen.apply("), str(finding)
