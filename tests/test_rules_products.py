"""Products, convolutions and attention: each inferred kind holds on simulated ranks."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.checker.inference.kinds import EQUAL, PARTIAL, VARYING, shard
from tests.rule_numbers import F64, FEW, check, operand, parts, sizes, typed

SOME = {**FEW, "max_examples": 8}
PRODUCTS = {
    "mm": (lambda a, b: a @ b, lambda m, k, n: [(m, k), (k, n)]),
    "linear": (F.linear, lambda m, k, n: [(m, k), (n, k)]),
    "linear 3d": (F.linear, lambda m, k, n: [(2, m, k), (n, k)]),
    "bmm": (torch.bmm, lambda m, k, n: [(4, m, k), (4, k, n)]),
    "mv": (lambda a, b: a @ b, lambda m, k, n: [(m, k), (k,)]),
    "dot": (torch.dot, lambda m, k, n: [(k,), (k,)]),
    "einsum": (
        lambda a, b: torch.einsum("bmk,kn->bmn", a, b),
        lambda m, k, n: [(2, m, k), (k, n)],
    ),
    "einsum heads": (
        lambda a, b: torch.einsum("bhm,bhn->hmn", a, b),
        lambda m, k, n: [(2, k, m), (2, k, n)],
    ),
}


@pytest.mark.parametrize("name", PRODUCTS)
@settings(**SOME)
@given(data=st.data(), m=sizes, k=sizes, n=sizes)
def test_products(name: str, data: st.DataObject, m: int, k: int, n: int) -> None:
    function, shapes = PRODUCTS[name]
    made = [data.draw(operand(s, seed=i)) for i, s in enumerate(shapes(m, k, n))]
    check(lambda *args: function(*args), made)


@settings(**SOME)
@given(data=st.data(), m=sizes, n=sizes)
def test_a_product_with_a_bias(data: st.DataObject, m: int, n: int) -> None:
    shapes = [(m, 4), (n, 4), (n,)]
    made = [data.draw(operand(s, "ESP", seed=i)) for i, s in enumerate(shapes)]
    check(lambda x, w, b: F.linear(x, w, b), made)


@settings(**SOME)
@given(data=st.data(), groups=st.sampled_from([1, 2]), bias=st.booleans())
def test_convolutions(data: st.DataObject, groups: int, bias: bool) -> None:
    shapes = [(4, 4, 5, 5), (4, 4 // groups, 3, 3)] + [(4,)] * bias
    made = [data.draw(operand(s, "ESP", seed=i)) for i, s in enumerate(shapes)]
    check(lambda x, w, b=None: F.conv2d(x, w, b, padding=1, groups=groups), made)


POOLS = {
    "avg": lambda x: F.avg_pool2d(x, 2),
    "max": lambda x: F.max_pool2d(x, 2),
    "adaptive": lambda x: F.adaptive_avg_pool2d(x, 1),
}


@pytest.mark.parametrize("name", POOLS)
@settings(**FEW)
@given(data=st.data())
def test_pooling(name: str, data: st.DataObject) -> None:
    check(POOLS[name], [data.draw(operand((4, 4, 4, 4)))])


def attention(causal):
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal)


@settings(**SOME)
@given(data=st.data(), causal=st.booleans())
def test_attention(data: st.DataObject, causal: bool) -> None:
    made = [data.draw(operand((4, 4, 4, 4), "ESP", seed=i)) for i in range(3)]
    check(attention(causal), made)


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_attention_of_shards(dim) -> None:
    whole = [torch.randn(4, 4, 4, 4, dtype=F64) for _ in range(3)]
    kinds = [shard(dim)] + [shard(dim) if dim < 2 else EQUAL] * 2
    values = [parts(t, kind) for t, kind in zip(whole, kinds, strict=True)]
    assert check(attention(False), values) == [shard(dim)]


def value(kind, *shape):
    return parts(torch.randn(shape, dtype=F64), kind)


KNOWN = [
    (shard(1), shard(0), "P"),
    (shard(0), EQUAL, "S(0)"),
    (EQUAL, shard(1), "S(1)"),
    (PARTIAL, EQUAL, "P"),
    (EQUAL, PARTIAL, "P"),
    (PARTIAL, PARTIAL, "LS502"),
    (shard(0), shard(1), "LS517"),
    (VARYING, EQUAL, "V"),
]


@pytest.mark.parametrize(("a", "b", "want"), KNOWN)
def test_what_a_product_gives(a, b, want) -> None:
    kinds, faults, _, _ = typed(torch.mm, [value(a, 4, 4), value(b, 4, 4)])
    assert (faults[0].code if faults else repr(kinds[0])) == want
