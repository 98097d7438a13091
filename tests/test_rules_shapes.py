"""Views, slices, pieces and joins: each inferred kind holds on simulated ranks."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.checker.inference.kinds import EQUAL, PARTIAL, shard
from lockstep.checker.inference.rules.views import reshaped
from tests.rule_numbers import F64, FEW, check, operand, parts, sizes, typed

THREE = {
    "fold": lambda x: x.reshape(-1, x.shape[2]),
    "flat": lambda x: x.reshape(-1),
    "join last": lambda x: x.reshape(x.shape[0], -1),
    "heads": lambda x: x.unflatten(2, (-1, 2)),
    "transposed": lambda x: x.transpose(0, 2),
    "permuted": lambda x: x.permute(2, 0, 1),
    "folded transposed": lambda x: x.transpose(0, 1).reshape(-1, x.shape[2]),
    "expanded": lambda x: x.unsqueeze(1).expand(-1, 3, -1, -1),
    "unsqueezed": lambda x: x.unsqueeze(-1),
    "squeezed": lambda x: x.unsqueeze(0).squeeze(0),
    "rows": lambda x: x[:, 1:],
    "one": lambda x: x[0],
    "last": lambda x: x.select(2, 1),
    "narrow": lambda x: x.narrow(2, 0, 2),
    "halves": lambda x: x.chunk(2, 1)[0],
    "split": lambda x: x.split(2, 2)[1],
    "unbound": lambda x: x.unbind(1)[0],
    "rotated": lambda x: torch.cat([-x.chunk(2, 2)[1], x.chunk(2, 2)[0]], 2),
    "stacked": lambda x: torch.stack([x, 2 * x], 1),
    "twice": lambda x: torch.cat([x, x], 1),
    "padded": lambda x: F.pad(x, (1, 1)),
    "padded rows": lambda x: F.pad(x, (0, 0, 2, 0)),
    "repeated": lambda x: x.repeat(1, 2, 1),
    "flipped": lambda x: x.flip(1),
    "contiguous": lambda x: x.transpose(1, 2).contiguous(),
}


@pytest.mark.parametrize("name", THREE)
@settings(**FEW)
@given(data=st.data(), a=sizes, b=sizes, c=sizes)
def test_shapes(name: str, data: st.DataObject, a: int, b: int, c: int) -> None:
    check(THREE[name], [data.draw(operand((a, b, c)))])


@settings(**{**FEW, "max_examples": 8})
@given(data=st.data(), n=sizes, dim=st.sampled_from([0, 1]))
def test_joins_of_two(data: st.DataObject, n: int, dim: int) -> None:
    a, b = data.draw(operand((4, n))), data.draw(operand((4, n), seed=1))
    check(lambda x, y: torch.cat([x, y], dim), [a, b])


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(st.data())
def test_a_reshape_moves_a_shard_to_where_its_blocks_are(data: st.DataObject) -> None:
    old = tuple(data.draw(st.lists(st.sampled_from([1, 2, 3]), min_size=1, max_size=3)))
    dim = data.draw(st.integers(0, len(old) - 1))
    count = 2
    whole = (*old[:dim], old[dim] * count, *old[dim + 1 :])
    numbers = torch.arange(torch.Size(whole).numel()).reshape(whole)
    local = numbers.chunk(count, dim)
    divisors = [d for d in range(1, local[0].numel() + 1) if local[0].numel() % d == 0]
    first = data.draw(st.sampled_from(divisors))
    new = (first, local[0].numel() // first)
    found = reshaped(shard(dim), old, new)
    if found is None:
        return
    at, before = found
    cut = (*new[:at], before, -1, *new[at + 1 :])
    made = torch.cat([t.reshape(new).reshape(cut) for t in local], at + 1)
    assert torch.equal(made.flatten(), numbers.flatten())


KNOWN = [
    ("fold", shard(0), "S(0)"),
    ("fold", shard(1), "S(0)"),
    ("fold", shard(2), "S(1)"),
    ("heads", shard(2), "S(2)"),
    ("permuted", shard(2), "S(0)"),
    ("one", shard(1), "S(0)"),
    ("rows", shard(0), "S(0)"),
    ("rows", shard(1), "V"),
    ("halves", PARTIAL, "P"),
    ("padded", PARTIAL, "P"),
    ("stacked", shard(1), "S(2)"),
    ("twice", PARTIAL, "P"),
    ("rotated", shard(0), "S(0)"),
    ("expanded", shard(1), "S(2)"),
]


@pytest.mark.parametrize(("name", "kind", "want"), KNOWN)
def test_what_stays_known(name, kind, want) -> None:
    x = parts(torch.randn(4, 4, 4, dtype=F64), kind)
    kinds, faults, _, _ = typed(THREE[name], [x])
    assert (repr(kinds[0]), faults) == (want, [])


def test_two_equal_pieces_are_equal() -> None:
    x = parts(torch.randn(4, 4, dtype=F64), EQUAL)
    assert check(lambda t: t.chunk(2)[0] + t.chunk(2)[1], [x]) == [EQUAL]
