"""No way to look at the rank is baked into a program; the ways are in `tests/rank_reads`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from lockstep.build.likeness import rows_of
from lockstep.capture.capture import capture
from lockstep.checker.world import simulated_rank
from tests.rank_reads import before, before_refused
from tests.rank_reads.judge import MESH, PORTABLE, REFUSED, before_step, portably, refusal
from tests.rank_reads.portable import plus_a_fraction
from tests.rank_reads.real import run_on_real_ranks


def test_one_program_is_right_on_four_real_ranks(tmp_path: Path) -> None:
    found = run_on_real_ranks(tmp_path)
    assert {found.pop(kind) for kind in ("Vocab", "EarlyVocab")} == {"equal, one artifact"}
    names = [form.__name__ for form in [*PORTABLE, *before.FORMS]]
    assert found == dict.fromkeys(names, "equal") and len(set(names)) == len(names)


@pytest.mark.parametrize("form", PORTABLE[::6], ids=lambda form: form.__name__)
def test_one_program_is_right_on_simulated_ranks(form: Any) -> None:
    assert portably(form).became == "portable"


@pytest.mark.parametrize(
    ("form", "text", "place"),
    REFUSED,
    ids=lambda value: getattr(value, "__name__", str(value))[:30],
)
def test_refused_at_its_line(form: Any, text: str, place: Any) -> None:
    row = refusal(form, text, place)
    assert row.became == "refused", row.told


@pytest.mark.parametrize("make", before.FORMS, ids=lambda make: make.__name__)
def test_a_formula_is_read_before_the_step(make: Any) -> None:
    row = before_step(make)
    assert row.became == "portable", row.told


@pytest.mark.parametrize(
    ("make", "text", "place"),
    before_refused.FORMS,
    ids=lambda value: getattr(value, "__name__", str(value))[:30],
)
def test_no_formula_is_read_before_the_step(make: Any, text: str, place: Any) -> None:
    row = before_step(make, text, place)
    assert row.became == "refused", row.told


def test_a_number_without_its_formula_would_be_seen() -> None:
    """What the ranks agree on, captured without it, is wrong on every rank but the first."""
    assert before_step(before.constructor, bakes=True).became == "baked: wrong on ranks [1, 2, 3]"


def test_a_function_has_one_name_in_all_processes() -> None:
    """Its address, as Python shows it, differs between two processes."""
    with simulated_rank(0, MESH) as mesh:
        rows = rows_of(capture(plus_a_fraction, torch.ones(2), mesh))
    assert any(row[2].startswith("%3 = sym_float(%2)") for row in rows)
    assert not any(" at 0x" in row[2] for row in rows)


def test_a_baked_rank_would_be_seen() -> None:
    """A read in a frame that counts as torch's gives this rank's number, which the graph keeps."""
    code = compile("lambda x, mesh: x * (1 + dist.get_rank())", torch.__file__, "eval")
    bakes = eval(code, {"dist": dist})
    bakes.__name__ = "bakes"
    assert portably(bakes).became == "baked: wrong on ranks [1, 2, 3]"
    assert refusal(bakes, "no such text", marks).became == "baked"


def marks() -> None:  # the line
    """A place to look for."""
