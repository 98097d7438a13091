"""Types of whole steps: what is found, at which line, in which words; and right twins."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import lockstep as ls
from lockstep import I, P, R, S, V
from lockstep.checker.inference.types import Typing, infer
from lockstep.checker.world import capture_world


class Layer(nn.Module):
    """A column and a row parallel weight, and a gain that is the same on all ranks."""

    def __init__(self, mesh: Any) -> None:
        super().__init__()
        draw, here = torch.Generator().manual_seed(1), mesh.get_local_rank("tp")

        def part(dim: int, *shape: int) -> nn.Parameter:
            whole = torch.randn(shape, generator=draw)
            return nn.Parameter(whole.chunk(2, dim)[here].clone())

        self.gain = ls.typed(nn.Parameter(torch.randn(4, generator=draw)), tp=I)
        self.up = ls.typed(part(0, 8, 4), tp=S(0))
        self.down = ls.typed(part(1, 4, 8), tp=S(1))


def typing(step: Any, claim: Any = I) -> Typing:
    """Type a step of a layer and an input."""

    def make(mesh: Any) -> Any:
        x = torch.randn(3, 4, generator=torch.Generator().manual_seed(2))
        return Layer(mesh), ls.typed(x, tp=claim)

    return infer(capture_world(step, make, {"tp": 2}))


def step_of(forward: Any, after: Any = None) -> Any:
    def step(m: Layer, x: torch.Tensor) -> Any:
        loss = forward(m, x)
        loss.backward()
        if after is not None:
            after(m)
        return loss.detach()

    return step


def right(m: Layer, x: torch.Tensor) -> torch.Tensor:
    h = ls.convert(x * m.gain, "tp", src=I, dst=R)
    a = torch.relu(h @ m.up.t())
    y = ls.all_reduce(a @ m.down.t(), "tp", src=P, dst=I)
    return ((y + x) ** 2).sum()


@functools.cache
def right_typing() -> Typing:
    return typing(step_of(right))


def test_a_right_step_is_silent_and_every_value_is_typed() -> None:
    found = right_typing()
    assert (found.findings, dict(found.unknown), found.apart) == ([], {}, False)
    types = {str(t["tp"]) for t in found.types.values()}
    assert {"I", "R", "S(0)", "S(1)", "P"} <= types
    assert len(found.types) > 0.98 * found.nodes - 2


def unconverted(m: Layer, x: torch.Tensor) -> torch.Tensor:
    a = torch.relu(x * m.gain @ m.up.t())
    y = ls.all_reduce(a @ m.down.t(), "tp", src=P, dst=I)
    return (y**2).sum()


def unreduced(m: Layer, x: torch.Tensor) -> torch.Tensor:
    h = ls.convert(x * m.gain, "tp", src=I, dst=R)
    return ((torch.relu(h @ m.up.t()) @ m.down.t() + x) ** 2).sum()


def replicated(m: Layer, x: torch.Tensor) -> torch.Tensor:
    h = ls.convert(x * m.gain, "tp", src=I, dst=R)
    y = ls.all_reduce(torch.relu(h @ m.up.t()) @ m.down.t(), "tp", src=P, dst=R)
    return ((y + x * m.gain) ** 2).sum()


def twice(m: Layer, x: torch.Tensor) -> torch.Tensor:
    h = ls.convert(x * m.gain, "tp", src=I, dst=R)
    y = ls.all_reduce(torch.relu(h @ m.up.t()) @ m.down.t(), "tp", src=P, dst=I)
    return (ls.all_reduce(y, "tp", src=P, dst=I) ** 2).sum()


def activated(m: Layer, x: torch.Tensor) -> torch.Tensor:
    h = ls.convert(x * m.gain, "tp", src=I, dst=R)
    y = torch.relu(torch.relu(h @ m.up.t()) @ m.down.t())
    return (ls.all_reduce(y, "tp", src=P, dst=I) ** 2).sum()


def replicated_loss(m: Layer, x: torch.Tensor) -> torch.Tensor:
    h = ls.convert(x * m.gain, "tp", src=I, dst=R)
    y = ls.all_reduce(torch.relu(h @ m.up.t()) @ m.down.t(), "tp", src=P, dst=R)
    return (y**2).sum()


def claimed_whole(m: Layer, x: torch.Tensor) -> torch.Tensor:
    h = ls.convert(x * m.gain, "tp", src=I, dst=R)
    y = ls.typed(torch.relu(h @ m.up.t()), tp=I)
    return ls.typed((y**2).sum(), tp=P)


FAULTS = [
    (unconverted, "LS504", 1, "an invariant value meets S(1)"),
    (unreduced, "LS501", 2, "a partial sum is added to a value that is whole"),
    (replicated, "LS503", 3, "a replicated value meets an invariant one"),
    (twice, "LS505", 3, "a value that every rank holds already is summed over the ranks"),
    (activated, "LS502", 2, "relu of a partial sum"),
    (claimed_whole, "LS506", 2, "a shard of dimension 1 is claimed to be I"),
]


@pytest.mark.parametrize(("forward", "code", "offset", "what"), FAULTS)
def test_a_fault_is_told_once_at_its_line(forward, code, offset, what) -> None:
    found = typing(step_of(forward)).findings
    line = forward.__code__.co_firstlineno + offset
    assert [(f.code, f.what, f.axis) for f in found] == [(code, what, "tp")]
    assert found[0].line.endswith(f"test_checker_types.py:{line}")


def test_a_finding_says_where_each_operand_got_its_type() -> None:
    (finding,) = typing(step_of(unreduced)).findings
    assert "x is I since input x" in finding.why
    assert finding.fix == (
        'return ((ls.all_reduce(torch.relu(h @ m.up.t()) @ m.down.t(), "tp", src=P, dst=I) + x)'
        " ** 2).sum()"
    )


FIXES = [
    (unconverted, 1, 'a = torch.relu(ls.convert(x * m.gain, "tp", src=I, dst=R) @ m.up.t())'),
    (replicated, 2, 'y = ls.all_reduce(torch.relu(h @ m.up.t()) @ m.down.t(), "tp", src=P, dst=I)'),
    (twice, 3, "return (y ** 2).sum()"),
]


@pytest.mark.parametrize(("forward", "offset", "text"), FIXES)
def test_the_first_fix_is_a_whole_line_to_paste(forward, offset, text) -> None:
    found = typing(step_of(forward))
    line, first = forward.__code__.co_firstlineno + offset, found.repairs[0][0]
    assert (first.text, first.line.rpartition(":")[2]) == (text, str(line))


def test_a_replicated_loss_is_refused() -> None:
    (finding,) = typing(step_of(replicated_loss)).findings
    assert finding.code == "LS513"
    assert finding.what.startswith("the loss is replicated")


# -- what the optimizer reads


def sharded(m: Layer, x: torch.Tensor) -> torch.Tensor:
    h = x * ls.convert(m.gain, "tp", src=I, dst=R)
    return ls.typed((h**2).sum(), tp=P)


def hooked(m: Layer, x: torch.Tensor) -> torch.Tensor:
    gain = ls.typed(m.gain, tp=R)
    return ls.typed(((x * gain) ** 2).sum(), tp=P)


def summed(m: Layer) -> None:
    dist.all_reduce(m.gain.grad)


def test_a_gradient_that_is_still_partial_is_told() -> None:
    (finding,) = typing(step_of(hooked), claim=S(0)).findings
    assert (finding.code, finding.got) == ("LS514", "P")
    assert finding.what == "m.gain.grad is still partial on tp when the optimizer reads it"
    assert finding.fix == 'm.gain.grad = ls.all_reduce(m.gain.grad, "tp", src=P, dst=R)'
    assert not typing(step_of(hooked, summed), claim=S(0)).findings
    assert not typing(step_of(sharded), claim=S(0)).findings


def test_a_varying_loss_asks_how_it_adds_up() -> None:
    def forward(m: Layer, x: torch.Tensor) -> torch.Tensor:
        return (x * m.gain.detach() * m.up[0]).sum()

    (finding,) = typing(step_of(forward), claim=V).findings
    assert (finding.code, finding.want) == ("LS513", "I, P or P(mean)")


# -- conversions of the user's own


class Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, reduce: bool) -> torch.Tensor:
        ctx.reduce = reduce
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        grad = grad.clone()
        if ctx.reduce:
            dist.all_reduce(grad)
        return grad, None


@pytest.mark.parametrize("reduce", [True, False])
def test_an_own_function_is_judged_by_its_backward(reduce: bool) -> None:
    def forward(m: Layer, x: torch.Tensor) -> torch.Tensor:
        h = Copy.apply(x * m.gain, reduce)
        y = ls.all_reduce(torch.relu(h @ m.up.t()) @ m.down.t(), "tp", src=P, dst=I)
        return ((y + x) ** 2).sum()

    found = typing(step_of(forward)).findings
    assert [f.code for f in found] == ([] if reduce else ["LS518"])
    if found:
        assert found[0].line.endswith(f":{Copy.backward.__code__.co_firstlineno + 2}")


def test_a_varying_value_written_into_a_replicated_buffer() -> None:
    def step(m: Layer, x: torch.Tensor) -> Any:
        x[:2] = m.up[:2].detach()
        return x.sum()

    (finding,) = typing(step).findings
    assert (finding.code, finding.got, finding.want) == ("LS511", "V", "I")


def test_graphs_of_another_structure_are_not_typed() -> None:
    def make(mesh: Any) -> Any:
        return torch.ones(2), mesh.get_local_rank("tp")

    def step(x: torch.Tensor, rank: int) -> Any:
        return x.exp() if rank else x + 1

    assert infer(capture_world(step, make, {"tp": 2})).apart
