"""The checker on layouts: right ones are silent, and one that lacks a collective is named."""

from __future__ import annotations

import pytest

from tests.mutants.judged import check, judge_right
from tests.mutants.sites import sites, without
from tests.parallel.layouts import case

STAGES = "pp2, two micro-batches"


@pytest.mark.parametrize(
    "name", ["fsdp2 x tp2+sp", "cp2", "experts, ep2", "fsdp2, gathered once", STAGES]
)
def test_a_right_layout_is_silent(name):
    right = judge_right(case(name))
    assert right.silent, right.report
    assert right.called


@pytest.mark.parametrize(
    ("verb", "file", "name"),
    [
        ("all_reduce", "data", "dp2"),
        ("convert", "sequence", "tp2+sp"),
        ("all_gather", "context", "cp2"),
        ("reduce_scatter", "fully_sharded", "fsdp2, gathered once"),
        ("all_reduce", "pipeline", STAGES),
    ],
)
def test_what_is_left_out_is_found(verb, file, name):
    site = [s for s in sites() if s.verb == verb and s.module.endswith(file)][-1]
    with without(site):
        report = check(case(name))
    assert report.findings
    assert check_is_back(site)


def check_is_back(site):
    """Whether the package's code is as it was."""
    import importlib

    return "_left_out" not in vars(importlib.import_module(site.module))


def test_every_call_of_a_collective_is_a_site():
    found = sites()
    assert len(found) >= 20 and len({(s.file, s.line, s.column) for s in found}) == len(found)
    assert {s.verb for s in found} == {
        "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "convert"
    }  # fmt: skip
