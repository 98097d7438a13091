"""Rows by index: each inferred kind holds on simulated ranks."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.checker.inference.kinds import EQUAL, PARTIAL, VARYING, ZERO, Kind, shard
from tests.rule_numbers import F64, FEW, RANKS, Value, check, integers, operand, parts, sizes, typed

SOME = {**FEW, "max_examples": 6}
ROWS = {
    "embedding": lambda w, i: F.embedding(i, w),
    "index": lambda w, i: w[i],
    "index column": lambda w, i: w[:, i],
    "index_select": lambda w, i: w.index_select(0, i),
    "index_select 1": lambda w, i: w.index_select(1, i),
    "index_add": lambda w, i: torch.zeros(4, w.shape[1], dtype=F64).index_add(0, i, w),
    "index_put": lambda w, i: torch.zeros(4, w.shape[1], dtype=F64).index_put((i,), w, True),
    "by comparison": lambda w, i: (i.unsqueeze(1) == torch.arange(4)).double() @ w[:4],
}


@pytest.mark.parametrize("name", ROWS)
@settings(**SOME)
@given(data=st.data(), n=sizes)
def test_rows(name: str, data: st.DataObject, n: int) -> None:
    w, i = data.draw(operand((4, n))), data.draw(integers((4,), 2))
    check(ROWS[name], [w, i])


ALONG = {
    "gather": lambda x, i: x.gather(1, i),
    "scatter_add": lambda x, i: torch.zeros(x.shape, dtype=F64).scatter_add(1, i, x),
    "scatter_add 0": lambda x, i: torch.zeros(4, x.shape[1], dtype=F64).scatter_add(0, i, x),
    "scatter": lambda x, i: torch.zeros(x.shape, dtype=F64).scatter(1, i, x),
}


@pytest.mark.parametrize("name", ALONG)
@settings(**SOME)
@given(data=st.data(), n=sizes)
def test_along_a_dimension(name: str, data: st.DataObject, n: int) -> None:
    distinct = name == "scatter"
    x, i = data.draw(operand((4, n))), data.draw(integers((4, n), 2))
    if distinct:  # which of two values a place gets is not defined
        order = torch.stack([torch.randperm(n) for _ in range(4)])
        i = parts(order, i.kind)
    check(ALONG[name], [x, i])


def value(kind: Kind, *shape: int) -> Value:
    return parts(torch.randn(shape, dtype=F64), kind)


def ids(kind: Kind) -> Value:
    made = parts(torch.tensor([0, 1, 0, 1]), kind)
    if kind.tag == "V":
        made.locals = [torch.tensor([0, 1, 0, 1]), torch.tensor([1, 1, 0, 0])][:RANKS]
    return made


def masked(w, i):
    rows = F.embedding(i.clamp(0, 1), w)
    return rows * (i < 1).unsqueeze(-1)


def filled(w, i):
    return F.embedding(i.clamp(0, 1), w).masked_fill((i < 1).unsqueeze(-1), 0.0)


def chosen(w, i):
    return torch.where((i < 1).unsqueeze(-1), F.embedding(i.clamp(0, 1), w), 0.0)


def put(w, i):
    rows = F.embedding(i.clamp(0, 1), w)
    rows[i < 1] = 0.0
    return rows


@pytest.mark.parametrize("function", [masked, filled, chosen, put])
def test_a_lookup_in_shards_is_partial_once_it_is_masked(function) -> None:
    kinds, faults, _, _ = typed(function, [value(shard(0), 4, 3), ids(VARYING)])
    assert (repr(kinds[0]), faults) == ("P", [])
    bare = typed(ROWS["embedding"], [value(shard(0), 4, 3), ids(VARYING)])[0]
    assert (repr(bare[0]), bare[0].note) == ("V", "lookup")


KNOWN = [
    ("embedding", EQUAL, shard(0), "S(0)"),
    ("embedding", shard(1), EQUAL, "S(1)"),
    ("embedding", PARTIAL, EQUAL, "P"),
    ("index_add", shard(0), shard(0), "P"),
    ("index_add", PARTIAL, EQUAL, "P"),
    ("index", PARTIAL, EQUAL, "P"),
    ("index column", shard(0), EQUAL, "S(0)"),
]


@pytest.mark.parametrize(("name", "w", "i", "want"), KNOWN)
def test_what_stays_known(name, w, i, want) -> None:
    rows = 8 if name.startswith("index_add") and w.tag == "S" else 4
    index = parts(torch.arange(rows) % 2, i)
    kinds, faults, _, _ = typed(ROWS[name], [value(w, rows, 4), index])
    assert (repr(kinds[0]), faults) == (want, [])


def test_the_gradient_of_a_table_is_partial_where_the_indices_are_shards() -> None:
    def backward(g, w, i):
        leaf = w.detach().requires_grad_()
        return torch.autograd.grad(F.embedding(i, leaf), leaf, g)

    index = parts(torch.tensor([0, 1, 0, 1]), shard(0))
    assert repr(typed(backward, [value(shard(0), 4, 4), value(EQUAL, 4, 4), index])[0]) == "[P]"


def written(x, y):
    buffer = x.clone()
    buffer[:2] = y
    return buffer


def filled_up(x, y):
    buffer = torch.empty(4, 4, dtype=F64)
    buffer[:2].copy_(y)
    buffer[2:].copy_(y)
    return buffer + 0 * x


@pytest.mark.parametrize(
    ("x", "y", "want"), [(EQUAL, EQUAL, "R|I"), (EQUAL, VARYING, "V"), (PARTIAL, PARTIAL, "P")]
)
def test_a_write_into_a_part_types_the_whole_buffer(x, y, want) -> None:
    kinds, _, _, _ = typed(written, [value(x, 4, 4), value(y, 2, 4)])
    assert repr(kinds[0]) == want


def test_a_buffer_filled_piece_by_piece() -> None:
    assert check(filled_up, [value(EQUAL, 4, 4), value(EQUAL, 2, 4)], grads=False) == [EQUAL]
    kinds, _, _, _ = typed(filled_up, [value(EQUAL, 4, 4), value(VARYING, 2, 4)])
    assert repr(kinds[0]) == "V"


def test_zeros_fit_everything() -> None:
    kinds, faults, _, _ = typed(lambda x: torch.zeros_like(x) + x, [value(PARTIAL, 4, 4)])
    assert (repr(kinds[0]), faults) == ("P", [])
    assert typed(lambda x: x * torch.zeros_like(x), [value(PARTIAL, 4, 4)])[0][0] == ZERO
