"""More steps: collectives, what is passed twice, caches, and what a call changes for the next."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tests.faithful.cases import World, backward, batch, case, linear, plain

# ---- collectives ---------------------------------------------------------------------------------


def _reduced(how: Any) -> World:
    model = linear()

    def step(model: nn.Linear, x: Tensor) -> Tensor:
        loss = plain(model, x)
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, how)
        return loss

    return World(step, lambda n: (model, batch(n)), model)


for _name in ("MAX", "MIN", "PRODUCT", "AVG"):
    case(f"gradients are reduced by {_name}")(
        functools.partial(_reduced, getattr(dist.ReduceOp, _name))
    )


@case("a collective that is waited for later")
def waited_for() -> World:
    model = linear()

    def step(model: nn.Linear, x: Tensor) -> Tensor:
        loss = plain(model, x)
        works = [dist.all_reduce(p.grad, async_op=True) for p in model.parameters()]
        for work in works:
            work.wait()
        return loss

    return World(step, lambda n: (model, batch(n)), model)


class Shared(torch.autograd.Function):
    """The sum over ranks of a gradient: a collective in the backward alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        whole = grad.contiguous()
        dist.all_reduce(whole)
        return whole


@case("a collective in the backward of a Function")
def in_backward() -> World:
    model = linear()

    def step(model: nn.Linear, x: Tensor) -> Tensor:
        return backward(model, Shared.apply(model(x)).square().mean())

    return World(step, lambda n: (model, batch(n)), model)


@case("gathers, scatters and broadcasts into tensors that are there")
def into_tensors() -> World:
    model = linear()

    def step(model: nn.Linear, x: Tensor) -> Tensor:
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x)
        own = torch.empty_like(x)
        dist.reduce_scatter_tensor(own, torch.cat(parts))
        dist.broadcast(own, 0)
        return plain(model, own)

    return World(step, lambda n: (model, batch(n)), model)


@case("DistributedDataParallel, whose reducer is C++")
def in_ddp() -> World:
    model = DistributedDataParallel(linear())
    return World(plain, lambda n: (model, batch(n)), model)


# ---- arguments -----------------------------------------------------------------------------------


def _paired(model: nn.Linear, x: Tensor, y: Tensor) -> Tensor:
    return backward(model, (model(x) * y).sum())


@case("one tensor passed twice, and then two")
def twice() -> World:
    model = linear()

    def given(call: int) -> tuple[Any, ...]:
        x = batch(call)
        return model, x, x if call == 0 else batch(call + 9)

    return World(_paired, given, model)


@case("two tensors, and then one passed twice that is written")
def written_twice() -> World:
    model = linear()

    def step(model: nn.Linear, x: Tensor, y: Tensor) -> Tensor:
        x.mul_(2)
        return _paired(model, x, y)

    def given(call: int) -> tuple[Any, ...]:
        x = batch(call)
        return model, x, batch(call + 9) if call == 0 else x

    return World(step, given, model)


@case("another length, whose division a program would know by heart")
def lengths() -> World:
    model = linear()

    def step(model: nn.Linear, x: Tensor) -> Tensor:
        return backward(model, model(x).square().sum() / x.shape[0])

    return World(step, lambda n: (model, batch(n, rows=4 + n)), model)


@case("another dtype, and other strides")
def dtypes() -> World:
    model = linear()

    def step(model: nn.Linear, x: Tensor) -> Tensor:
        return plain(model, x.float() * (1 if x.is_contiguous() else 2))

    ways = (lambda x: x, lambda x: x.double(), lambda x: x.t())
    return World(step, lambda n: (model, ways[n % 3](batch(n))), model)


@case("a number, which the step decides by")
def numbers() -> World:
    model = linear()

    def step(model: nn.Linear, x: Tensor, scale: float, deep: bool) -> Tensor:
        return plain(model, model(x) * scale if deep else x * scale)

    return World(step, lambda n: (model, batch(n), 1.0 + n, n != 1), model)


# ---- what is kept from call to call --------------------------------------------------------------


class Cached(nn.Module):
    """Keeps what it made for a length."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.kept = linear(), dict[int, Tensor]()

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[0] not in self.kept:
            self.kept[x.shape[0]] = torch.arange(x.shape[0]).float()[:, None] + 1
        return self.linear(x) * self.kept[x.shape[0]]


@case("a module keeps what it made for a length")
def cached() -> World:
    model = Cached()
    return World(plain, lambda n: (model, batch(n, rows=4 + n % 2)), model)


@functools.lru_cache
def _angles(rows: int) -> Tensor:
    return torch.arange(rows).float()[:, None].cos()


@case("a function's cache keeps a tensor")
def function_cache() -> World:
    _angles.cache_clear()
    model = linear()

    def step(model: nn.Linear, x: Tensor) -> Tensor:
        return backward(model, (model(x) * _angles(x.shape[0])).square().mean())

    return World(step, lambda n: (model, batch(n)), model)


class Counting(nn.Module):
    """Decides by how often it was called."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.calls = linear(), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.linear(x) * self.calls


@case("a module counts its calls")
def counting() -> World:
    model = Counting()
    return World(plain, lambda n: (model, batch(n)), model)


@case("batch norm, its running mean and its count")
def batch_norm() -> World:
    model = nn.Sequential(linear(), nn.BatchNorm1d(4))
    return World(plain, lambda n: (model, batch(n)), model)


@case("dropout, from the seed that torch has")
def dropout() -> World:
    model = nn.Sequential(linear(), nn.Dropout(0.5))

    def given(call: int) -> tuple[Any, ...]:
        torch.manual_seed(call)
        return model, batch(call)

    return World(plain, given, model)


@case("a parameter that is frozen between calls")
def frozen() -> World:
    model = linear()

    def given(call: int) -> tuple[Any, ...]:
        model.bias.requires_grad_(call != 1)
        return model, batch(call)

    return World(plain, given, model)


@case("a parameter that is another between calls")
def replaced() -> World:
    model = linear()

    def given(call: int) -> tuple[Any, ...]:
        model.weight = nn.Parameter(torch.full((4, 4), 0.1 * (call + 1)))
        return model, batch(call)

    return World(plain, given, model)


@case("train and eval between calls")
def modes() -> World:
    model = nn.Sequential(linear(), nn.BatchNorm1d(4))

    def given(call: int) -> tuple[Any, ...]:
        model.train(call != 1)
        return model, batch(call)

    return World(plain, given, model)


@case("gradients are summed over calls")
def accumulated() -> World:
    model = linear()

    def step(model: nn.Linear, x: Tensor) -> Tensor:
        loss = model(x).square().mean()
        loss.backward()
        return loss.detach()

    return World(step, lambda n: (model, batch(n)), model)


# ---- steps that no program holds -----------------------------------------------------------------


@case("a branch on a value")
def branch() -> World:
    model = linear()

    def step(model: nn.Linear, x: Tensor) -> Tensor:
        return plain(model, x * 2 if x.sum() > 0 else x)

    return World(step, lambda n: (model, batch(n)), model)


@case("an error in the middle of a backward")
def failing() -> World:
    model = linear()

    def fail(grad: Tensor) -> Tensor:
        return grad * grad.detach().numpy().mean()

    def step(model: nn.Linear, x: Tensor) -> Tensor:
        y = model(x)
        y.register_hook(fail)
        return backward(model, y.square().mean())

    return World(step, lambda n: (model, batch(n)), model)
