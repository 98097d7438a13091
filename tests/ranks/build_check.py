"""Steps that a check at their build lets pass or refuses; each function is a script of its own.

torchrun ... -m tests.ranks.build_check NAME
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import lockstep as ls
from lockstep.run import replicas
from tests.ranks.launch import Here

mesh = ls.mesh(dp=-1)


class Net(nn.Module):
    """A small network."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


def seeded(seed: int = 0) -> Net:
    torch.manual_seed(seed)
    return Net()


def right(model: Net, x: Tensor) -> Tensor:
    loss = ls.loss(model(x).square().mean(), dp="mean")
    loss.backward()
    ls.reduce_grads(model, dp="mean")
    return loss


def forgotten(model: Net, x: Tensor) -> Tensor:
    loss = ls.loss(model(x).square().mean(), dp="mean")
    loss.backward()
    return loss


def half(model: Net, x: Tensor) -> Tensor:
    """Reduced once and once again: what types alone are not sure of."""
    loss = ls.loss(model(x).square().mean(), dp="mean")
    loss.backward()
    ls.reduce_grads(model, dp="sum")
    return loss


def compiled(step: Any, **options: Any) -> Any:
    return ls.compile(step, mesh=mesh, data="dp", backend="graph", **options)


def batch(me: Here) -> Tensor:
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(me.rank))


def of_checker() -> list[str]:
    return [name for name in sys.modules if name.startswith("lockstep.checker")]


# ---- refused, on every rank ----------------------------------------------------------------------


def refused(me: Here) -> None:
    compiled(forgotten)(seeded(), batch(me))


def refused_full(me: Here) -> None:
    compiled(half, check="full")(seeded(), batch(me))


def declared_apart(me: Here) -> None:
    """The parameters are said to be the same on every rank, and each rank seeds its own."""
    model = seeded(me.rank)
    ls.type_parameters(model, {"up.*": {"dp": ls.R}})
    compiled(right)(model, batch(me))


# ---- let pass ------------------------------------------------------------------------------------


def passes(me: Here) -> None:
    """Built or loaded; then what the later calls do, and what was imported."""
    hashed: list[int] = []
    original = replicas.digests_of

    def counted(tensors: dict[str, Tensor]) -> dict[str, str]:
        hashed.append(len(tensors))
        return original(tensors)

    replicas.digests_of = counted
    step, model, x = compiled(right), seeded(), batch(me)
    losses = []
    for _ in range(20):
        losses.append(step(model, x).item())
        model.zero_grad()
    step(model.eval(), x)  # another variant, of the same parameters
    me.result({"losses": losses, "checker": of_checker(), "hashed": hashed})


def others(me: Here) -> None:
    """What is admitted: a named later reduction, no check, a full one, unsure types."""
    x = batch(me)
    found: dict[str, Any] = {}
    found["pending"] = compiled(forgotten, pending={"dp": "ddp mean"})(seeded(), x).item()
    found["off"] = compiled(forgotten, check="off")(seeded(), x).item()
    found["full"] = compiled(right, check="full")(seeded(), x).item()
    found["unsure"] = compiled(half)(seeded(), x).item()
    alone = compiled(forgotten)(seeded(me.rank), x)  # another model on each rank: no copies
    found["own models"] = alone.item()
    me.result(found)


def copies_now(me: Here) -> None:
    """What passed with a model of its own on each rank does not with copies."""
    me.result(compiled(forgotten)(seeded(me.rank), batch(me)).item())
    compiled(forgotten)(seeded(), batch(me))


def stronger(me: Here) -> None:
    """An artifact that was checked less than is asked for is built again, once."""
    x = batch(me)
    found = {}
    for check in ("off", "types", "full", "types"):
        found[check] = compiled(right, check=check)(seeded(), x).item()
    me.result(found)


def seed(me: Here) -> None:
    """A forgotten seed, taken for granted: a warning, and the job goes on."""
    compiled(right)(seeded(me.rank), batch(me))
    me.result("went on")


def one_odd(me: Here) -> None:
    """One parameter of one rank differs."""
    model = seeded()
    if me.rank == 1:
        model.down.bias.data += 1.0
    compiled(right)(model, batch(me))
    me.result("went on")


def words(me: Here) -> None:
    """Options that cannot be meant."""
    found = []
    for options in (
        {"check": "all"},
        {"pending": {"tp": "mean"}},
        {"pending": {"dp": "later"}},
        {"pending": "dp"},
    ):
        try:
            compiled(right, **options)
        except ls.LockstepError as error:
            found.append(str(error))
    me.result(found)


if __name__ == "__main__":
    globals()[sys.argv[1]](Here())
    dist.destroy_process_group()
