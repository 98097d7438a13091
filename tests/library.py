"""A stand-in for a library of tensor-parallel layers: own groups, buffers, Functions, marks."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

WIDE, FFN, TOKENS = 4, 8, 4
custom_fwd = partial(torch.amp.custom_fwd, device_type="cuda")
custom_bwd = partial(torch.amp.custom_bwd, device_type="cuda")


class Scratch:
    """Keeps one buffer for all layers."""

    def __init__(self) -> None:
        self.held: dict[str, Tensor] = {}


SCRATCH = [Scratch()]


class Gathered(torch.autograd.Function):
    """A linear layer of gathered tokens: into one buffer for all layers, anew in the backward."""

    @staticmethod
    @custom_fwd
    def forward(ctx: Any, x: Tensor, weight: Tensor, group: Any, reduces: bool) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.group, ctx.reduces = group, reduces
        return _gathered(x, group) @ weight

    @staticmethod
    @custom_bwd
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        whole = _gathered(x, ctx.group)
        before = grad @ weight.T
        own = torch.empty_like(x)
        if ctx.reduces:
            work = dist.reduce_scatter_tensor(own, before, group=ctx.group, async_op=True)
        grad_weight = whole.T @ grad
        if ctx.reduces:
            work.wait()
        else:
            own.copy_(before.narrow(0, ctx.group.rank() * len(own), len(own)))
        return own, grad_weight, None, None


def _gathered(x: Tensor, group: Any) -> Tensor:
    buffer = SCRATCH[0].held.get("tokens")
    if buffer is None:
        buffer = SCRATCH[0].held["tokens"] = torch.empty(len(x) * group.size(), x.shape[1])
    dist.all_gather_into_tensor(buffer, x, group=group)
    return buffer


class Scattered(torch.autograd.Function):
    """P to S(0), and back by a gather."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        own = torch.empty(len(x) // group.size(), *x.shape[1:])
        dist.reduce_scatter_tensor(own, x, group=group)
        return own

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        whole = torch.empty(len(grad) * ctx.group.size(), *grad.shape[1:])
        dist.all_gather_into_tensor(whole, grad.contiguous(), group=ctx.group)
        return whole, None


class Summed(torch.autograd.Function):
    """P to I."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad, None


class Layers(nn.Module):
    """Two layers of divided features on divided tokens, with a norm whose gradient is pending."""

    def __init__(self, group: Any) -> None:
        super().__init__()
        self.norm = nn.Parameter(torch.ones(WIDE))
        self.norm.sequence_parallel = True  # type: ignore[attr-defined]
        whole = torch.randn(4, WIDE, FFN)
        for name, value, dim in (("up", 0, 1), ("down", 1, 0), ("up2", 2, 1), ("down2", 3, 0)):
            full = whole[value] if dim else whole[value].T
            piece = nn.Parameter(full.chunk(group.size(), dim)[group.rank()].clone())
            piece.tensor_model_parallel, piece.partition_dim = True, dim  # type: ignore
            self.register_parameter(name, piece)

    def forward(self, x: Tensor, group: Any, reduces: bool) -> Tensor:
        own = x.chunk(group.size())[group.rank()] * self.norm
        for up, down in ((self.up, self.down), (self.up2, self.down2)):
            wide = Gathered.apply(own, up, group, reduces)
            own = Scattered.apply(F.gelu(wide) @ down, group)
        return Summed.apply(own.pow(2).sum(), group)


def own_group() -> Any:
    """The group that a library makes for itself, of all ranks here."""
    return dist.new_group(list(range(dist.get_world_size())))


def bucketed(model: nn.Module, group: Any, reduces: bool) -> None:
    """Reduce the pending gradients through one flat buffer."""
    grads = [p.grad for p in model.parameters() if getattr(p, "sequence_parallel", False)]
    grads += [p.grad for p in model.parameters() if getattr(p, "never", False)]
    flat = torch.cat([grad.view(-1) for grad in grads])
    if reduces:
        dist.all_reduce(flat, group=group)
    for grad, piece in zip(grads, flat.split([g.numel() for g in grads]), strict=True):
        grad.copy_(piece.view(grad.shape))
