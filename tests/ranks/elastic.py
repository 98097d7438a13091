"""A job that is started with other numbers of ranks, or again: ... -m tests.ranks.elastic HOW"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import torch

import lockstep as ls
from tests.ranks.launch import Here

me = Here()
restart = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
mesh = ls.mesh("cpu", dp=-1)


@ls.compile(mesh=mesh, data="dp", backend="graph")
def train_step(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    loss = ls.loss(model(x).square().mean(), dp="mean")
    loss.backward()
    ls.reduce_grads(model, dp="mean")
    return loss


def stop_in_the_build() -> None:
    """Let this rank be stopped once it lowers the graph, as by a machine that freezes."""
    from lockstep.run import admit

    def lower(*_: Any) -> Any:
        me.strike()
        os.kill(os.getpid(), signal.SIGSTOP)

    admit.lower = lower


def main(how: str) -> None:
    """Train two steps."""
    if how == "takeover" and restart == 0 and me.rank == 0:
        stop_in_the_build()
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4)
    torch.manual_seed(1 + me.rank)
    losses = []
    try:
        for _ in range(2):
            model.zero_grad()
            losses.append(train_step(model, torch.randn(8, 4)).item())
    except ls.LockstepError:
        if how == "takeover":  # torchrun takes 30 s to end what is stopped
            os.kill(int((me.folder / "pid0").read_text()), signal.SIGKILL)
        raise
    me.result({"restart": restart, "world": mesh.size(), "losses": losses})


if __name__ == "__main__":
    main(sys.argv[1])
