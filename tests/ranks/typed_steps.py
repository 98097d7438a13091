"""Every row of the table on real ranks: eager and captured, over axes of 2 and of 4 ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

import lockstep as ls
from lockstep import I, P, R, S, V
from lockstep.capture.capture import capture
from tests.ranks.launch import Here
from tests.typed_cases import ROWS, UNEVEN, Case

here = Here()
mesh = ls.mesh("cpu", dp=2, tp=2)
places = {"tp": (here.rank % 2, 2), "world": (here.rank, 4)}
Step = Callable[..., Any]


def same_everywhere(text: str) -> bool:
    texts: list[Any] = [None] * 4
    dist.all_gather_object(texts, text)
    return len(set(texts)) == 1


def eager(case: Case, axis: str) -> dict[str, Any]:
    """One row against the algebra; every rank draws all ranks' inputs alike."""
    rank, ranks = places[axis]
    xs = case.inputs(ranks)
    wanted = case.world(xs)
    gs = case.cotangents(wanted)
    x = xs[rank].clone().requires_grad_()
    y = case.call(x, axis, rank, ranks)
    (grad,) = torch.autograd.grad(y, x, gs[rank])
    grads: list[Any] = [None] * ranks
    dist.all_gather_object(grads, grad, group=mesh.get_group("tp") if ranks == 2 else None)
    return {
        "forward": torch.equal(y, wanted[rank]),
        "backward": case.holds(grads, case.gold(xs, gs)),
    }


def captured(step: Step, *args: torch.Tensor) -> dict[str, Any]:
    """One step, its program against eager bit by bit, and what its graph holds."""
    plain = step(*args)
    program = ls.compile(mesh=mesh, backend="graph")(step)(*args)
    graph = capture(step, *args)
    nodes = [str(node.target) for node in graph.gm.graph.nodes]
    return {
        "equal": all(map(torch.equal, plain, program)),
        "same": same_everywhere(graph.gm.code),
        "axes": sorted({c["axis"] for c in graph.schedule}),
        "lines": sorted({c["line"].rpartition(":")[0] for c in graph.schedule}),
        "own": sorted({n.split(".")[1] for n in nodes if n.startswith("lockstep.")}),
        "text": graph.gm.code,
    }


def step_of(case: Case, axis: str) -> tuple[Step, list[torch.Tensor]]:
    rank, ranks = places[axis]
    xs = case.inputs(ranks)
    gs = case.cotangents(case.world(xs))

    def step(x: torch.Tensor, g: torch.Tensor) -> Any:
        w = x.detach().requires_grad_()
        y = case.call(w, axis, -1, ranks)  # these rows ask nothing of the rank
        return y.detach(), torch.autograd.grad(y, w, g)[0]

    step.__name__ = step.__qualname__ = f"{case.name}-{axis}"
    return step, [torch.randn_like(xs[rank]), torch.randn_like(gs[rank])]


def gradient(y: torch.Tensor, v: torch.Tensor) -> Any:
    return y.detach(), torch.autograd.grad((y * y).sum(), v)[0]


def uneven_slices(x: torch.Tensor) -> Any:
    """7 rows on 2 ranks: 4 and 3, of unknown size in the graph."""
    v = x.detach().requires_grad_()
    own = ls.convert(v, "tp", src=R, dst=S(0)).sin()
    return gradient(ls.all_gather(own, "tp", src=S(0), dst=R, sizes=7), v)


def uneven_shards(x: torch.Tensor) -> Any:
    """By columns, then by rows, on 4 ranks: 5 columns are 2, 1, 1, 1; 7 rows are 2, 2, 2, 1."""
    v = x.detach().requires_grad_()
    columns = ls.reduce_scatter(v, "world", src=P, dst=S(1)).sin()
    rows = ls.all_to_all(columns, "world", src=S(1), dst=S(0), src_sizes=5)
    return gradient(ls.convert(rows, "world", src=S(0), dst=P, sizes=7), v)


def splits_from_data(x: torch.Tensor, sent: torch.Tensor, received: torch.Tensor) -> Any:
    """How many rows go where is a tensor's content, as in a mixture of experts."""
    v = x.detach().requires_grad_()
    splits = {"input_splits": sent.tolist(), "output_splits": received.tolist()}
    return gradient(ls.all_to_all(v, "tp", src=V, dst=V, **splits), v)


def started_first(x: torch.Tensor) -> Any:
    """Two collectives under way while something else is computed."""
    v = x.detach().requires_grad_()
    summed = ls.all_reduce(v, "tp", src=P, dst=R, async_op=True)
    gathered = ls.all_gather(v, "dp", src=S(0), dst=I, async_op=True)
    other = v.cos()
    return gradient(summed.wait() * other + gathered.wait()[: len(x)], v)


def claimed(x: torch.Tensor) -> Any:
    v = ls.typed(x.detach().requires_grad_(), tp=I, dp=R)
    h = ls.typed(ls.convert(v, "tp", src=I, dst=R), tp=R)
    return gradient(ls.typed(h.exp(), tp=R), v)


def unclaimed(x: torch.Tensor) -> Any:
    v = x.detach().requires_grad_()
    h = ls.convert(v, "tp", src=I, dst=R)
    return gradient(h.exp(), v)


results: dict[str, Any] = {"eager": {}, "captured": {}}
for axis in places:
    for case in ROWS + UNEVEN:
        results["eager"][f"{case.name}-{axis}"] = eager(case, axis)
for i, case in enumerate(ROWS):
    axis = list(places)[i % 2]
    step, args = step_of(case, axis)
    results["captured"][f"{case.name}-{axis}"] = captured(step, *args)
torch.manual_seed(0)
whole = torch.randn(7, 5)
here_tp = places["tp"][0]
splits = [torch.tensor(([2, 5], [3, 4])[here_tp]), torch.tensor(([2, 3], [5, 4])[here_tp])]
for step in (uneven_slices, uneven_shards, started_first, claimed, unclaimed):
    results["captured"][step.__name__] = captured(step, whole)
results["captured"]["splits_from_data"] = captured(splits_from_data, whole, *splits)
here.result(results)
dist.destroy_process_group()
