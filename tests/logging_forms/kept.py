"""Rank-only logging as people write it, which a compiled step keeps: each form is one step.

A form gets this step's batch, the mesh and what it may write to, and gives the loss.
"""

from __future__ import annotations

import logging
import math
import pprint
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import lockstep as ls
from tests.logging_forms.outlets import Outlets, note, zero_only

logger = logging.getLogger("logging_forms")
adapter = logging.LoggerAdapter(logger, {"run": 7})
Form = Callable[[Tensor, Any, Outlets], Tensor]
FORMS: list[Form] = []
OURS: list[Form] = []


def kept(form: Form) -> Form:
    FORMS.append(form)
    return form


def ours(form: Form) -> Form:
    OURS.append(form)
    return form


@ours
def ls_log(x: Tensor, mesh: Any, out: Outlets) -> Tensor:
    loss = x.square().mean()
    ls.log("loss {:.3f} of {}", loss, x.shape[0], rank=0)
    return loss


@ours
def ls_log_in_order(x: Tensor, mesh: Any, out: Outlets) -> Tensor:
    loss = x.square().mean()
    ls.log("before {:.3f}", loss, rank=1)
    loss.mul_(2)
    ls.log("after {:.3f}, {:.2e}", loss, loss.item(), rank=1)
    return loss


@ours
def ls_log_at_a_place(x: Tensor, mesh: Any, out: Outlets) -> Tensor:
    loss = x.square().mean()
    ls.log("rank {} of tp: {}", mesh.get_local_rank("tp"), loss, dp=0)
    return loss


@ours
def ls_on_rank(x: Tensor, mesh: Any, out: Outlets) -> Tensor:
    loss = x.square().mean()
    ls.on_rank(1, note, loss, "mean", 2)
    return loss


@ours
def ls_on_rank_method(x: Tensor, mesh: Any, out: Outlets) -> Tensor:
    loss = x.square().mean()
    ls.on_rank(0, out.remember, loss, x)
    return loss


@kept
def f_string(x: Tensor, mesh: Any, out: Outlets) -> Tensor:
    loss = x.square().mean()
    if dist.get_rank() == 0:
        print(f"loss {loss.item():.3f}, or {loss.item()!r}")
    return loss


@kept
def str_format(x: Tensor, mesh: Any, out: Outlets) -> Tensor:
    loss = x.square().mean()
    if dist.get_rank() == 0:
        print("loss {:>12.5f} {}".format(loss.item(), x.shape))  # noqa: UP032
    return loss


@kept
def joined(x: Tensor, mesh: Any, out: Outlets) -> Tensor:
    loss = x.square().mean()
    if dist.get_rank() == 0:
        print(" ".join(["loss", str(loss.item()), "end"]))
    return loss


@kept
def arguments_of_print(x: Tensor, mesh: Any, out: Outlets) -> Tensor:
    loss = x.square().mean()
    if dist.get_rank() == 0:
        print("loss", loss.item(), x.dtype, sep=" = ", end=";\n", flush=True)
    return loss


@kept
def format_of_a_tensor(x: Tensor, mesh: Any, out: Outlets) -> Tensor:
    loss = x.square().mean()
    if dist.get_rank() == 0:
        print(f"{loss:.4f} and {loss}")
    return loss


@kept
def whole_tensor(x: Tensor, mesh: Any, out: Outlets) -> Tensor:
    if dist.get_rank() == 0:
        print("batch", x, x[0] * 2)
    return x.square().mean()


@kept
def to_stderr(x: Tensor, mesh: Any, out: Outlets) -> Tensor:
    loss = x.square().mean()
    if dist.get_rank() == 0:
        print("loss", loss.item(), file=sys.stderr)
    return loss


@kept
def write_to_stdout(x: Tensor, mesh: Any, out: Outlets) -> Tensor:
    loss = x.square().mean()
    if dist.get_rank() == 0:
        sys.stdout.write(f"loss {loss.item():.3f}\n")
    return loss


@kept
def logger_arguments(x: Tensor, mesh: Any, out: Outlets) -> Tensor:
    loss = x.square().mean()
    if dist.get_rank() == 0:
        logger.info("loss %.3f of %d rows", loss.item(), x.shape[0])
    return loss


@kept
def logger_f_string(x: Tensor, mesh: Any, out: Outlets) -> Tensor:
    loss = x.square().mean()
    if dist.get_rank() == 0:
        logger.warning(f"loss {loss.item():.3f}")
        logger.debug(f"dropped by its level: {loss.item():.3f}")
    return loss


@kept
def logger_by_level(x: Tensor, mesh: Any, out: Outlets) -> Tensor:
    """No branch: the logger of rank 0 alone lets it through."""
    loss = x.square().mean()
    out.logger.info("loss %s", loss.item())
    return loss


@kept
def logger_adapter(x: Tensor, mesh: Any, out: Outlets) -> Tensor:
    loss = x.square().mean()
    if dist.get_rank() == 0:
        adapter.error("loss %.2f", loss.item())
    return loss


@kept
def through_a_variable(x: Tensor, mesh: Any, out: Outlets) -> Tensor:
    rank = dist.get_rank()
    is_main = rank == 0
    loss = x.square().mean()
    if is_main:
        print(f"loss {loss.item():.3f}")
    return loss


@kept
def not_rank(x: Tensor, mesh: Any, out: Outlets) -> Tensor:
    loss = x.square().mean()
    if not dist.get_rank():
        print(f"loss {loss.item():.3f}")
    return loss


@kept
def several_ranks(x: Tensor, mesh: Any, out: Outlets) -> Tensor:
    loss, rank = x.square().mean(), dist.get_rank()
    if rank == 0:
        print(f"first {loss.item():.3f}")
    elif rank == 1:
        print(f"second {loss.item():.3f}")
    else:
        print("another")
    return loss


@kept
def one_of_ranks(x: Tensor, mesh: Any, out: Outlets) -> Tensor:
    loss = x.square().mean()
    if dist.get_rank() in (0, 1):
        print(f"loss {loss.item():.3f}")
    return loss


@kept
def last_rank(x: Tensor, mesh: Any, out: Outlets) -> Tensor:
    loss = x.square().mean()
    if dist.get_rank() == dist.get_world_size() - 1:
        print(f"loss {loss.item():.3f}")
    return loss


@kept
def by_axes(x: Tensor, mesh: Any, out: Outlets) -> Tensor:
    loss = x.square().mean()
    if mesh.get_local_rank("tp") == 0 and mesh.get_local_rank("dp") == 0:
        print(f"loss {loss.item():.3f}")
    return loss


@kept
def every_rank(x: Tensor, mesh: Any, out: Outlets) -> Tensor:
    loss = x.square().mean()
    print(f"[{dist.get_rank():02d}/{dist.get_world_size()}] loss {loss.item():.3f}")
    return loss


@kept
def more_than_the_step_needs(x: Tensor, mesh: Any, out: Outlets) -> Tensor:
    if dist.get_rank() == 1:
        largest = x.abs().amax()
        print(f"norm {x.norm().item():.4f}, largest {largest.item():.4f}")
    return x.square().mean()


@kept
def a_list(x: Tensor, mesh: Any, out: Outlets) -> Tensor:
    if dist.get_rank() == 0:
        print("rows", x.sum(1).tolist(), [round(v, 2) for v in x[0].tolist()])
    return x.square().mean()


@kept
def before_and_after_a_write(x: Tensor, mesh: Any, out: Outlets) -> Tensor:
    total = x.sum(0)
    if dist.get_rank() == 0:
        print(f"before {total[0].item():.3f}", total)
    total.add_(1)
    if dist.get_rank() == 0:
        print(f"after {total[0].item():.3f}", total)
    return total.square().mean()


@kept
def reduced_first(x: Tensor, mesh: Any, out: Outlets) -> Tensor:
    loss = x.square().mean()
    shown = loss.clone()
    dist.all_reduce(shown, group=mesh.get_group("dp"))
    if dist.get_rank() == 0:
        print(f"loss over dp {shown.item() / mesh.size(0):.4f}")
    return loss


@kept
def scalars(x: Tensor, mesh: Any, out: Outlets) -> Tensor:
    loss = x.square().mean()
    if dist.get_rank() == 0:
        out.writer.add_scalar("loss", loss.item(), 3)
        out.writer.add_scalar("largest", x.amax(), global_step=3)
    return loss


@kept
def progress_bar(x: Tensor, mesh: Any, out: Outlets) -> Tensor:
    loss = x.square().mean()
    if dist.get_rank() == 0:
        out.bar.set_postfix(loss=f"{loss.item():.3f}", largest=x.amax().item())
        out.bar.update(1)
    return loss


@kept
def made_by_python(x: Tensor, mesh: Any, out: Outlets) -> Tensor:
    loss = x.square().mean()
    if dist.get_rank() == 0:
        value = loss.item()
        print(f"perplexity {math.exp(value):.3f}", round(value, 2), round(value * 100) / 100 + 1)
    return loss


@kept
def through_a_helper(x: Tensor, mesh: Any, out: Outlets) -> Tensor:
    loss = x.square().mean()
    tell(loss, "loss")
    return loss


@zero_only
def tell(value: Tensor, name: str) -> None:
    print(f"{name}: {value.item():.3f}")


@kept
def by_a_flag(x: Tensor, mesh: Any, out: Outlets) -> Tensor:
    """The caller's own gate: it holds at every second step."""
    loss = x.square().mean()
    if out.verbose and dist.get_rank() == 0:
        print(f"loss {loss.item():.3f}")
    return loss


@kept
def pretty(x: Tensor, mesh: Any, out: Outlets) -> Tensor:
    loss = x.square().mean()
    if dist.get_rank() == 0:
        pprint.pprint({"loss": loss.item(), "rows": x.shape[0]})
    return loss


@kept
def arithmetic(x: Tensor, mesh: Any, out: Outlets) -> Tensor:
    loss = x.square().mean()
    if dist.get_rank() == 0:
        value = loss.item()
        print(value / 3 + 1, -value, value**2, abs(value - 5), value // 0.1, value * 2 % 3)
    return loss


@kept
def a_loop(x: Tensor, mesh: Any, out: Outlets) -> Tensor:
    found = {"mean": x.mean(), "largest": x.amax(), "rows": x.argmax()}
    for name, value in found.items():
        if dist.get_rank() == 0:
            print(f"{name:<8} {value.item()}")
    return x.square().mean()


@kept
def by_percent(x: Tensor, mesh: Any, out: Outlets) -> Tensor:
    loss = x.square().mean()
    if dist.get_rank() == 0:
        print("loss %s of %s" % (loss.item(), x.shape[0]))  # noqa: UP031
    return loss


@kept
def of_a_loss_with_gradients(x: Tensor, mesh: Any, out: Outlets) -> Tensor:
    weight = torch.ones_like(x).requires_grad_()
    loss = (x * weight).square().mean()
    loss.backward()
    if dist.get_rank() == 0:
        print(f"{loss:.3f}", weight.grad.norm().item())  # type: ignore[union-attr]
    return loss.detach()


@kept
def rank_of_the_constructor(x: Tensor, mesh: Any, out: Outlets) -> Tensor:
    loss = x.square().mean()
    if out.rank == 0:
        print(f"loss {loss.item():.3f}")
    return loss


@kept
def rank_of_the_constructor_in_text(x: Tensor, mesh: Any, out: Outlets) -> Tensor:
    loss = x.square().mean()
    print(f"[{out.rank}] loss {loss.item():.3f}")
    return loss


@kept
def by_percent_of_numbers(x: Tensor, mesh: Any, out: Outlets) -> Tensor:
    loss = x.square().mean()
    if dist.get_rank() == 0:
        print("loss %8.3f, %d %% of %s rows, %.1e" % (loss.item(), 100, 2, x.amax().item()))  # noqa: UP031
        print("%g" % loss.item(), "%+.2f" % round(loss.item(), 3), "%d" % x.argmax().item())  # noqa: UP031
    return loss
