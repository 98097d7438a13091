"""A forgotten all-reduce of gradients: LOCKSTEP=off trains on, wrongly; else it is refused."""

import torch
from torch import nn

import lockstep as ls

mesh = ls.mesh(dp=-1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 1))
ls.type_parameters(model, {"*": {"dp": ls.R}})  # the same on every rank
torch.manual_seed(1 + mesh.get_local_rank())  # each rank has data of its own
x = torch.randn(64, 8)


@ls.compile(mesh=mesh, data="dp", backend="graph")
def step(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    loss = ls.loss((model(x) - x.sum(1, keepdim=True)).square().mean(), dp="mean")
    loss.backward()  # forgotten after it: ls.reduce_grads(model, dp="mean")
    return loss


optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.02), []
for _ in range(50):
    losses.append(step(model, x).item())
    optimizer.step()
    optimizer.zero_grad()
norm = model[0].weight.detach().double().norm().item()
print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}, norm of the first weight {norm:.6f}")
