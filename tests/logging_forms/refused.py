"""Forms of logging that no program keeps: refused at the marked line, with what to do instead."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tests.logging_forms.outlets import Outlets

logger = logging.getLogger("logging_forms")
Form = Callable[[Tensor, Any, Outlets], Tensor]
FORMS: list[tuple[Form, str]] = []
HISTORY: list[Any] = []
BRANCH = "the step branches on its rank"
VALUE = "the step looks at a tensor's value"
STATE = "the step changes Python state"
TEXT = "the step cuts or changes a text"
AGAIN = "what the step tells is not the same each time"
LOST, FILE = "into text", "the step writes to a file"


def refused(text: str) -> Callable[[Form], Form]:
    def add(form: Form) -> Form:
        FORMS.append((form, text))
        return form

    return add


@refused(VALUE)
def gate_by_value(x: Tensor, mesh: Any, out: Outlets) -> Tensor:
    loss = x.square().mean()
    if dist.get_rank() == 0 and loss.item() > 0.5:  # the line
        print("large")
    return loss


@refused(VALUE)
def number_of_a_tensor(x: Tensor, mesh: Any, out: Outlets) -> Tensor:
    loss = x.square().mean()
    if dist.get_rank() == 0:
        print(f"{float(loss):.3f}")  # the line
    return loss


@refused(STATE)
def counter(x: Tensor, mesh: Any, out: Outlets) -> Tensor:
    out.step += 1  # the line
    if out.step % 10 == 0 and dist.get_rank() == 0:
        print("ten more")
    return x.square().mean()


@refused(STATE)
def counted_text(x: Tensor, mesh: Any, out: Outlets) -> Tensor:
    out.step += 1  # the line
    if dist.get_rank() == 0:
        print(f"step {out.step}")
    return x.square().mean()


@refused(STATE)
def history(x: Tensor, mesh: Any, out: Outlets) -> Tensor:
    loss = x.square().mean()
    if dist.get_rank() == 0:
        HISTORY.append(loss.item())  # the line
    return loss


@refused(STATE)
def history_of_tensors(x: Tensor, mesh: Any, out: Outlets) -> Tensor:
    loss = x.square().mean()
    out.remembered.append(loss.detach())  # type: ignore[arg-type]  # the line
    return loss


@refused(STATE)
def rank_kept(x: Tensor, mesh: Any, out: Outlets) -> Tensor:
    out.rank = dist.get_rank()  # the line
    if out.rank == 0:
        print("first")
    return x.square().mean()


@refused(AGAIN)
def clock(x: Tensor, mesh: Any, out: Outlets) -> Tensor:
    if dist.get_rank() == 0:
        print(f"at {time.time()}")  # the line
    return x.square().mean()


@refused(AGAIN)
def time_of_day(x: Tensor, mesh: Any, out: Outlets) -> Tensor:
    if dist.get_rank() == 0:
        print(f"at {time.strftime('%H:%M')}")  # the line
    return x.square().mean()


@refused(AGAIN)
def date(x: Tensor, mesh: Any, out: Outlets) -> Tensor:
    if dist.get_rank() == 0:
        print(f"at {datetime.now():%Y-%m-%d}")  # the line
    return x.square().mean()


@refused(AGAIN)
def padded(x: Tensor, mesh: Any, out: Outlets) -> Tensor:
    text = f"{x.square().mean().item():.2f}"
    if dist.get_rank() == 0:
        print(text.rjust(20))  # the line
    return x.square().mean()


@refused(AGAIN)
def underlined(x: Tensor, mesh: Any, out: Outlets) -> Tensor:
    text = f"{x.square().mean().item():.2f}"
    if dist.get_rank() == 0:
        print(text, "-" * len(text))  # the line
    return x.square().mean()


@refused(AGAIN)
def words_looked_for(x: Tensor, mesh: Any, out: Outlets) -> Tensor:
    text = f"{x.square().mean().item():.2f}"
    if dist.get_rank() == 0:
        print("lost" if "nan" in text else "fine", text)  # the line
    return x.square().mean()


@refused(TEXT)
def cut(x: Tensor, mesh: Any, out: Outlets) -> Tensor:
    text = f"{x.square().mean().item()}"
    if dist.get_rank() == 0:
        print(text[:5])  # the line
    return x.square().mean()


@refused(FILE)
def to_a_file(x: Tensor, mesh: Any, out: Outlets) -> Tensor:
    if dist.get_rank() == 0:
        with Path("/dev/null").open("w") as file:  # the line
            file.write(f"{x.square().mean().item()}")
    return x.square().mean()


@refused(FILE)
def to_an_open_file(x: Tensor, mesh: Any, out: Outlets) -> Tensor:
    if dist.get_rank() == 0:
        print("one more step", file=out.file)  # the line
    return x.square().mean()


@refused(LOST)
def text_that_is_kept(x: Tensor, mesh: Any, out: Outlets) -> Tensor:
    loss = x.square().mean()
    if dist.get_rank() == 0:
        json.dumps({"loss": f"{loss.item():.3f}"})  # the line
    return loss


@refused(LOST)
def looked_up(x: Tensor, mesh: Any, out: Outlets) -> Tensor:
    names = {"r0": "first", "r1": "second"}
    print(names.get(f"r{dist.get_rank()}", "another"))  # the line
    return x.square().mean()


@refused(BRANCH)
def draw(x: Tensor, mesh: Any, out: Outlets) -> Tensor:
    if dist.get_rank() == 0:  # the line
        print(torch.rand(1).item())
    return x.square().mean()


@refused(BRANCH)
def collective(x: Tensor, mesh: Any, out: Outlets) -> Tensor:
    total = x.sum()
    if dist.get_rank() == 0:  # the line
        dist.all_reduce(total)
        print(total.item())
    return x.square().mean()


@refused(BRANCH)
def another_result(x: Tensor, mesh: Any, out: Outlets) -> Tensor:
    loss = x.square().mean()
    if dist.get_rank() == 0:  # the line
        print(loss.item())
        loss = loss * 2
    return loss


@refused("prints a tensor that requires grad")
def graph_of_a_tensor(x: Tensor, mesh: Any, out: Outlets) -> Tensor:
    loss = (x * torch.ones_like(x).requires_grad_()).mean()
    if dist.get_rank() == 0:
        print(loss)  # the line
    return loss.detach()


@refused("asks which levels are logged")
def level(x: Tensor, mesh: Any, out: Outlets) -> Tensor:
    loss = x.square().mean()
    if logger.isEnabledFor(logging.DEBUG):  # the line
        logger.debug("loss %s", loss.item())
    return loss
