"""The pass `memory`: what it gives up, to which bits, where its budget ends, what it keeps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lockstep as ls
from lockstep.build.outline.nodes import calls
from lockstep.build.passes import memory
from lockstep.build.passes.apply import Setting, applied
from lockstep.build.passes.asked import asked_for
from lockstep.build.passes.live import Live
from lockstep.capture.capture import capture

LEAST = {"memory": 1}


class Gated(nn.Module):
    """Layers of a gated feed-forward beside a residual: most of what they make, they keep."""

    def __init__(self, layers: int = 6) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norms = nn.ModuleList(nn.LayerNorm(8) for _ in range(layers))
        self.ups = nn.ModuleList(nn.Linear(8, 32) for _ in range(layers))
        self.downs = nn.ModuleList(nn.Linear(32, 8) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for norm, up, down in zip(self.norms, self.ups, self.downs, strict=True):
            x = x + down(F.gelu(up(norm(x))))
        return x


def train(model: nn.Module, x: Tensor) -> Tensor:
    loss = model(x).square().mean()
    loss.backward()
    return loss.detach()


def graph_of(step: Any = train, *inputs: Any) -> Any:
    ls.mesh("cpu", dp=1)
    return capture(step, *(inputs or (Gated(), torch.randn(64, 8))))


def made_of(graph: Any, asked: dict[str, int]) -> tuple[Any, Any]:
    return applied(graph.gm, asked, Setting(graph.fake_mode, {"dp": 1, "world": 1}))


def peak(gm: Any) -> int:
    return max(Live(gm.graph).bytes)


def values_of(gm: Any, graph: Any) -> list[Tensor]:
    torch.manual_seed(1)
    return list(gm(*[torch.randn(fake.shape) for fake in graph.fakes]))


def test_the_bytes_that_a_graph_holds_are_those_from_where_they_are_made_to_their_last_read() -> (
    None
):
    def three(x: Tensor) -> Tensor:
        first = x + 1  # 16 bytes
        second = first.view(2, 2) @ first.view(2, 2)
        return second.exp()

    live = Live(graph_of(three, torch.randn(4)).gm.graph)
    own = [live.bytes[at] for node, at in live.place.items() if node in live.reads]
    assert own == [16, 32, 32, 16]  # sum, product, exponential; the last is handed out


def test_values_are_computed_anew_until_the_budget_is_met() -> None:
    graph = graph_of()
    was = peak(graph.gm)
    some, told = made_of(graph, {"memory": was * 9 // 10})
    least, most = made_of(graph, LEAST)
    assert was * 0.6 < peak(some) <= was * 0.9
    assert peak(least) < was * 0.6
    assert 0 < told["memory"] < most["memory"]
    assert made_of(graph, {"memory": was}) == (graph.gm, {})


def test_results_are_equal_to_the_bit() -> None:
    graph = graph_of()
    made, _ = made_of(graph, LEAST)
    assert all(map(torch.equal, values_of(graph.gm, graph), values_of(made, graph)))


def test_layers_stay_alike() -> None:
    graph = graph_of()
    made, told = made_of(graph, {"memory": peak(graph.gm) * 9 // 10})
    was, now = ([str(n.target) for n in calls(gm.graph)] for gm in (graph.gm, made))
    more = {name: now.count(name) - was.count(name) for name in sorted(set(now))}
    assert {name: count for name, count in more.items() if count} == {"aten.addmm.default": 5}
    assert told == {"memory": 5}  # of 6 layers: the last one's is read at the peak


def drawn(model: nn.Module, x: Tensor) -> Tensor:
    """Nothing that the backward reads is exact but what is drawn, summed, or written."""
    y = F.dropout(model(x), 0.5)
    y.add_(1)
    loss = y.softmax(1).square().sum()
    loss.backward()
    return loss.detach()


def half(model: nn.Module, x: Tensor) -> Tensor:
    loss = x.to(torch.bfloat16).mul(model.weight.to(torch.bfloat16)).exp().sum()  # type: ignore[operator]
    loss.backward()
    return loss.detach()


def test_draws_sums_writes_and_half_precision_are_kept() -> None:
    graph = graph_of(drawn, nn.Linear(8, 8), torch.randn(64, 8))
    made, _ = made_of(graph, LEAST)
    for name in ("bernoulli_", "_softmax", "add_"):
        assert [n for n in map(str, made.graph.nodes) if name in n] == [
            n for n in map(str, graph.gm.graph.nodes) if name in n
        ]
    graph = graph_of(half, nn.Linear(8, 64), torch.randn(64, 8))
    assert made_of(graph, LEAST) == (graph.gm, {})


def test_what_overlooks_a_write_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    def written(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        loss = (model(x * y)).sum()
        y.add_(1)  # what the product was made of
        loss.backward()
        return loss.detach()

    graph = graph_of(written, nn.Linear(8, 8), torch.randn(64, 8), torch.randn(64, 8))
    assert made_of(graph, LEAST) == (graph.gm, {})
    monkeypatch.setattr(memory, "written", lambda node: [])
    assert made_of(graph, LEAST)[1] == {"memory": "left out: it was not proved to keep every bit"}


def test_its_budget_is_asked_for_by_name() -> None:
    assert asked_for({"memory": 1 << 30}, "graph") == {"memory": 1 << 30}
    assert asked_for({"memory": True}, "graph") == LEAST
    assert "memory" not in asked_for(None, "inductor")
