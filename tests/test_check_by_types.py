"""A check by types alone: no memory, some of the ranks, and what nothing declares is no fault."""

from __future__ import annotations

import resource
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lockstep as ls
from lockstep import I, P, R, S
from lockstep.checker.by_types import judge_by_types
from lockstep.checker.world import capture_world
from lockstep.errors import UsageError

MESH = {"dp": 2, "tp": 8}


class Wide(nn.Module):
    """Two layers split over tp, in tensors that no laptop holds."""

    def __init__(self, mesh: Any, width: int, declared: bool = True) -> None:
        super().__init__()
        part = width // mesh["tp"].size()
        self.scale = nn.Parameter(torch.randn(width))
        self.up = nn.Parameter(torch.randn(part, width))
        self.down = nn.Parameter(torch.randn(width, part))
        if declared:
            shards = {"scale": I, "up": S(0), "down": S(1)}
            ls.type_parameters(self, {"*": {"dp": R}} | {n: {"tp": t} for n, t in shards.items()})


def made(width: int = 1 << 20, **more: Any) -> Any:
    def make(mesh: Any) -> Any:
        x = ls.typed(torch.randn(4, width), tp=I)
        return Wide(mesh, width, **more), x

    return make


def written(fault: str = "") -> Any:
    def step(m: Wide, x: torch.Tensor) -> torch.Tensor:
        h = x * m.scale
        e = h if fault == "no convert" else ls.convert(h, "tp", src=I, dst=R)
        partial = F.linear(F.gelu(F.linear(e, m.up)), m.down)
        y = ls.all_reduce(partial, "tp", src=P, dst=I)
        loss = ls.loss((y**2).mean(), dp="mean")
        loss.backward()
        if fault != "no reduce":
            ls.reduce_grads(m, dp="mean")
        return loss

    return step


def by_types(fault: str = "", make: Any = None, **more: Any) -> Any:
    given = {"mesh": MESH, "data": "dp", "witnesses": "types"} | more
    return ls.check(written(fault), make or made(), **given)


def test_a_right_step_of_terabytes_passes_in_no_memory():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    report = by_types()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20  # KiB
    assert report.ok
    assert report.undecided == []
    assert report.established[0] == "types only: gold and twin did not run"
    assert report.established[1] == "order: 5 collectives, the same on each traced rank"
    typed, _, count = report.established[2].removeprefix("types: ").split()[:3]
    assert typed == count
    assert "mesh dp=2 x tp=8, traced at (0, 0), (0, 1), (1, 0)" in report.established[3]


def test_a_forgotten_conversion_is_found_with_its_line():
    (finding,) = by_types("no convert").findings
    assert (finding.code, finding.axis, finding.got) == ("LS504", "tp", "I and S(1)")
    assert finding.source == "partial = F.linear(F.gelu(F.linear(e, m.up)), m.down)"
    assert 'ls.convert(e, "tp", src=I, dst=R)' in str(finding.fix)
    assert not finding.verified


def test_a_conversion_that_another_block_has_does_not_hide_the_forgotten_one():
    def block(m: Wide, x: torch.Tensor, convert: bool) -> torch.Tensor:
        h = ls.convert(x, "tp", src=I, dst=R) if convert else x
        return x + ls.all_reduce(F.linear(F.linear(h, m.up), m.down), "tp", src=P, dst=I)

    def step(m: Wide, x: torch.Tensor) -> torch.Tensor:
        stream = block(m, block(m, x * m.scale, True), False)
        loss = ls.loss((stream**2).mean(), dp="mean")
        loss.backward()
        ls.reduce_grads(m, dp="mean")
        return loss

    (finding,) = ls.check(step, made(64), mesh=MESH, data="dp", witnesses="types").findings
    assert (finding.code, finding.axis, finding.got) == ("LS504", "tp", "I and S(1)")


def test_a_gradient_that_is_not_reduced_is_found_unless_something_else_reduces_it():
    (finding,) = by_types("no reduce").findings
    assert (finding.code, finding.axis, finding.got) == ("LS514", "dp", "P(mean)")
    report = by_types("no reduce", pending={"dp": "mean"})
    assert report.ok
    assert report.established[-1] == "pending: mean over dp"


@pytest.mark.parametrize("fault", ["", "no convert"])
def test_what_nothing_declares_is_undecided_and_no_fault(fault):
    report = by_types(fault, made(64, declared=False))
    assert report.ok
    assert report.undecided == [
        "the layout of m.scale, m.up, m.down along dp, tp is not known: declare it: "
        "ls.typed(m.scale, dp=..., tp=...)"
    ]


def test_a_parameter_of_one_number_says_nothing_of_its_layout():
    def step(m: nn.Linear, x: torch.Tensor) -> torch.Tensor:
        loss = ls.loss((x * m.bias).sum(), dp="mean")
        loss.backward()
        return loss

    def make(mesh: Any) -> Any:
        model = nn.Linear(2, 2)
        nn.init.zeros_(model.bias)
        return model, torch.ones(2) * (1 + mesh.get_local_rank("dp"))

    report = judge_by_types(capture_world(step, make, {"dp": 2}), ("dp",))
    assert report.ok
    assert report.undecided == [
        "the layout of m.bias along dp is not known: declare it: ls.typed(m.bias, dp=...)"
    ]


def test_only_the_origin_and_its_neighbours_are_traced():
    world = capture_world(written(), made(64), {"pp": 3, "dp": 2, "tp": 8}, by_shape=True)
    assert [trace.rank for trace in world.ranks] == [0, 1, 8, 16]
    assert world.group(0, "tp") == [0, 1]
    assert world.groups(["dp"]) == [[0, 2], [1], [3]]


def test_own_slices_are_told_from_two_coordinates_of_eight():
    """Each rank's slice begins where its coordinate says; the six untraced ranks' are not read."""

    def step(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        size = w.shape[0] // 8
        start = torch.distributed.get_rank() % 8 * size
        return ls.typed(w[start : start + size], tp=S(0)) @ x

    def make(mesh: Any) -> Any:
        w, x = torch.randn(64, 8), torch.randn(8, 2)
        return ls.typed(x, tp=R, dp=R), ls.typed(w, tp=R, dp=R)

    report = ls.check(step, make, mesh=MESH, witnesses="types")
    assert report.ok


def test_other_witnesses_are_refused():
    with pytest.raises(UsageError, match="witnesses='gold'"):
        by_types(witnesses="gold")
