"""A small model whose behaviour hangs on every kind of Python value that a step can reach."""

from __future__ import annotations

import enum
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import parts
import torch
import torch.nn.functional as F
from parts import REGISTRY, clipped, register
from torch import nn

WIDTH = 4
TEMPERATURE = 2.0
EPS = {"norm": 1e-5, "loss": 1e-3, "unused": 1e-9}
SCHEDULE = [(0, 1.0), (1, 0.5), (2, 0.25)]
SOFT = functools.partial(F.softplus, beta=2.0)
SQUASH = torch.tanh
PICKED = parts.halved
LOW = torch.float64


class Kind(enum.Enum):
    SHARP = "sharp"
    FLAT = "flat"


class Order(enum.IntEnum):
    FIRST = 1
    LAST = 2


class Bounds(NamedTuple):
    low: float = -3.0
    high: float = 3.0


@dataclass(frozen=True)
class Gate:
    kind: Kind = Kind.SHARP
    gain: float = 1.5


@dataclass
class Config:
    width: int = WIDTH
    layers: int = 1
    bias: bool = True
    kind: Kind = Kind.SHARP
    order: Order = Order.LAST
    gate: Gate = field(default_factory=Gate)
    shifts: list[float] = field(default_factory=lambda: [0.1, 0.2])
    title: str = "small"


class Options:
    def __init__(self, smooth: float = 0.1, names: tuple[str, ...] = ("twice", "root")) -> None:
        self.smooth = smooth
        self.names = names
        self.label = "options"


CONFIG = Config()
OPTIONS = Options()
BOUNDS = Bounds()
NONLINEAR = nn.Softplus(beta=3.0)


def scaled(factor: float) -> Callable[[Any], Any]:
    def around(function: Any) -> Any:
        @functools.wraps(function)
        def inner(*args: Any) -> Any:
            return function(*args) * factor

        return inner

    return around


def shifted(function: Any) -> Any:
    @functools.wraps(function)
    def inner(self: Any, x: Any) -> Any:
        return function(self, x) + SHIFT

    return inner


SHIFT = 0.75


@functools.lru_cache(maxsize=8)
def table_of(count: int, base: float = 3.0) -> list[float]:
    return [base**i for i in range(count)]


@register("twice")
def twice(x: Any, times: float = 2.0) -> Any:
    return x * times


@register("root")
def root(x: Any) -> Any:
    return (x.abs() + EPS["norm"]).sqrt()


ACTIVATIONS = {"sharp": [twice, lambda x: x.relu() - 0.5], "flat": [root, torch.sigmoid]}


def counter(start: int) -> Callable[[Any], Any]:
    scale = start / 2

    def weigh(x: Any, more: float = 1.0) -> Any:
        return x * scale * more

    return weigh


WEIGH = counter(3)


class Policy:
    power: int = 2
    act = staticmethod(torch.exp)

    def __init__(self, weight: float) -> None:
        self.weight = weight

    def __call__(self, x: Any) -> Any:
        return self.act(x * self.weight) ** self.power

    def penalty(self, x: Any) -> Any:
        return x.pow(self.power).mean()


class Base(nn.Module):
    scale: float = 1.25
    dtype: ClassVar[Any] = torch.float32
    reductions: ClassVar[dict[str, str]] = {"train": "mean", "eval": "sum"}

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.proj = nn.Linear(config.width, config.width, bias=config.bias)

    def forward(self, x: Any) -> Any:
        return self.proj(x) * self.scale

    @property
    def ratio(self) -> float:
        return self.config.gate.gain / self.config.layers

    def before(self, x: Any) -> Any:
        return x - self.ratio


class Mixed:
    def before(self, x: Any) -> Any:
        return super().before(x) * 0.9  # type: ignore[misc]

    @classmethod
    def named(cls, x: Any) -> Any:
        return x + len(cls.__name__)


class Layer(Mixed, Base):
    scale = 0.8

    def __init__(self, config: Config, mode: str) -> None:
        super().__init__(config)
        self.mode = mode
        self.policy = Policy(0.3)
        self.choose = clipped
        self.norm = nn.LayerNorm(config.width, eps=EPS["norm"])
        self._hidden = 0.6 + 0 * self.spread

    @functools.cached_property
    def spread(self) -> float:
        return self.config.width * 0.5

    @shifted
    def forward(self, x: Any) -> Any:
        x = super().forward(self.norm(self.before(x)))
        if self.config.kind is Kind.SHARP:
            x = self.choose(x, BOUNDS.low, BOUNDS.high)
        elif self.config.kind is Kind.FLAT:
            x = x.clamp(min=-1.0)
        for act in ACTIVATIONS[self.config.gate.kind.value]:
            x = act(x)
        return getattr(self, self.mode)(x) + self._hidden * self.spread

    def plain(self, x: Any) -> Any:
        return self.policy(x).to(self.dtype)

    def wide(self, x: Any) -> Any:
        return self.plain(x) * 2


class Model(nn.Module):
    def __init__(self, config: Config = CONFIG) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(config, "plain") for _ in range(config.layers))
        self.temperature = nn.Parameter(torch.ones(1))
        self.temperature.weighting = 0.7
        self.drop = nn.Dropout(0.25)
        self.clock = torch.zeros(1)
        self.steps = [1.0, 2.0]

    def forward(self, x: Any) -> Any:
        for number, layer in enumerate(self.layers):
            when, weight = SCHEDULE[number]
            x = layer(x) * weight + when
        x = self.drop(x) * self.temperature.weighting
        return x / (self.temperature * TEMPERATURE) + sum(self.steps)


def smooth_loss(x: Any, labels: Any, *, smoothing: float = 0.2, reduction: str = "mean") -> Any:
    """Cross entropy of what helpers make of `x`."""
    if x.dim() != 2:
        raise ValueError(f"rank {x.dim()} is not 2, expected batch x classes")
    assert labels.dim() == 1, "labels of one dimension"
    loss = F.cross_entropy(x, labels, label_smoothing=smoothing, reduction=reduction)
    return loss + EPS["loss"]


@scaled(0.5)
def regular(x: Any) -> Any:
    extra = [x.pow(n).mean() for n in range(1, 3)]
    powers = table_of(2)
    return sum(e / p for e, p in zip(extra, powers, strict=True))


def tail(x: Any) -> Any:
    from parts import late

    def inside(y: Any) -> Any:
        return y * math.pi

    x = parts.foreign(late(SQUASH(SOFT(x))))
    x = NONLINEAR(inside(x)) if WIDTH > 2 else x
    for name in OPTIONS.names:
        x = REGISTRY[name](x)
    x = Layer.named(PICKED(x)).to(LOW).float()
    return x * OPTIONS.smooth + parts.deep.offset(CONFIG.shifts[0] + CONFIG.order)


def train_step(model: Any, x: Any, labels: Any, power: int = 2) -> Any:
    # a comment
    h = model(x)
    h = tail(WEIGH(h))
    loss = smooth_loss(h, labels)
    loss = loss + regular(h) ** power + model.layers[0].policy.penalty(h)
    loss.backward()
    return {"loss": loss, "largest": h.detach().amax(), "title": CONFIG.title}


def build(mesh: Any) -> tuple[Any, tuple[Any, ...]]:
    return train_step, (Model(), torch.randn(3, WIDTH), torch.zeros(3, dtype=torch.long))
