"""Updates by hand of weights that every rank holds."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

import lockstep as ls
from tests.fault_cases.averaging import Regression, rows_of
from tests.fault_cases.regions import gathered, scattered
from tests.fault_cases.training import Program


def spread_update(wrong: bool) -> Program:
    """Each rank updates the rows whose gradient it summed, and the others get them from it."""

    def step(model: Any, x: torch.Tensor, wanted: torch.Tensor, counts: torch.Tensor) -> Any:
        loss = ls.loss(((model(x) - wanted) ** 2).sum(), dp="sum")
        loss.backward()
        with torch.no_grad():
            for weight in model.parameters():
                part = scattered(weight.grad, model.group)
                rank = dist.get_rank(model.group)
                place = model.ranks - 1 - rank if wrong else rank
                rows = weight.chunk(model.ranks)[place] - 0.1 * part
                weight.copy_(gathered(rows, model.group))
                weight.grad = None
        return loss.detach()

    return Program(step, lambda mesh: (Regression(mesh), *rows_of(mesh)), {"dp": 2}, ("dp",))


def updated_by_hand(wrong: bool) -> Program:
    """A step that updates its weights itself, and leaves no gradient."""

    def step(model: Any, x: torch.Tensor, wanted: torch.Tensor, counts: torch.Tensor) -> Any:
        loss = ls.loss(((model(x) - wanted) ** 2).mean(), dp="mean")
        loss.backward()
        with torch.no_grad():
            for weight in model.parameters():
                if not wrong:
                    dist.all_reduce(weight.grad, group=model.group)
                    weight.grad /= model.ranks
                weight -= 0.1 * weight.grad
                weight.grad = None
        return loss.detach()

    return Program(step, lambda mesh: (Regression(mesh), *rows_of(mesh)), {"dp": 2}, ("dp",))
