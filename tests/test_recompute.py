"""What the backward computes anew: which values, to which bits, and that a wrong choice is seen."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lockstep.build import recompute
from lockstep.build.inductor_backend import lower_inductor
from lockstep.build.recompute import recomputed
from lockstep.capture.capture import capture
from lockstep.capture.origin import META

aten = torch.ops.aten


class Gated(nn.Module):
    """A gated feed-forward: its product is kept for the last matrix's gradient."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.gate, self.up = nn.Linear(8, 16, bias=False), nn.Linear(8, 16, bias=False)
        self.down = nn.Linear(16, 8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


def train(model: nn.Module, x: Tensor) -> Tensor:
    loss = model(x).sum()
    loss.backward()
    return loss.detach()


def crossing(gm: Any) -> list[Any]:
    """Operators whose value is made in the forward and read in the backward."""
    phase = {n: n.meta[META].phase for n in gm.graph.nodes if META in n.meta}
    read = [a for n in phase if phase[n] == "backward" for a in n.all_input_nodes]
    return sorted({str(a.target) for a in read if phase.get(a) == "forward"})


def test_a_product_is_computed_again_from_what_is_kept_anyway() -> None:
    graph = capture(train, Gated(), torch.randn(4, 8))
    made, count = recomputed(graph.gm)
    assert count == 2  # silu(gate) and its product
    assert "aten.mul.Tensor" in crossing(graph.gm) and "aten.silu.default" in crossing(graph.gm)
    assert crossing(made) == ["aten.mm.default", "aten.sum.default", "aten.t.default"]
    assert [n.target for n in made.graph.nodes].count(aten.silu.default) == 2
    assert [n.target for n in graph.gm.graph.nodes].count(aten.silu.default) == 1  # as it was


def test_its_results_are_equal_to_the_bit() -> None:
    graph = capture(train, Gated(), torch.randn(4, 8))
    torch.manual_seed(1)
    inputs = [torch.randn(fake.shape) for fake in graph.fakes]
    made, _ = recomputed(graph.gm)
    assert all(map(torch.equal, graph.gm(*inputs), made(*inputs)))


def test_it_is_in_the_program_and_its_manifest() -> None:
    assert lower_inductor(capture(train, Gated(), torch.randn(4, 8))).repeats["recomputed"] == 2


def test_draws_and_half_precision_are_kept() -> None:
    class Drawn(Gated):
        def forward(self, x: Tensor) -> Tensor:
            return self.down(F.dropout(self.up(x), 0.5))

    graph = capture(train, Drawn(), torch.randn(4, 8))
    made, _ = recomputed(graph.gm)
    assert [str(n.target) for n in made.graph.nodes if "bernoulli" in str(n.target)] == [
        "aten.bernoulli_.float"
    ]
    half = capture(train, Gated().to(torch.bfloat16), torch.randn(4, 8, dtype=torch.bfloat16))
    assert recomputed(half.gm) == (half.gm, 0)


class Counting(Gated):
    """A buffer's value at the forward is read in the backward, after the buffer was written."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(16))

    def forward(self, x: Tensor) -> Tensor:
        scaled = self.up(x) * self.scale.clone()
        self.scale.add_(1)
        return self.down(scaled)


def test_what_is_written_in_between_is_not_read_again() -> None:
    graph = capture(train, Counting(), torch.randn(4, 8))
    assert "aten.clone.default" in crossing(graph.gm)
    assert recomputed(graph.gm) == (graph.gm, 0)


def test_a_pass_that_overlooks_a_write_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = capture(train, Counting(), torch.randn(4, 8))
    monkeypatch.setattr(recompute._Pass, "_at_hand", lambda *_: True)
    chosen: list[int] = []
    run = recompute._Pass.run
    monkeypatch.setattr(recompute._Pass, "run", lambda self: chosen.append(run(self)) or chosen[0])
    assert recomputed(graph.gm) == (graph.gm, 0)
    assert chosen[0] > 0  # it was made, and not proved
