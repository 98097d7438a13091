"""A forgotten all-reduce in the backward: LOCKSTEP=off trains on, wrongly; else it is refused."""

import torch
from torch import nn

import lockstep as ls

mesh = ls.mesh(tp=-1)
torch.manual_seed(0)
x, y = (ls.typed(torch.randn(64, 8), tp=ls.I) for _ in "xy")
embed = nn.Linear(8, 16, bias=False)
torch.manual_seed(1 + mesh.get_local_rank())  # of the two others each rank has its own shard
model = nn.ModuleList([embed, nn.Linear(16, 16, bias=False), nn.Linear(16, 8, bias=False)])
ls.type_parameters(model, {"0.*": {"tp": ls.I}, "1.*": {"tp": ls.S(0)}, "2.*": {"tp": ls.S(1)}})


@ls.compile(mesh=mesh, backend="graph")
def step(model: nn.ModuleList, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    h = model[0](x)
    h = torch.relu(model[1](h))  # forgotten before: h = ls.convert(h, "tp", src=ls.I, dst=ls.R)
    loss = (ls.all_reduce(model[2](h), "tp", src=ls.P, dst=ls.I) - y).square().mean()
    loss.backward()
    return loss


optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
for _ in range(50):
    losses.append(step(model, x, y).item())
    optimizer.step()
    optimizer.zero_grad()
print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}, embed {embed.weight.double().norm().item():.6f}")
