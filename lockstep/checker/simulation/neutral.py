"""Random draws without chance: each gives its mean, the same on every mesh."""

from __future__ import annotations

from typing import Any

import torch

from lockstep import _compat


def neutral_draw(target: Any, args: Any, kwargs: Any) -> Any:
    """What a random operator gives on average; dropout keeps everything.

    Operators that it does not know draw from a fixed seed.
    """
    name = _compat.schema(target).name.removeprefix("aten::")
    if name == "native_dropout":
        return args[0].clone(), torch.ones_like(args[0], dtype=torch.bool)
    if name == "bernoulli_":
        chance = args[1] if len(args) > 1 else kwargs.get("p", 0.5)
        return args[0].copy_(chance) if isinstance(chance, torch.Tensor) else args[0].fill_(chance)
    if name == "bernoulli":
        return args[0].clone()
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        drawn = target(*args, **kwargs)
    means = {"rand": 0.5, "rand_like": 0.5, "randn": 0.0, "randn_like": 0.0}
    means |= {"uniform_": 0.5, "normal_": 0.0, "exponential_": 1.0}
    return drawn.fill_(means[name]) if name in means else drawn
