"""With Lightning Fabric: `torchrun --nproc-per-node 2 examples/with_lightning.py` (no accelerator).

Fabric launches, seeds, logs and saves; the model and the optimizer stay as they are, since what the
step does on all ranks is written in the step. It needs the package lightning.
"""

import tempfile
from pathlib import Path

import torch
from lightning.fabric import Fabric
from torch import Tensor, nn

import lockstep as ls


def main(steps: int = 60) -> None:
    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()  # makes the process group
    mesh = ls.mesh("cpu", dp=-1)

    @ls.compile(mesh=mesh, data="dp")
    def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
        loss = ls.loss((model(x) - x[:, :4].sum(1, keepdim=True)).square().mean(), dp="mean")
        loss.backward()
        ls.reduce_grads(model, dp="mean")  # in place of the wrapper that fabric.setup would make
        optimizer.step()
        optimizer.zero_grad()
        return loss

    fabric.seed_everything(0, verbose=False)  # the same model on every rank
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    fabric.seed_everything(1 + fabric.global_rank, verbose=False)  # and data of its own
    for step in range(steps):
        loss = train_step(model, optimizer, torch.randn(32, 16))
        if step % 20 == 19:
            fabric.print(f"step {step}: loss {loss.item():.2f}")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(fabric.broadcast(folder), "last.ckpt")
        fabric.save(file, {"model": model, "optimizer": optimizer})
        fabric.load(file, {"model": model})
        fabric.barrier()
    ls.summary()


if __name__ == "__main__":
    main()
