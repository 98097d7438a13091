"""Data parallel, the whole of it: a model that all ranks hold alike, and each rank's own data.

Run it with `torchrun --nproc-per-node 2 examples/data_parallel.py`.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn

import lockstep as ls

mesh = ls.mesh(dp=-1)


@ls.compile(mesh=mesh, data="dp")
def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> Tensor:
    loss = ls.loss(nn.functional.mse_loss(model(x), y), dp="mean")
    loss.backward()
    ls.reduce_grads(model, dp="mean")
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return loss


@ls.compile(mesh=mesh, data="dp")
def eval_step(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        error = (model(x) - y).abs().mean()
        dist.all_reduce(error, dist.ReduceOp.AVG if error.is_cuda else dist.ReduceOp.SUM)
    return error if error.is_cuda else error / mesh.size()


def main(steps: int = 100) -> None:
    rank, device = dist.get_rank(), torch.device(mesh.device_type)
    torch.manual_seed(0)  # the same model on every rank
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 1)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)

    torch.manual_seed(1 + rank)  # from here on each rank has its own data
    for _ in range(steps):
        x = torch.randn(32, 16, device=device)
        train_step(model, optimizer, x, x[:, :4].sum(1, keepdim=True))
        schedule.step()  # the rate is read at each call: nothing is built again
    x = torch.randn(256, 16, device=device)
    error = eval_step(model, x, x[:, :4].sum(1, keepdim=True))
    if rank == 0:
        print(f"mean error of all ranks: {error.item():.2f}")
        ls.summary()


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
