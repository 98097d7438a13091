"""A small job on the product's own path: torchrun ... -m tests.chaos.rank"""

from __future__ import annotations

import time

import torch

import lockstep as ls
from tests.chaos.cells import SLOW
from tests.chaos.strikes import Strikes

strikes = Strikes.here()
mesh = ls.mesh("cpu", dp=-1)


@ls.compile(mesh=mesh, data="dp", backend="graph", check="off")
def train_step(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Reduces its gradients, so that every rank waits for all others."""
    loss = ls.loss(model(x).square().mean(), dp="mean")
    loss.backward()
    ls.reduce_grads(model, dp="mean")
    return loss


def main() -> None:
    """Train three steps."""
    strikes.install()
    strikes.let_other_begin()
    special = strikes.cell.special
    if special == "slow rank" and strikes.is_struck:
        strikes.note()
        time.sleep(SLOW)
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4)
    torch.manual_seed(1 + strikes.process)
    try:
        for _ in range(3):
            model.zero_grad()
            train_step(model, torch.randn(8, 4))
    except ValueError:
        if special != "caught and slept":
            raise
        time.sleep(600)
    strikes.result("trained")


if __name__ == "__main__":
    main()
