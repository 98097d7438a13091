"""All witnesses together: right programs pass, each fault is one finding at its line."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import lockstep as ls
from lockstep.checker.finding import Report
from lockstep.errors import UsageError
from tests.checker_cases import CASES, Held, copy_in, random, reduce_out


@functools.cache
def report(name: str, fault: str = "") -> Report:
    make_step, make, mesh, _ = CASES[name]
    return ls.check(make_step(fault), make, mesh=mesh, repair_s=0)


@pytest.mark.parametrize("name", CASES)
def test_right_programs_pass_and_say_what_was_established(name: str):
    found = report(name)
    assert found.ok, str(found)
    told = "\n".join(found.established)
    assert "are the derivative" in told and "one rank: the same numbers for the loss and" in told
    assert "these sizes, this path" in told


# name, fault -> axis, and how the line begins
EXPECTED = {
    ("tensor_parallel", "no copy"): ("tp", "p = F.linear(F.gelu(F.linear(e"),
    ("tensor_parallel", "no reduce"): ("tp", "loss = ((y + h)"),
    ("tensor_parallel", "to R"): ("tp", "y = p if fault"),
    ("tensor_parallel", "twice"): ("tp", "y = reduce_out(y)"),
    ("sequence_parallel", "no hook"): ("tp", "h = m.x * m.g"),
    ("data_parallel", "one left"): ("dp", "e = F.linear("),
    ("data_parallel", "unsaid"): ("dp", "loss = e.mean()"),
    ("data_parallel", "sum"): ("dp", "p.grad /= 1"),
    ("order", "swapped"): ("tp", "sums = {name"),
    ("clipping", "own norm"): ("tp", "norm = torch.sqrt("),
    ("dropout", "own seed"): ("tp", "h = F.dropout("),
}


@pytest.mark.parametrize(("name", "fault"), EXPECTED)
def test_each_fault_is_one_finding_at_its_line(name: str, fault: str):
    axis, source = EXPECTED[name, fault]
    (finding,) = report(name, fault).findings
    assert finding.axis == axis and finding.source.startswith(source), str(finding)


def test_every_fault_of_the_cases_is_expected():
    assert {(name, fault) for name, case in CASES.items() for fault in case[3]} == set(EXPECTED)


def test_a_report_is_json():
    text = json.dumps(report("order", "swapped").to_json())
    assert json.loads(text)["findings"][0]["code"] == "LS510"


def _masked(m: Held, tokens: torch.Tensor) -> torch.Tensor:
    """A vocabulary cut over tp: rows of other ranks must be zero before the reduction."""
    rows = m.table.shape[0]
    start = dist.get_rank() * rows
    local = (tokens - start).clamp(0, rows - 1)
    found = F.embedding(local, m.table)
    if m.mask:
        inside = (tokens >= start) & (tokens < start + rows)
        found = found * inside.unsqueeze(-1)
    loss = (reduce_out(found) ** 2).sum()
    loss.backward()
    return loss


@pytest.mark.parametrize("mask", [True, False])
def test_a_forward_that_is_wrong_everywhere_shows_beside_one_rank(mask: bool):
    def make(mesh: object) -> object:
        held = Held(mesh, table=(random(0, 8, 4), ls.S(0)))
        held.mask = mask
        return held, torch.tensor([0, 3, 5, 7])

    found = ls.check(_masked, make, mesh={"tp": 2}, repair_s=0)
    assert found.ok is mask, str(found)


def test_a_step_without_a_backward_is_differentiated():
    def right(m: Held, x: torch.Tensor) -> torch.Tensor:
        return reduce_out(F.linear(F.linear(copy_in(x * m.g), m.w1), m.w2))

    def wrong(m: Held, x: torch.Tensor) -> torch.Tensor:
        return reduce_out(F.linear(F.linear(x * m.g, m.w1), m.w2))

    def make(mesh: object) -> object:
        tensors = {"g": (random(1, 8), ls.I), "w1": (random(2, 16, 8), ls.S(0))}
        return Held(mesh, **tensors, w2=(random(3, 8, 16), ls.S(1))), random(0, 4, 8)

    assert ls.check(right, make, mesh={"tp": 2}).ok
    (finding,) = ls.check(wrong, make, mesh={"tp": 2}, repair_s=0).findings
    assert finding.axis == "tp" and "F.linear(x * m.g" in finding.source


def test_a_module_may_be_given_itself():
    found = ls.check(nn.Linear(4, 2), lambda mesh: random(0, 3, 4), mesh={"tp": 2})
    assert found.ok and "2 of 2 parameters'" in "\n".join(found.established)


def test_later_reductions_are_said():
    make_step, make, mesh, _ = CASES["data_parallel"]
    assert not ls.check(make_step("none"), make, mesh=mesh, repair_s=0).ok
    found = ls.check(make_step("none"), make, mesh=mesh, pending={"dp": "mean"})
    assert found.ok and "pending: mean over dp" in found.established


def _normed(mesh: object) -> object:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 3))
    return model, random(0, 4, 4).chunk(mesh.size())[dist.get_rank()].clone()


def _trained(clip_first: bool):
    def step(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        for part in x.chunk(2):
            loss = ls.loss((model(part) ** 2).mean() / 2, dp="mean")
            loss.backward()
        if clip_first:
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        ls.reduce_grads(model, dp="mean")
        if not clip_first:
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        return loss

    return step


def test_accumulated_and_clipped_gradients_are_right_and_constants_are_told():
    found = ls.check(_trained(False), _normed, mesh={"dp": 2})
    assert found.ok, str(found)
    assert "one rank: the same numbers for the loss and 6 gradients" in found.established
    assert "constant and equal on every rank of dp" in "\n".join(found.undecided)


def _twice(m: Held, x: torch.Tensor, fault: str) -> torch.Tensor:
    """Two micro-batches through typed collectives: the second's are forward as the first's are."""
    total = torch.zeros(())
    for part in x.chunk(2):
        h = part * m.g
        h = h if fault == "no copy" else ls.convert(h, "tp", src=ls.I, dst=ls.R)
        y = F.linear(F.linear(h, m.w1).tanh(), m.w2)
        loss = (ls.all_reduce(y, "tp", src=ls.P, dst=ls.I) ** 2).sum()
        loss.backward()
        total = total + loss.detach()
    return total


def _checked_twice(fault: str) -> Report:
    def make(mesh: object) -> object:
        tensors = {"g": (random(1, 8), ls.I), "w1": (random(2, 16, 8), ls.S(0))}
        return Held(mesh, **tensors, w2=(random(3, 8, 16), ls.S(1))), random(0, 4, 8)

    return ls.check(lambda m, x: _twice(m, x, fault), make, mesh={"tp": 2}, repair_s=0)


def test_typed_collectives_of_a_second_micro_batch_are_of_its_forward():
    found = _checked_twice("")
    assert found.ok, str(found)
    assert "gradients: 3 of 3 parameters' are the derivative" in found.established


def test_a_conversion_left_out_of_both_micro_batches_is_found():
    (finding,) = _checked_twice("no copy").findings
    assert finding.axis == "tp" and finding.source.startswith("h = part * m.g")


def test_clipping_before_the_reduction_is_found():
    (finding,) = ls.check(_trained(True), _normed, mesh={"dp": 2}, repair_s=0).findings
    assert finding.axis == "dp" and "clip_grad_norm_" in finding.source, str(finding)


class Forgetful(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:
        return grad.clone()


def _forgets(m: Held) -> torch.Tensor:
    e = Forgetful.apply(m.x)
    loss = ((reduce_out(F.linear(F.gelu(F.linear(e, m.w1)), m.w2)) + m.x) ** 2).sum()
    loss.backward()
    return loss


def test_a_function_whose_backward_forgets_is_named():
    make = CASES["tensor_parallel"][1]
    (finding,) = ls.check(_forgets, make, mesh={"tp": 2}, repair_s=0).findings
    assert finding.code == "LS536" and "Forgetful" in finding.what
    assert finding.source == "e = Forgetful.apply(m.x)" and len(finding.related) == 2


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        return (x * 4).round() / 4

    @staticmethod
    def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:
        return grad.clone()


def _straight(said: bool, fault: bool = False):
    rounded = ls.intended(Rounded.apply, reason="straight-through") if said else Rounded.apply

    def step(m: Held) -> torch.Tensor:
        h = rounded(m.x * m.g)
        e = h if fault else copy_in(h)
        loss = ((reduce_out(F.linear(F.gelu(F.linear(e, m.w1)), m.w2)) + m.x) ** 2).sum()
        loss.backward()
        return loss

    return step


def test_a_gradient_that_is_meant_is_taken_as_it_is_and_told():
    make = CASES["tensor_parallel"][1]
    found = ls.check(_straight(True), make, mesh={"tp": 2}, repair_s=0)
    assert found.ok, str(found)
    assert "(straight-through)" in "\n".join(found.established)
    assert not ls.check(_straight(False), make, mesh={"tp": 2}, repair_s=0).ok


def test_faults_behind_a_gradient_that_is_meant_are_still_found():
    make = CASES["tensor_parallel"][1]
    found = ls.check(_straight(True, fault=True), make, mesh={"tp": 2}, repair_s=0)
    assert not found.ok and found.findings[0].axis == "tp"


def _by_rank(x: torch.Tensor) -> torch.Tensor:
    return x + 1 if dist.get_rank() else x * 2


def test_programs_that_differ_are_not_called_right():
    found = ls.check(_by_rank, lambda mesh: torch.ones(2), mesh={"tp": 2})
    assert "not judged, the ranks' programs differ" in "\n".join(found.established)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"mesh": {"tp": 2}, "data": "dp"}, "no mesh axis dp"),
        ({"mesh": {"tp": 2}, "pending": {"tp": "max"}}, "pending tp='max'"),
        ({"mesh": {}}, "mesh={}"),
    ],
)
def test_what_cannot_be_meant_is_refused(options: dict, told: str):
    with pytest.raises(ls.LockstepError, match=told):
        ls.check(_by_rank, lambda mesh: torch.ones(2), **options)


class Scaled:
    factor = 3.0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.factor).sum()


def scaled(x: torch.Tensor, factor: float = 2.0) -> torch.Tensor:
    return (x * factor).sum()


@pytest.mark.parametrize(
    "step",
    [
        functools.partial(scaled, factor=4.0),
        Scaled(),
        Scaled().__call__,
        ls.compile(scaled),
        torch.compile(scaled),
    ],
)
def test_any_callable_is_checked(step):
    assert ls.check(step, lambda mesh: torch.ones(2), mesh={"tp": 2}).ok


def decorated(reduces: bool) -> Callable[..., torch.Tensor]:
    """A step that is made of a loss by a decorator, which copies its name and all that."""

    def own(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return model(x).square().mean()

    @functools.wraps(own)
    def step(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        loss = ls.loss(own(model, x), dp="mean")
        loss.backward()
        if reduces:
            ls.reduce_grads(model, dp="mean")
        return loss

    return step


def test_what_a_decorator_does_is_checked_and_not_what_it_wraps_alone():
    def make(mesh: Any) -> Any:
        torch.manual_seed(0)
        model = nn.Linear(4, 2)
        return model, torch.randn(3, 4, generator=torch.Generator().manual_seed(mesh.get_rank()))

    assert ls.check(decorated(True), make, mesh={"dp": 2}, data="dp").ok
    wrong = ls.check(decorated(False), make, mesh={"dp": 2}, data="dp", repair_s=0)
    assert [finding.code for finding in wrong.findings] == ["LS514"]


def test_what_is_no_step_is_told():
    with pytest.raises(UsageError, match="step is a int"):
        ls.check(3, lambda mesh: (), mesh={"tp": 2})
    with pytest.raises(UsageError, match="make is a Tensor"):
        ls.check(scaled, torch.ones(2), mesh={"tp": 2})


def _picked(model: nn.Embedding, picks: torch.Tensor) -> torch.Tensor:
    loss = ls.loss(model.weight[picks].sum(), dp="sum")
    loss.backward()
    return loss


def _picking(last: int) -> Callable[[Any], Any]:
    """Rows that all ranks hold; rank 1 picks its last one as told."""

    def make(mesh: Any) -> Any:
        torch.manual_seed(0)
        return nn.Embedding(5, 3), torch.tensor([0, last if mesh.get_rank() else 2])

    return make


def test_a_step_that_ends_with_an_error_on_one_rank_is_a_finding_at_its_line():
    right, wrong = (
        ls.check(_picked, _picking(last), mesh={"dp": 2}, pending={"dp": "sum"}, repair_s=0)
        for last in (4, 7)
    )
    assert right.ok
    [finding] = wrong.findings
    assert finding.code == "LS537" and "model.weight[picks]" in finding.source
    assert finding.what.startswith("aten.index ends with an error: index 7 is out of bounds")
    assert finding.got == "tensors of all ranks: [5, 3], [2]"
    assert "gradients: not judged, the step does not end" in wrong.established


def _told(model: nn.Embedding, ids: torch.Tensor, adds_up: bool) -> torch.Tensor:
    loss = ls.loss(model(ids).square().sum(), dp="sum")
    loss.backward()
    ls.reduce_grads(model, dp="sum")
    whole = loss.detach()
    if adds_up:
        whole = ls.all_reduce(whole, "dp", src=ls.P, dst=ls.I)
    return ls.typed(whole, dp=ls.I)


def test_a_value_that_is_not_as_claimed_is_found_where_nothing_else_is_wrong():
    def make(adds_up: bool) -> Callable[[Any], Any]:
        ids = torch.arange(6)
        return lambda mesh: (nn.Embedding(6, 3), ids.chunk(mesh.size())[mesh.get_rank()], adds_up)

    right, wrong = (
        ls.check(_told, make(adds_up), mesh={"dp": 2}, data="dp", repair_s=0)
        for adds_up in (True, False)
    )
    assert right.ok
    [finding] = wrong.findings
    assert (finding.code, finding.axis, finding.want) == ("LS538", "dp", "I")
    assert finding.source == "return ls.typed(whole, dp=ls.I)"
