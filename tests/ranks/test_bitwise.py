"""The quick part of `python -m tests.bitwise`, and that its comparison can fail."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from tests.bitwise.compare import count, first_difference, largest_difference, same
from tests.ranks.launch import ROOT


def test_quick_on_two_ranks() -> None:
    command = [sys.executable, "-m", "tests.bitwise", "--ranks", "2", "--quick"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.strip().splitlines()[-3:]
    assert lines[0] == "graph = eager: 2 of 2 cases, 243,395 numbers a rank"
    assert lines[1] == "another seed differs: 1 of 1 cases, 156,802 numbers a rank"
    assert lines[2] == "by one rank; the others load: 1 of 1 cases"


ONE = torch.tensor([1.0, 2.0])


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (ONE.nextafter(ONE + 1), "step 2, loss: 2 of 2 values differ, by at most 2.38e-07"),
        (ONE.double(), "step 2, loss: torch.float32 [2] against torch.float64 [2]"),
        (ONE[:1], "step 2, loss: torch.float32 [2] against torch.float32 [1]"),
    ],
)
def test_a_difference_is_told(other: torch.Tensor, text: str) -> None:
    same_first = [{"loss": ONE}]
    assert first_difference([*same_first, {"loss": ONE}], [*same_first, {"loss": other}]) == text


def test_what_only_one_run_has_is_told() -> None:
    assert first_difference([{"loss": ONE}], []) == "1 steps against 0"
    both = first_difference([{"loss": ONE}], [{"loss": ONE, "grad w": ONE}])
    assert both == "step 1: only one has grad w"


def test_bits_not_values_are_compared() -> None:
    nan = torch.tensor(float("nan"))
    assert same(nan, nan.clone()) and not same(torch.tensor(0.0), torch.tensor(-0.0))
    assert same(ONE.view(1, 2).T, ONE.view(2, 1)), "strides are not numbers"


def test_figures() -> None:
    runs = [{"loss": ONE, "grad w": ONE}], [{"loss": ONE, "grad w": ONE + 0.5}]
    assert count(runs[0]) == 4
    assert largest_difference(*runs) == 0.5 and largest_difference(*runs, prefix="loss") == 0.0
