"""Digests of tensors' bits: equal for equal bits, other for others, whatever the layout."""

from __future__ import annotations

import itertools

import pytest
import torch

from lockstep.run import bits
from lockstep.run.bits import digest


def test_equal_bits_have_one_digest_whatever_the_layout():
    x = torch.arange(12.0).reshape(3, 4)
    assert digest(x) == digest(x.clone()) == digest(x.t().contiguous().t())
    assert digest(x.requires_grad_()) == digest(x.detach())
    assert digest(torch.zeros(1).expand(5)) == digest(torch.zeros(5))
    assert digest(torch.ones(9, dtype=torch.uint8)[1:]) == digest(torch.ones(8, dtype=torch.uint8))


KINDS = [torch.float64, torch.float32, torch.bfloat16, torch.complex64, torch.int64, torch.int8]


@pytest.mark.parametrize("dtype", [*KINDS, torch.bool])
def test_one_changed_element_or_two_exchanged_ones_change_it(dtype):
    x = torch.arange(7).remainder(2).to(dtype)
    for at in range(7):
        other = x.clone()
        other[at] = ~x[at] if dtype is torch.bool else x[at] + 1
        assert digest(other) != digest(x)
    for one, two in itertools.combinations(range(7), 2):
        if x[one] != x[two]:
            other = x.clone()
            other[[one, two]] = x[[two, one]]
            assert digest(other) != digest(x)


def test_bits_count_and_not_values():
    assert digest(torch.tensor(0.0)) != digest(torch.tensor(-0.0))
    assert digest(torch.tensor(float("nan"))) == digest(torch.tensor(float("nan")))
    assert digest(torch.zeros(2)) != digest(torch.zeros(2, dtype=torch.int32))
    assert digest(torch.zeros(2, 3)) != digest(torch.zeros(3, 2))
    assert digest(torch.empty(0)) == "torch.float32 [0]" != digest(torch.empty(0, 2))


def test_a_change_is_seen_in_any_part_of_a_large_tensor(monkeypatch):
    monkeypatch.setitem(bits._CHUNK, "cpu", 4)
    x = torch.zeros(21, dtype=torch.int64)
    found = {digest(x)}
    for at in range(21):
        x[at] = 1
        found.add(digest(x))
    assert len(found) == 22
    whole = torch.cat([torch.ones(4), torch.zeros(4)]).to(torch.int64)
    assert digest(whole) != digest(whole.flip(0)), "parts that are exchanged"
