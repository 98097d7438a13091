"""Whatever changes around a step is a new variant by a vote, and right; going back reuses the old.

The calls are in `variants.py`; each says whether it is a new variant or one that is known.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.ranks.launch import Ended, Torchrun


@pytest.fixture(scope="module")
def starts(tmp_path_factory: pytest.TempPathFactory) -> list[Ended]:
    """The script's first start and its second, with the store that the first one left."""
    folder = tmp_path_factory.mktemp("variants")
    env = {"LOCKSTEP_STORE": str(folder / "store")}
    with Torchrun() as torchrun:
        starts = [
            torchrun.run("tests.ranks.variants", folder=folder / name, limit=180, env=env)
            for name in ("first", "second")
        ]
    for ended in starts:
        assert ended.code == 0, ended.report()
    return starts


@pytest.fixture
def ended(starts: list[Ended]) -> Ended:
    return starts[0]


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


def test_the_next_start_loads_them_all(starts: list[Ended]) -> None:
    first, second = starts
    assert second.results == first.results
    assert {event["role"] for event in second.of("ready")} == {"loaded"}
    digests = [{e["digest"] for e in ended.of("ready")} for ended in starts]
    assert digests[0] == digests[1] and len(digests[0]) == 21
