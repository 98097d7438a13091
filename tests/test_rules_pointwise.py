"""Element by element: each inferred kind holds on simulated ranks, forward and backward."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.checker.inference.kinds import EQUAL, PARTIAL, VARYING, shard
from tests.rule_numbers import F64, FEW, check, operand, parts, sizes, typed

ONE = {
    "double": lambda x: x.double().float().double(),
    "neg": lambda x: -x,
    "scaled": lambda x: x * 3 / 7,
    "shifted": lambda x: x + 1,
    "gelu": F.gelu,
    "silu": F.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "relu": F.relu,
    "exp": torch.exp,
    "square": lambda x: x**2,
    "abs": torch.abs,
    "clamp": lambda x: x.clamp(-1, 1),
    "masked": lambda x: x.masked_fill(x > 0, 0.0),
    "tril": torch.tril,
    "cumsum": lambda x: x.cumsum(0),
    "softplus": F.softplus,
    "elu": F.elu,
    "leaky": F.leaky_relu,
    "hardswish": F.hardswish,
    "sin": torch.sin,
    "rsqrt": lambda x: torch.rsqrt(x * x + 1),
}
TWO = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - 2 * b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / (b * b + 1),
    "where": lambda a, b: torch.where(a > 0, a, b),
    "maximum": torch.maximum,
    "lerp": lambda a, b: torch.lerp(a, b, 0.25),
    "addcmul": lambda a, b: torch.addcmul(a, a, b),
    "hypot": torch.hypot,
    "atan2": torch.atan2,
}


@pytest.mark.parametrize("name", ONE)
@settings(**FEW)
@given(data=st.data(), m=sizes, n=sizes)
def test_one_operand(name: str, data: st.DataObject, m: int, n: int) -> None:
    check(ONE[name], [data.draw(operand((m, n)))])


@pytest.mark.parametrize("name", TWO)
@settings(**{**FEW, "max_examples": 6})
@given(data=st.data(), m=sizes, n=sizes, short=st.sampled_from(["", "row", "column", "vector"]))
def test_two_operands(name: str, data: st.DataObject, m: int, n: int, short: str) -> None:
    other = {"": (m, n), "row": (1, n), "column": (m, 1), "vector": (n,)}[short]
    check(TWO[name], [data.draw(operand((m, n))), data.draw(operand(other, seed=1))])


def value(kind, shape=(4, 4), seed=0):
    generator = torch.Generator().manual_seed(seed)
    return parts(torch.randn(shape, generator=generator, dtype=F64), kind, seed)


TABLE = [
    ("add", EQUAL, EQUAL, "E"),
    ("add", shard(0), shard(0), "S"),
    ("add", PARTIAL, PARTIAL, "P"),
    ("add", VARYING, EQUAL, "V"),
    ("add", PARTIAL, EQUAL, "error"),
    ("mul", PARTIAL, EQUAL, "P"),
    ("mul", PARTIAL, PARTIAL, "error"),
    ("mul", VARYING, VARYING, "V"),
    ("div", EQUAL, PARTIAL, "error"),
    ("div", PARTIAL, EQUAL, "P"),
    ("where", PARTIAL, EQUAL, "error"),
    ("maximum", PARTIAL, PARTIAL, "error"),
]


@pytest.mark.parametrize(("name", "a", "b", "want"), TABLE)
def test_the_mixing_table(name, a, b, want) -> None:
    kinds, faults, _, _ = typed(TWO[name], [value(a), value(b, seed=1)])
    assert ("error" if faults else kinds[0].tag) == want


def test_shards_of_other_dimensions_and_partials_beside_shards() -> None:
    cut, partial = value(shard(0)), value(PARTIAL, (2, 4))
    for name in ("add", "mul"):
        assert typed(TWO[name], [cut, partial])[1]
        assert not typed(TWO[name], [cut, value(VARYING, (2, 4))])[1]
    across = value(shard(1), (2, 8))
    assert typed(TWO["add"], [cut, across])[0] == [VARYING]


@pytest.mark.parametrize(
    ("function", "want"),
    [
        (lambda x: x + 1, "LS501"),
        (lambda x: 1 - x, "LS501"),
        (F.gelu, "LS502"),
        (lambda x: x**2, "LS502"),
        (lambda x: x.to(torch.int64), "LS502"),
        (lambda x: x.masked_fill(torch.ones(4, 4, dtype=torch.bool), 1.0), "LS502"),
    ],
)
def test_what_a_partial_does_not_admit(function, want) -> None:
    _, faults, _, _ = typed(function, [value(PARTIAL)])
    assert [fault.code for fault in faults] == [want]
    assert not typed(function, [value(EQUAL)])[1]


def test_a_local_mean_is_a_partial_mean_until_it_is_divided_by_the_number_of_ranks() -> None:
    mean, total = lambda x: x.mean(), lambda x: x.mean() / 2
    x = value(shard(0))
    assert repr(typed(mean, [x])[0][0]) == "P(mean)"
    assert repr(typed(total, [x])[0][0]) == "P"
    assert repr(typed(lambda x: x.mean() * 0.5, [x])[0][0]) == "P"
    assert repr(typed(lambda x: x.mean() * 3, [x])[0][0]) == "P(mean)"
