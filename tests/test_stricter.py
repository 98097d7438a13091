"""An operator that computes what torch's rule for its shapes refuses: told apart from a mistake."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.functional import grouped_mm

from lockstep.capture import stricter
from lockstep.capture.capture import capture
from lockstep.errors import CaptureError

ROWS, WIDE = 8, 16


def grouped(x: torch.Tensor, weight: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    return grouped_mm(x, weight, offs=ends)


def made(dtype: torch.dtype = torch.float32, wide: int = WIDE) -> list[Any]:
    ends = torch.tensor([3, ROWS], dtype=torch.int32)
    return [torch.ones(ROWS, WIDE, dtype=dtype), torch.ones(2, wide, WIDE, dtype=dtype), ends]


def test_a_rule_that_is_stricter_than_its_operator_is_refused_in_words() -> None:
    assert grouped(*made()).shape == (ROWS, WIDE)  # eager has no objection
    with pytest.raises(CaptureError) as caught:
        capture(grouped, *made())
    told = str(caught.value)
    assert "shapes of aten._grouped_mm.default refuses what the operator computes" in told
    assert "at   tests/test_stricter.py:" in told and "got torch.float32" in told
    assert "give it the dtype that the rule asks for" in told


def test_the_dtype_that_the_rule_asks_for_is_captured() -> None:
    assert capture(grouped, *made(torch.bfloat16)).gm is not None


@pytest.mark.parametrize("wide", [WIDE, WIDE + 1])
def test_what_eager_refuses_too_stays_the_step_s_own_error(wide: int) -> None:
    def step(x: torch.Tensor, weight: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        return x @ weight[0].t()[: WIDE - 1] if wide == WIDE else grouped(x, weight, ends)

    with pytest.raises(RuntimeError) as caught:
        capture(step, *made(wide=wide))
    assert not isinstance(caught.value, CaptureError)


def test_what_is_too_large_to_be_tried_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stricter, "MOST_ELEMENTS", 10)
    with pytest.raises(RuntimeError, match="Expected mat_a") as caught:
        capture(grouped, *made())
    assert not isinstance(caught.value, CaptureError)


def test_an_error_of_no_rule_is_none_of_these() -> None:
    assert stricter.stricter_rule(ValueError("mine")) is None
