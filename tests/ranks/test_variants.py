"""Whatever changes around a step is a new variant by a vote, and right; going back reuses the old.

The calls are in `variants.py`; each says whether it is a new variant or one that is known.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.ranks.launch import Ended, Torchrun


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    with Torchrun() as torchrun:
        folder = tmp_path_factory.mktemp("variants")
        ended = torchrun.run("tests.ranks.variants", folder=folder, limit=180)
    assert ended.code == 0, ended.report()
    return ended


def test_both_ranks_saw_the_same(ended: Ended) -> None:
    assert ended.results[0] == ended.results[1]
    assert len(ended.results[0]) == 41


def test_every_call_has_the_bits_of_eager(ended: Ended) -> None:
    wrong = [row["what"] for row in ended.results[0] if not row["right"]]
    assert wrong == ["twin: another seed"]


def test_new_ones_are_voted_on_and_known_ones_reused(ended: Ended) -> None:
    ready = {"train_step": 0, "logits": 0}
    odd: list[Any] = []
    for row in ended.results[0]:
        before = ready[row["step"]]
        ready[row["step"]] = before + row["what"].startswith("new")
        if row["variants"] != ready[row["step"]]:
            odd.append((row["what"], before, row["variants"]))
            ready[row["step"]] = row["variants"]
    assert odd == []
    assert ready == {"train_step": 18, "logits": 3}


def test_each_variant_is_built_by_one_rank_and_loaded_by_the_other(ended: Ended) -> None:
    variants = {(e["step"], e["variant"]) for e in ended.of("ready")}
    assert len(variants) == 21
    for step, variant in variants:
        pair = ended.of("ready", step=step, variant=variant)
        assert sorted(event["role"] for event in pair) == ["built", "loaded"], (step, variant)
        assert pair[0]["digest"] == pair[1]["digest"], (step, variant)
