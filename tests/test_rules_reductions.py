"""Sums, softmax, norms and losses: each inferred kind holds on simulated ranks."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.checker.inference.kinds import EQUAL, PARTIAL, shard
from tests.rule_numbers import F64, FEW, check, integers, operand, parts, sizes, typed

ONE = {
    "sum": lambda x: x.sum(),
    "sum 0": lambda x: x.sum(0),
    "sum kept": lambda x: x.sum(1, keepdim=True),
    "sum two": lambda x: x.sum((0, 2)),
    "mean": lambda x: x.mean(),
    "mean last": lambda x: x.mean(-1, keepdim=True),
    "amax": lambda x: x.amax(1),
    "max": lambda x: x.max(2)[0],
    "logsumexp": lambda x: torch.logsumexp(x, 2),
    "norm": lambda x: torch.linalg.vector_norm(x, dim=1),
    "var": lambda x: x.var(2),
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(1),
    "topk": lambda x: x.topk(2, 2)[0],
    "sort": lambda x: x.sort(2)[0],
    "layer_norm": lambda x: F.layer_norm(x, x.shape[2:]),
    "group_norm": lambda x: F.group_norm(x, 2),
    "rms_norm": lambda x: F.rms_norm(x, x.shape[2:]),
    "prod": lambda x: x.prod(2),
}


@pytest.mark.parametrize("name", ONE)
@settings(**FEW)
@given(data=st.data(), a=sizes, b=sizes)
def test_one_operand(name: str, data: st.DataObject, a: int, b: int) -> None:
    check(ONE[name], [data.draw(operand((a, b, 4)))])


NORMS = {
    "layer_norm": lambda x, w, b: F.layer_norm(x, (x.shape[1],), w, b),
    "rms_norm": lambda x, w, b: F.rms_norm(x, (x.shape[1],), w) + b,
    "batch_norm": lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
    "batch_norm eval": lambda x, w, b: F.batch_norm(
        x, b.detach() * 0, b.detach() * 0 + 1, w, b, training=False
    ),
}


@pytest.mark.parametrize("name", NORMS)
@settings(**{**FEW, "max_examples": 6})
@given(data=st.data(), m=sizes, n=sizes)
def test_norms_with_weights(name: str, data: st.DataObject, m: int, n: int) -> None:
    shapes = [(m, n), (n,), (n,)]
    check(NORMS[name], [data.draw(operand(s, "ESP", seed=i)) for i, s in enumerate(shapes)])


LOSSES = {
    "cross_entropy": lambda x, y: F.cross_entropy(x, y),
    "cross_entropy sum": lambda x, y: F.cross_entropy(x, y, reduction="sum"),
    "cross_entropy rows": lambda x, y: F.cross_entropy(x, y, reduction="none"),
}


@pytest.mark.parametrize("name", LOSSES)
@settings(**{**FEW, "max_examples": 6})
@given(data=st.data(), m=sizes, n=sizes)
def test_losses(name: str, data: st.DataObject, m: int, n: int) -> None:
    check(LOSSES[name], [data.draw(operand((m, n))), data.draw(integers((m,), 2))])


@settings(**{**FEW, "max_examples": 8})
@given(data=st.data(), how=st.sampled_from(["mean", "sum", "none"]), n=sizes)
def test_distances(data: st.DataObject, how: str, n: int) -> None:
    a, b = data.draw(operand((4, n))), data.draw(operand((4, n), seed=1))
    check(lambda x, y: F.mse_loss(x, y, reduction=how), [a, b])


def value(kind, *shape):
    return parts(torch.randn(shape, dtype=F64), kind)


KNOWN = [
    ("sum", shard(1), "P"),
    ("sum 0", shard(0), "P"),
    ("sum 0", shard(1), "S(0)"),
    ("sum kept", shard(2), "S(2)"),
    ("mean", shard(0), "P(mean)"),
    ("mean", PARTIAL, "P"),
    ("amax", shard(1), "V"),
    ("softmax", shard(1), "S(1)"),
    ("layer_norm", shard(0), "S(0)"),
    ("logsumexp", shard(0), "S(0)"),
]


@pytest.mark.parametrize(("name", "kind", "want"), KNOWN)
def test_what_stays_known(name, kind, want) -> None:
    kinds, faults, _, _ = typed(ONE[name], [value(kind, 4, 4, 4)])
    assert (repr(kinds[0]), faults) == (want, [])


@pytest.mark.parametrize("name", ["softmax", "layer_norm"])
def test_a_normalisation_over_a_shard_is_told(name) -> None:
    _, faults, _, _ = typed(ONE[name], [value(shard(2), 4, 4, 4)])
    assert [fault.code for fault in faults] == ["LS519"]
    assert not typed(ONE[name], [value(shard(0), 4, 4, 4)])[1]


def test_the_gradient_of_a_norms_weight_is_partial_where_the_rows_are_shards() -> None:
    def backward(g, x, w):
        leaf = w.detach().requires_grad_()
        return torch.autograd.grad(F.layer_norm(x, (4,), leaf), leaf, g)

    values = [value(shard(0), 4, 4), value(shard(0), 4, 4), value(EQUAL, 4)]
    assert repr(typed(backward, values)[0]) == "[P]"
    values[0], values[1] = value(EQUAL, 4, 4), value(EQUAL, 4, 4)
    assert repr(typed(backward, values)[0]) == "[R|I]"
