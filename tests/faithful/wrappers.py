"""Still more steps: what wraps a model or a part of it, and torch's own transformations."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from tests.faithful.cases import World, backward, batch, case, linear, plain


def _checkpointed(reentrant: bool) -> World:
    model = nn.Sequential(linear(), nn.Dropout(0.5), linear(1))

    def step(model: nn.Module, x: Tensor) -> Tensor:
        y = checkpoint(model[1:], model[0](x), use_reentrant=reentrant)  # type: ignore[index]
        return backward(model, y.square().mean())

    def given(call: int) -> tuple[Any, ...]:
        torch.manual_seed(call)
        return model, batch(call)

    return World(step, given, model)


@case("a part under a checkpoint")
def checkpointed() -> World:
    return _checkpointed(False)


@case("a part under a checkpoint that is reentrant")
def reentrant() -> World:
    return _checkpointed(True)


@case("a gradient that comes to an argument, as a reentrant checkpoint wants one")
def argument_gradient() -> World:
    model = linear()

    def step(model: nn.Module, x: Tensor) -> Tensor:
        y = checkpoint(model, x.requires_grad_(), use_reentrant=True)
        return backward(model, y.square().mean())

    return World(step, lambda n: (model, batch(n)), model)


@case("a part that torch.compile has")
def compiled() -> World:
    model = nn.Sequential(linear(), nn.Tanh(), linear(1))
    model[0].compile(backend="eager")
    return World(plain, lambda n: (model, batch(n)), model)


@case("autocast to bfloat16")
def autocast() -> World:
    model = linear()

    def step(model: nn.Module, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(x).float().square().mean()
        return backward(model, loss)

    return World(step, lambda n: (model, batch(n)), model)


@case("a gradient scaler around an optimizer")
def scaled() -> World:
    model = linear()
    scaler, optimizer = torch.amp.GradScaler("cpu"), torch.optim.SGD(model.parameters(), 0.1)

    def step(model: nn.Module, optimizer: Any, scaler: Any, x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    return World(step, lambda n: (model, optimizer, scaler, batch(n)), model)


@case("weights by their norm, a parametrization")
def weight_norm() -> World:
    model = parametrizations.weight_norm(linear())
    return World(plain, lambda n: (model, batch(n)), model)


@case("spectral norm, whose vectors each forward changes")
def spectral_norm() -> World:
    model = parametrizations.spectral_norm(linear())
    return World(plain, lambda n: (model, batch(n)), model)


@case("a gradient within the step, by torch.func")
def functional() -> World:
    model = linear()

    def energy(x: Tensor, weight: Tensor) -> Tensor:
        return F.linear(x, weight).square().sum()

    def step(model: nn.Linear, x: Tensor) -> Tensor:
        forces = torch.func.grad(energy)(x, model.weight)
        return backward(model, forces.square().mean())

    return World(step, lambda n: (model, batch(n)), model)


@case("gradients of each row, by torch.func.vmap")
def each_row() -> World:
    model = linear()

    def loss_of(weight: Tensor, row: Tensor) -> Tensor:
        return F.linear(row, weight).square().mean()

    def step(model: nn.Linear, x: Tensor) -> Tensor:
        rows = torch.func.vmap(torch.func.grad(loss_of), (None, 0))(model.weight.detach(), x)
        return plain(model, x * rows.square().mean((1, 2)).unsqueeze(1))

    return World(step, lambda n: (model, batch(n)), model)


@case("a model called with other parameters, by functional_call")
def called_with() -> World:
    model = linear()

    def step(model: nn.Linear, x: Tensor) -> Tensor:
        halved = {name: parameter / 2 for name, parameter in model.named_parameters()}
        return backward(model, torch.func.functional_call(model, halved, x).square().mean())

    return World(step, lambda n: (model, batch(n)), model)


@case("an optimizer's state, made in the first step")
def stateful() -> World:
    model = linear()
    optimizer = torch.optim.AdamW(model.parameters(), 0.1)

    def step(model: nn.Module, optimizer: Any, x: Tensor) -> Tensor:
        loss = plain(model, x)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        return loss

    held = lambda: [*model.parameters(), *(t for s in optimizer.state.values() for t in s.values())]  # noqa: E731
    return World(step, lambda n: (model, optimizer, batch(n)), model, held)
