"""What an obstacle in an installed package's own file says first: the package's other way."""

from __future__ import annotations

import linecache
from typing import Any

import pytest
import torch

from lockstep.capture import libraries
from lockstep.capture.capture import capture
from lockstep.capture.libraries import WAYS, Way, ways
from lockstep.errors import CaptureError

FILE = "tests/test_libraries.py"


@pytest.mark.parametrize("row", WAYS, ids=lambda row: f"{row.file} {row.words}")
def test_each_row_is_found_by_its_file_and_its_words(row: Way) -> None:
    package = row.file.partition("/")[0]
    assert f"in {package}: {row.way}" in ways(f"{row.file}:81", f"for x {row.words}:")
    assert ways(f"mine/{row.file}:81", row.words) == []
    if row.words:
        assert f"in {package}: {row.way}" not in ways(f"{row.file}:81", "for x in xs:")


def test_no_place_has_no_way() -> None:
    assert ways(None, "for expert_idx in expert_hit:") == []


def loop(x: torch.Tensor) -> torch.Tensor:
    for row in x.nonzero():
        x = x + row.sum()
    return x


TABLES = {"scale": torch.ones(3)}


def looked_up(x: torch.Tensor) -> torch.Tensor:
    return x * TABLES["scale"]


@pytest.mark.parametrize("step", [loop, looked_up])
def test_an_obstacle_says_the_package_s_way_first(step: Any, monkeypatch: Any) -> None:
    with pytest.raises(CaptureError) as caught:
        capture(step, torch.ones(3))
    assert not any(fix.startswith("in tests:") for fix in caught.value.fixes)
    where = caught.value.where or ""
    words = linecache.getline(__file__, int(where.rpartition(":")[2])).strip()
    monkeypatch.setattr(libraries, "WAYS", (Way(FILE, words, "take the other way"),))
    with pytest.raises(CaptureError) as caught:
        capture(step, torch.ones(3))
    assert caught.value.fixes[0] == "in tests: take the other way"
    assert len(caught.value.fixes) > 1
