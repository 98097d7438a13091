"""Steps whose captured graphs do what they do, or lost something; each function is a script.

torchrun ... -m tests.ranks.eager_check NAME
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import lockstep as ls
from lockstep.build.artifact import read_manifest
from lockstep.capture import collectives, standin
from lockstep.capture.collectives import CollectiveRecorder
from tests.ranks.launch import Here

mesh = ls.mesh("cpu", dp=-1)
calls = [0]


class Net(nn.Module):
    """Two layers, a dropout and a buffer that each forward changes."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 2)
        self.drop, self.norm = nn.Dropout(0.5), nn.BatchNorm1d(8)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.drop(self.norm(self.up(x))))


def seeded() -> Net:
    torch.manual_seed(0)
    return Net()


def batch(me: Here, number: int = 0) -> Tensor:
    draw = torch.Generator().manual_seed(10 * number + me.rank)
    return torch.randn(3, 4, generator=draw)


def compiled(step: Any, **options: Any) -> Any:
    return ls.compile(
        step, **{"mesh": mesh, "backend": "graph", "check": "off", "eager_check": "on", **options}
    )


# ---- nothing is lost -----------------------------------------------------------------------------


def whole(model: Net, optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
    """A reduction, an optimizer, and what is told and called beside."""
    loss = ls.loss(model(x).square().mean(), dp="mean")
    loss.backward()
    ls.reduce_grads(model, dp="mean")
    optimizer.step()
    optimizer.zero_grad()
    ls.log("logged {:.3f}", loss.detach())
    ls.on_rank(0, count, loss.detach())
    print("printed", loss.item())
    return loss


def count(_loss: Tensor) -> None:
    calls[0] += 1


def through_work(model: Net, x: Tensor) -> Tensor:
    """As torch's own collectives write it."""
    loss = model(x).square().mean()
    loss.backward()
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
    gathered = [torch.empty(1) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, loss.detach().reshape(1))
    return torch.cat(gathered)


@torch.no_grad()
def evaluated(model: Net, x: Tensor) -> Tensor:
    return ls.all_reduce(model(x).sum(), "dp", src=ls.P, dst=ls.R)


def trained(me: Here, **options: Any) -> dict[str, Any]:
    model = seeded()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    step = compiled(whole, **options)
    torch.manual_seed(me.rank)
    calls[0] = 0
    losses = [step(model, optimizer, batch(me, i)).item() for i in range(4)]
    values = [value.double().sum().item() for value in model.state_dict().values()]
    drawn = torch.rand(2).tolist()
    return {"losses": losses, "values": values, "drawn": drawn, "calls": calls[0]}


def passes(me: Here) -> None:
    found: dict[str, Any] = {"on": trained(me)}
    found["off"] = trained(me, eager_check="off", store=me.folder / "unchecked")
    model = seeded()
    model.up.weight.requires_grad_(False)
    model.down.weight.grad = torch.ones_like(model.down.weight)
    step = compiled(through_work)
    step(model, batch(me))
    found["frozen"] = model.up.weight.grad is None
    found["evaluated"] = compiled(evaluated)(model.eval(), batch(me)).item()
    manifests = [read_manifest(path) for path in (me.folder / "store").glob("*.lockstep")]
    found["eager"] = {m["step"]: m["eager"] for m in manifests}
    me.result(found)


# ---- something is lost ---------------------------------------------------------------------------


def hidden(me: Here) -> None:
    """Gradients are reduced by hooks below Python's own, which no stand-in has."""
    model = seeded()
    nodes = reducing_below(model)
    assert nodes

    def step(model: Net, x: Tensor) -> Tensor:
        loss = model(x).square().mean()
        loss.backward()
        return loss

    compiled(step)(model, batch(me))


def reducing_below(model: nn.Module) -> list[Any]:
    """All-reduce each gradient by a hook of what accumulates it; what comes keeps the hooks.

    A graph that is kept holds what accumulates, too: it hides the hooks from Python.
    """

    def reduce(_inputs: Any, outputs: Any, parameter: nn.Parameter) -> None:
        dist.all_reduce(parameter.grad)

    views = [parameter.view_as(parameter) for parameter in model.parameters()]
    nodes = [view.grad_fn.next_functions[0][0] for view in views]
    for node, parameter in zip(nodes, model.parameters(), strict=True):
        node.register_hook(functools.partial(reduce, parameter=parameter))
    return [*nodes, *views]


def collective(me: Here) -> None:
    """The capture loses what torch's own all-reduces do."""
    mapped = CollectiveRecorder._mapped

    def losing(self: Any, original: Any, args: Any, kwargs: Any) -> Any:
        if original.__name__ == "all_reduce":
            return None
        return mapped(self, original, args, kwargs)

    CollectiveRecorder._mapped = losing  # type: ignore[method-assign]
    compiled(through_work)(seeded(), batch(me))


def averaged(model: Net, x: Tensor) -> Tensor:
    loss = model(x).square().mean()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, dist.ReduceOp.AVG)
    return loss


def reduction(me: Here) -> None:
    """The capture takes a largest value for an average, of ranks that have the same rows."""
    collectives._op = lambda arguments: "max"  # type: ignore[assignment]
    compiled(averaged)(seeded().eval(), torch.ones(3, 4))


def hook(me: Here) -> None:
    """The capture loses the hooks of parameters."""
    standin.dress = lambda fake, real: setattr(fake, "grad", None)
    model = seeded()
    model.down.weight.register_hook(lambda grad: grad * 2)
    compiled(through_work)(model, batch(me))


def raises(me: Here) -> None:
    """The step fails on one rank, on values that no capture has seen."""

    def step(model: Net, x: Tensor) -> Tensor:
        loss = ls.loss(model(x).square().mean(), dp="mean")
        bad(x)
        loss.backward()
        ls.reduce_grads(model, dp="mean")
        return loss

    compiled(step)(seeded(), batch(me))


@torch.library.custom_op("lockstep_tests::bad", mutates_args=())
def bad(x: Tensor) -> Tensor:
    if dist.get_rank() == 1:
        raise ValueError("a batch that the user's operator refuses")
    return x.clone()


@bad.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


if __name__ == "__main__":
    globals()[sys.argv[1]](Here())
