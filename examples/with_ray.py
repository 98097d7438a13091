"""Under Ray Train: `python examples/with_ray.py` (needs `ray[train]`; no accelerator).

Ray starts the workers and their process group; the step in them is any other. One worker builds it,
the other one loads it.
"""

import ray.train
import torch
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer
from torch import Tensor, nn

import lockstep as ls


def work(config: dict[str, int]) -> None:
    """What each worker runs."""
    mesh = ls.mesh("cpu", dp=-1)

    @ls.compile(mesh=mesh, data="dp")
    def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
        loss = ls.loss((model(x) - x[:, :4].sum(1, keepdim=True)).square().mean(), dp="mean")
        loss.backward()
        ls.reduce_grads(model, dp="mean")
        optimizer.step()
        optimizer.zero_grad()
        return loss

    torch.manual_seed(0)  # the same model on every worker
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(1 + mesh.get_local_rank())  # and data of its own
    for _ in range(config["steps"]):
        loss = train_step(model, optimizer, torch.randn(32, 16))
    ls.summary()
    if mesh.get_local_rank() == 0:
        print(f"the last loss: {loss.item():.2f}", flush=True)
    ray.train.report({"loss": loss.item()})


def main() -> None:
    two = ScalingConfig(num_workers=2)
    TorchTrainer(work, train_loop_config={"steps": 60}, scaling_config=two).fit()


if __name__ == "__main__":
    main()
