"""Steps whose results hang on what a capture could lose: each right to the bit, or refused here.

A case makes a world of its own: the step, the arguments of each call, and what may change.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

CALLS = 3


@dataclass
class World:
    """One case, ready to run.

    Args:
        step: what is compiled, or run as it is.
        given: the arguments of the n-th call, made anew.
        held: the tensors that a call may change, beside gradients of `model`.
        model: whose gradients and buffers belong to the result.
    """

    step: Callable[..., Any]
    given: Callable[[int], tuple[Any, ...]]
    model: nn.Module
    held: Callable[[], list[Tensor]] = list


Make = Callable[[], World]
CASES: dict[str, Make] = {}


def case(name: str) -> Callable[[Make], Make]:
    """List a case under its name."""

    def listed(make: Make) -> Make:
        CASES[name] = make
        return make

    return listed


def batch(call: int, rows: int = 4, columns: int = 4) -> Tensor:
    """Numbers of one rank and one call."""
    draw = torch.Generator().manual_seed(100 * dist.get_rank() + call)
    return torch.randn(rows, columns, generator=draw)


def linear(seed: int = 0, size: int = 4) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(size, size)


def backward(model: nn.Module, loss: Tensor) -> Tensor:
    """The end of every step: gradients anew, and the mean over ranks by hand."""
    model.zero_grad()
    loss.backward()
    return loss.detach()


def plain(model: nn.Module, x: Tensor) -> Tensor:
    return backward(model, model(x).square().mean())


# ---- attributes and hooks ------------------------------------------------------------------------


@case("an attribute of a parameter decides about a reduction")
def attribute() -> World:
    model = linear()
    model.bias.shared = True  # type: ignore[attr-defined]

    def step(model: nn.Linear, x: Tensor) -> Tensor:
        loss = plain(model, x)
        for parameter in model.parameters():
            if getattr(parameter, "shared", False):
                dist.all_reduce(parameter.grad)
        return loss

    return World(step, lambda n: (model, batch(n)), model)


@case("an attribute of a buffer decides")
def buffer_attribute() -> World:
    model = linear()
    model.register_buffer("scale", torch.full((4,), 2.0))
    model.scale.squared = True  # type: ignore[union-attr]

    def step(model: Any, x: Tensor) -> Tensor:
        y = model(x) * model.scale
        return backward(model, (y.square() if getattr(model.scale, "squared", False) else y).mean())

    return World(step, lambda n: (model, batch(n)), model)


@case("an attribute of an argument decides")
def argument_attribute() -> World:
    model = linear()

    def step(model: nn.Linear, x: Tensor) -> Tensor:
        return plain(model, x * 2 if getattr(x, "doubled", False) else x)

    def given(call: int) -> tuple[Any, ...]:
        x = batch(call)
        x.doubled = True  # type: ignore[attr-defined]
        return model, x

    return World(step, given, model)


@case("an attribute of a parameter that is another at the next call")
def changed_attribute() -> World:
    model = linear()

    def step(model: nn.Linear, x: Tensor) -> Tensor:
        return plain(model, x * model.weight.gain)  # type: ignore[operator]

    def given(call: int) -> tuple[Any, ...]:
        model.weight.gain = 1 + call // 2  # type: ignore[attr-defined]
        return model, batch(call)

    return World(step, given, model)


@case("a hook after a gradient was accumulated reduces it")
def after_accumulation() -> World:
    model = linear()
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: dist.all_reduce(p.grad))
    return World(plain, lambda n: (model, batch(n)), model)


@case("a hook of a parameter scales its gradient")
def tensor_hook() -> World:
    model = linear()
    model.weight.register_hook(lambda grad: grad * 3)
    return World(plain, lambda n: (model, batch(n)), model)


@case("a hook on the node that accumulates a gradient")
def accumulation_node() -> World:
    model = linear()
    node = get_gradient_edge(model.weight).node
    node.register_prehook(lambda grads: tuple(2 * grad for grad in grads))
    model.node = node  # type: ignore[assignment]  # without it, node and hook are gone
    return World(plain, lambda n: (model, batch(n)), model)


@case("hooks of a module, before and after it and in its backward")
def module_hooks() -> World:
    model = nn.Sequential(linear(), nn.Tanh(), linear(1))
    model[0].register_forward_pre_hook(lambda m, args: (args[0] + 1,))
    model[1].register_forward_hook(lambda m, args, out: out * 2)
    model[2].register_full_backward_hook(lambda m, given, out: tuple(g * 3 for g in given))
    return World(plain, lambda n: (model, batch(n)), model)


# ---- tensors that are nobody's parameter ---------------------------------------------------------


class Attributes(nn.Module):
    """Keeps tensors where no iterator of modules finds them."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = linear()
        self.table = torch.arange(4.0)
        self.by_name = {"scale": torch.ones(4)}
        self.listed = [torch.ones(4)]

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * self.table * self.by_name["scale"] * self.listed[0]


@case("tensors in attributes, dicts and lists of a module, changed between calls")
def attributes() -> World:
    model = Attributes()

    def given(call: int) -> tuple[Any, ...]:
        model.table = torch.arange(4.0) + call
        model.by_name["scale"].add_(call)
        model.listed[0] = torch.full((4,), 1.0 + call)
        return model, batch(call)

    return World(plain, given, model, lambda: [model.table, *model.by_name.values()])


@case("a constant without dimensions is written under a mask")
def constant() -> World:
    model = linear()

    def step(model: nn.Linear, x: Tensor) -> Tensor:
        y = x.clone()
        y[x > 0] = 0.5
        return plain(model, y)

    return World(step, lambda n: (model, batch(n)), model)


@dataclass
class Batch:
    """A batch as a dataclass."""

    x: Tensor
    weight: Tensor


@case("tensors in a dataclass")
def in_dataclass() -> World:
    model = linear()

    def step(model: nn.Linear, given: Batch) -> Tensor:
        return backward(model, (model(given.x) * given.weight).mean())

    return World(step, lambda n: (model, Batch(batch(n), batch(n + 7))), model)


@case("a tensor in a closure, changed between calls")
def in_closure() -> World:
    model, scale = linear(), torch.ones(4)

    def step(model: nn.Linear, x: Tensor) -> Tensor:
        return backward(model, (model(x) * scale).square().mean())

    def given(call: int) -> tuple[Any, ...]:
        scale.add_(call)
        return model, batch(call)

    return World(step, given, model, lambda: [scale])


@case("a tensor as a default argument, changed between calls")
def default_argument() -> World:
    model, kept = linear(), torch.ones(4)

    def step(model: nn.Linear, x: Tensor, scale: Tensor = kept) -> Tensor:
        return backward(model, (model(x) * scale).square().mean())

    def given(call: int) -> tuple[Any, ...]:
        kept.add_(call)
        return model, batch(call)

    return World(step, given, model, lambda: [kept])


GLOBAL = torch.ones(4)


@case("a global tensor, written by the step")
def global_tensor() -> World:
    global GLOBAL
    model, GLOBAL = linear(), torch.ones(4)

    def step(model: nn.Linear, x: Tensor) -> Tensor:
        GLOBAL.mul_(0.5).add_(x.mean(0))
        return backward(model, (model(x) * GLOBAL).square().mean())

    return World(step, lambda n: (model, batch(n)), model, lambda: [GLOBAL])


@case("a module that is no argument, and a partial of a tensor")
def other_module() -> World:
    model, other, bound = linear(), linear(3), functools.partial(torch.mul, torch.full((4,), 2.0))

    def step(model: nn.Linear, x: Tensor) -> Tensor:
        return plain(model, bound(other(x)))

    return World(step, lambda n: (model, batch(n)), model)


@case("a tensor of Python data, by the call's number")
def python_data() -> World:
    model = linear()

    def step(model: nn.Linear, x: Tensor, scales: list[float]) -> Tensor:
        return backward(model, (model(x) * torch.tensor(scales)).square().mean())

    return World(step, lambda n: (model, batch(n), [1.0, 2.0, 3.0, 4.0 + n]), model)
