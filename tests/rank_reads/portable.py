"""Reads of the rank whose program is right on every rank. Each gets the mesh dp=2, tp=2 of 4."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed import get_rank


def times(x: Tensor, mesh: Any) -> Tensor:
    return x * get_rank()


def plus_a_fraction(x: Tensor, mesh: Any) -> Tensor:
    return x + dist.get_rank() * 0.5


def divided(x: Tensor, mesh: Any) -> Tensor:
    return x / (dist.get_rank() + 1)


def power(x: Tensor, mesh: Any) -> Tensor:
    return x + dist.get_rank() ** 2 + 2 ** dist.get_rank()


def quotient_and_rest(x: Tensor, mesh: Any) -> Tensor:
    return x + (dist.get_rank() // 2) * 10 + dist.get_rank() % 2


def narrow(x: Tensor, mesh: Any) -> Tensor:
    return x.narrow(0, dist.get_rank() * 4, 4) + 1


def sliced(x: Tensor, mesh: Any) -> Tensor:
    return x[dist.get_rank() * 4 : (dist.get_rank() + 1) * 4] + torch.ones(4, 4)


def sliced_columns(x: Tensor, mesh: Any) -> Tensor:
    rank = dist.get_rank()
    return x[:, rank : rank + 1] * 2


def sliced_at_the_end(x: Tensor, mesh: Any) -> Tensor:
    rank = dist.get_rank()
    return x[..., rank : rank + 1] * 2


def rest_of_rows(x: Tensor, mesh: Any) -> Tensor:
    return x[dist.get_rank() :].sum(0)


def row(x: Tensor, mesh: Any) -> Tensor:
    return x[dist.get_rank()] + 1


def column(x: Tensor, mesh: Any) -> Tensor:
    return x[:, dist.get_rank()] + 1


def row_and_column(x: Tensor, mesh: Any) -> Tensor:
    dp, tp = mesh.get_coordinate()
    return x[dp, tp] + 1


def select(x: Tensor, mesh: Any) -> Tensor:
    return x.select(0, dist.get_rank()) + 1


def of_a_view(x: Tensor, mesh: Any) -> Tensor:
    return x.view(4, 4, 4)[dist.get_rank()] + 1


def chunk(x: Tensor, mesh: Any) -> Tensor:
    return x.chunk(4)[dist.get_rank()] + 1


def split(x: Tensor, mesh: Any) -> Tensor:
    parts = torch.split(x, 4, 0)
    return parts[dist.get_rank()] + 1


def split_columns(x: Tensor, mesh: Any) -> Tensor:
    return x.split(1, dim=-1)[dist.get_rank()] + 1


def unbind(x: Tensor, mesh: Any) -> Tensor:
    return x.unbind(0)[dist.get_rank()] + 1


def roll(x: Tensor, mesh: Any) -> Tensor:
    return x.roll(dist.get_rank(), 0)


def full(x: Tensor, mesh: Any) -> Tensor:
    return x[:2, 0] + torch.full((2,), dist.get_rank())


def tensor_of_it(x: Tensor, mesh: Any) -> Tensor:
    return x + torch.tensor(dist.get_rank())


def tensor_of_a_list(x: Tensor, mesh: Any) -> Tensor:
    return x[:2, 0] + torch.tensor([dist.get_rank(), 1])


def table(x: Tensor, mesh: Any) -> Tensor:
    return x + torch.tensor([1.0, 2.0, 5.0, 9.0])[dist.get_rank()]


def fill(x: Tensor, mesh: Any) -> Tensor:
    return x.clone().fill_(dist.get_rank())


def positions(x: Tensor, mesh: Any) -> Tensor:
    return x[:4, 0] + torch.arange(4) + dist.get_rank() * 4


def arange_between(x: Tensor, mesh: Any) -> Tensor:
    rank = dist.get_rank()
    return x[:4, 0] + torch.arange(rank * 4, rank * 4 + 4)


def vocabulary(x: Tensor, mesh: Any) -> Tensor:
    ids = x[0].to(torch.long)
    start = dist.get_rank() * 4
    outside = (ids < start) | (ids >= start + 4)
    local = (ids - start).masked_fill(outside, 0)
    return F.embedding(local, x[:4]).masked_fill(outside[:, None], 0.0)


def written_into(x: Tensor, mesh: Any) -> Tensor:
    y = x.clone()
    y[dist.get_rank() * 4 : (dist.get_rank() + 1) * 4] = 0
    return y


def row_written(x: Tensor, mesh: Any) -> Tensor:
    y = x.clone()
    y[dist.get_rank()] = x[0] * 3
    return y


def index_fill(x: Tensor, mesh: Any) -> Tensor:
    return x.index_fill(0, torch.tensor([dist.get_rank()]), 7.0)


def gradient_of_a_slice(x: Tensor, mesh: Any) -> Tensor:
    leaf = x.detach().requires_grad_()
    rank = dist.get_rank()
    return torch.autograd.grad((leaf[rank * 4 : (rank + 1) * 4] ** 2).sum(), leaf)[0]


class Own(torch.autograd.Function):
    """This rank's part, whose backward takes the rank's part too, as Megatron's regions do."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.split(x, 4)[dist.get_rank()].contiguous()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        parts = torch.split(torch.cat([grad, 2 * grad, 3 * grad, 4 * grad]), 4)
        return torch.cat([parts[dist.get_rank()]] * 4)


def part_in_a_function(x: Tensor, mesh: Any) -> Any:
    leaf = x.detach().requires_grad_()
    part = Own.apply(leaf)
    return part.detach(), torch.autograd.grad((part**2).sum(), leaf)[0]


def gradient_of_a_chunk(x: Tensor, mesh: Any) -> Tensor:
    leaf = x.detach().requires_grad_()
    return torch.autograd.grad((leaf.chunk(4)[dist.get_rank()] ** 2).sum(), leaf)[0]


def where(x: Tensor, mesh: Any) -> Tensor:
    return torch.where(torch.tensor(dist.get_rank() == 0), x * 2, x)


def mask(x: Tensor, mesh: Any) -> Tensor:
    return x * (dist.get_rank() == 0)


def rank_mask(x: Tensor, mesh: Any) -> Tensor:
    return x[:4] * (torch.arange(4) < dist.get_rank())[:, None]


def symbolic_maximum(x: Tensor, mesh: Any) -> Tensor:
    return x + torch.sym_max(dist.get_rank(), 1)


def always_at_least_zero(x: Tensor, mesh: Any) -> Tensor:
    return x + max(dist.get_rank(), 0) + min(dist.get_rank(), dist.get_world_size() - 1)


def always_below_the_world(x: Tensor, mesh: Any) -> Tensor:
    return x * 2 if dist.get_rank() < dist.get_world_size() else x


def parity_is_below_two(x: Tensor, mesh: Any) -> Tensor:
    return x * 2 if dist.get_rank() % 2 < 2 and dist.get_rank() >= 0 else x


def from_mesh(x: Tensor, mesh: Any) -> Tensor:
    return x * (mesh.get_local_rank("tp") + 1)


def from_mesh_by_number(x: Tensor, mesh: Any) -> Tensor:
    return x * (mesh.get_local_rank(0) + 1)


def from_a_slice_of_the_mesh(x: Tensor, mesh: Any) -> Tensor:
    return x * (mesh["dp"].get_local_rank() + 1)


def coordinate(x: Tensor, mesh: Any) -> Tensor:
    dp, tp = mesh.get_coordinate()
    return x * (dp * 10 + tp)


def rank_of_the_mesh(x: Tensor, mesh: Any) -> Tensor:
    return x + mesh.get_rank()


def rank_of_a_group(x: Tensor, mesh: Any) -> Tensor:
    return x + mesh.get_group("tp").rank()


def rank_in_a_group(x: Tensor, mesh: Any) -> Tensor:
    return x + dist.get_rank(mesh.get_group("dp")) + get_rank(group=mesh.get_group("tp"))


def group_rank_of_this_rank(x: Tensor, mesh: Any) -> Tensor:
    return x + dist.get_group_rank(mesh.get_group("tp"), dist.get_rank())


def first_of_the_group(x: Tensor, mesh: Any) -> Tensor:
    return x + dist.get_global_rank(mesh.get_group("tp"), 0)


def ranks_of_the_group(x: Tensor, mesh: Any) -> Tensor:
    return x + dist.get_process_group_ranks(mesh.get_group("tp"))[1]


def table_of_ranks(x: Tensor, mesh: Any) -> Tensor:
    return x[:2, 0] + mesh["tp"].mesh + mesh["dp"].mesh.numel()


def list_of_ranks(x: Tensor, mesh: Any) -> Tensor:
    return x + mesh["tp"].mesh.tolist()[0]


def broadcast_from_the_first(x: Tensor, mesh: Any) -> Tensor:
    y = x * (dist.get_rank() + 1)
    group = mesh.get_group("tp")
    dist.broadcast(y, src=dist.get_global_rank(group, 0), group=group)
    return y


def broadcast_from_the_last(x: Tensor, mesh: Any) -> Tensor:
    y = x * (dist.get_rank() + 1)
    group = mesh.get_group("dp")
    dist.broadcast(y, src=dist.get_process_group_ranks(group)[-1], group=group)
    return y


def own_part_of_a_sum(x: Tensor, mesh: Any) -> Tensor:
    y = x * (dist.get_rank() + 1)
    dist.all_reduce(y, group=mesh.get_group("dp"))
    return y.chunk(2)[mesh.get_local_rank("tp")].clone()


def returned(x: Tensor, mesh: Any) -> Any:
    return x + 1, dist.get_rank() * 2


def drawn(x: Tensor, mesh: Any) -> Tensor:
    return x + torch.rand(4) * dist.get_rank()


def parts_returned(x: Tensor, mesh: Any) -> Any:
    return x.chunk(2), x.unbind(0)[0]


def not_looked_at(x: Tensor, mesh: Any) -> Tensor:
    dist.get_rank()
    return x + dist.get_world_size()


FORMS = [
    value
    for value in vars().values()
    if getattr(value, "__module__", "") == __name__ and value is not Own
]
