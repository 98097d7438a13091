"""What operators do to memory, by their schemas."""

from __future__ import annotations

import operator

import pytest
import torch

from lockstep.capture.schemas import (
    must_stay,
    returns_its_first_argument,
    view_of,
    written_arguments,
)

aten = torch.ops.aten


@pytest.mark.parametrize(
    ("target", "stays", "returned", "view", "written"),
    [
        (aten.add.Tensor, False, False, False, []),
        (aten.add_.Tensor, True, True, False, ["self"]),
        (aten.view.default, False, False, True, []),
        (aten.mm.out, True, False, False, ["out"]),
        (aten.bernoulli.default, True, False, False, []),
        (aten._assert_async.msg, True, False, False, []),
        (operator.getitem, False, False, False, []),
    ],
)
def test_an_operator(target, stays, returned, view, written):
    assert must_stay(target) is stays
    assert returns_its_first_argument(target) is returned
    assert view_of(target) is view
    assert written_arguments(target) == written


def test_a_collective_stays():
    assert must_stay(torch.ops._c10d_functional.wait_tensor.default)
