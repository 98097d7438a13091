"""Capture a training step on an accelerator of Python alone, at two indices; print both, as JSON.

torch lets Python stand for a kind of device, for a process and for good. Unlike CUDA without a
driver it has what a backward asks of a device, so that the optimizer comes into the graph too.
"""

from __future__ import annotations

import json
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from lockstep import _compat
from lockstep.build.backends import lower
from lockstep.capture.capture import capture

KIND = "pretended"


def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> torch.Tensor:
    scale = torch.full((), 0.5, device=x.device)
    loss = F.cross_entropy(model(x).flatten(0, 1), x.flatten()) * scale
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return loss


def captured(index: int) -> dict[str, Any]:
    """The program's text, contract and lines for a rank whose accelerator has this index."""
    here = torch.device(KIND, index)
    _compat.current_accelerator = lambda: here
    with _compat.fake_mode():
        layers = nn.Embedding(8, 4, device=here), nn.Linear(4, 8, device=here), nn.Dropout(0.1)
        model, x = nn.Sequential(*layers), torch.zeros(2, 3, dtype=torch.long, device=here)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, foreach=False)
    graph = capture(step, model, optimizer, x)
    text = lower(graph, "graph").text
    return {"text": text, "contract": graph.contract(), "lines": graph.source_map()}


if __name__ == "__main__":
    _setup_privateuseone_for_python_backend(KIND)
    print(json.dumps([captured(0), captured(1)]))
