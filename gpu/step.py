"""One process on one device: four calls of a training step; what came of them, as JSON.

    LOCAL_RANK=0 LOCKSTEP_STORE=FOLDER python gpu/step.py graph|inductor

The device is the accelerator of LOCAL_RANK, else the CPU. LOCKSTEP=off runs the step eagerly.
"""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import lockstep as ls
from lockstep.journal import read_journals
from lockstep.run.session import session

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.counters import counting

CALLS = 4


class Net(nn.Module):
    """Embedding, normalisation, dropout, two matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(64, 32)
        self.norm = nn.LayerNorm(32)
        self.up, self.down = nn.Linear(32, 128), nn.Linear(128, 64, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = F.gelu(self.up(self.norm(self.embedding(tokens))))
        ahead = torch.arange(tokens.shape[1], device=tokens.device).float() / 100
        return self.down(F.dropout(hidden + ahead[:, None], 0.1))


def main(backend: str) -> None:
    torch.set_deterministic_debug_mode("warn")
    mesh = ls.mesh(dp=-1)
    kind = mesh.device_type

    @ls.compile(mesh=mesh, data="dp", backend=backend, check="off")
    def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> Tensor:
        scale = torch.tensor(0.5, device=kind)
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten()) * scale
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    torch.manual_seed(0)
    model = Net().to(kind)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    losses = []
    with counting() as counts:
        for i in range(CALLS):
            tokens = torch.randint(64, (4, 17), generator=torch.Generator().manual_seed(i)).to(kind)
            torch.manual_seed(100 + i)
            losses.append(step(model, optimizer, tokens[:, :-1], tokens[:, 1:]).item().hex())
    state = hashlib.sha256()
    for parameter in model.parameters():
        state.update(parameter.detach().cpu().numpy().tobytes())
    found = {"losses": losses, "state": state.hexdigest(), "counts": asdict(counts)}
    print(json.dumps(found | told()))


def told() -> dict[str, list[str]]:
    """What the journal says of each variant: its role, and its artifact."""
    ready = [e for e in read_journals(session().folder) if e["event"] == "ready"]
    return {"roles": [e["role"] for e in ready], "digests": [e["digest"] for e in ready]}


if __name__ == "__main__":
    main(sys.argv[1])
