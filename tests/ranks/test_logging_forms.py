"""Rank-only logging in a step: on two real ranks, kept, built and loaded; else refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.logging_forms import kept, refused
from tests.logging_forms.judge import Launch, launch, refusal
from tests.ranks.launch import Torchrun

ALONE = ("ls_log_in_order", "ls_on_rank_method", "several_ranks", "before_and_after_a_write")


@pytest.fixture(scope="module")
def launches(tmp_path_factory: pytest.TempPathFactory) -> list[Launch]:
    """The same job twice: from an empty store, and from what it left."""
    folder: Path = tmp_path_factory.mktemp("logging_forms")
    with Torchrun() as torchrun:
        return [
            launch(torchrun, folder / when, 2, folder / "store", "graph,graph:all", *ALONE)
            for when in ("built", "loaded")
        ]


def test_each_rank_tells_what_it_tells_eagerly(launches: list[Launch]) -> None:
    for made in launches:
        assert made.found == dict.fromkeys([*ALONE, "all, by graph"], "equal")


def test_a_restart_that_loads_tells_the_same(launches: list[Launch]) -> None:
    built, loaded = launches
    assert built.roles == {("built", "loaded")}
    assert loaded.roles == {("loaded", "loaded")}
    assert built.digests and loaded.digests


@pytest.mark.parametrize(
    ("form", "text"), refused.FORMS, ids=lambda value: getattr(value, "__name__", str(value))[:30]
)
def test_refused_at_its_line(form: Any, text: str) -> None:
    row = refusal(form, text)
    assert row.became == "refused", row.told


def test_a_form_that_is_kept_would_be_seen_where_it_should_be_refused() -> None:
    row = refusal(kept.f_string, "no such text")
    assert row.became == "baked"
