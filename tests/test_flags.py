"""torch's global flags are part of what makes two programs one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from lockstep.build.flags import global_flags

CHANGES: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "flag mkldnn": (
        lambda: torch.backends.mkldnn.set_flags(False),
        lambda: torch.backends.mkldnn.set_flags(True),
    ),
    "flag attention kernels": (
        lambda: torch.backends.cuda.enable_math_sdp(False),
        lambda: torch.backends.cuda.enable_math_sdp(True),
    ),
    "flag default dtype": (
        lambda: torch.set_default_dtype(torch.float64),
        lambda: torch.set_default_dtype(torch.float32),
    ),
    "flag deterministic": (
        lambda: torch.use_deterministic_algorithms(True),
        lambda: torch.use_deterministic_algorithms(False),
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_flag_is_told(name: str) -> None:
    change, back = CHANGES[name]
    before = global_flags()
    change()
    try:
        after = global_flags()
    finally:
        back()
    assert [key for key in before if before[key] != after[key]] == [name]
    assert global_flags() == before
