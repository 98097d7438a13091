"""Ranks whose data run out at different steps train as one process over all the data would."""

from __future__ import annotations

import pytest

from tests.ranks.launch import Ended, Torchrun
from tests.uneven import BARS, rows_of, table


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    with Torchrun() as torchrun:
        folder = tmp_path_factory.mktemp("uneven")
        ended = torchrun.run("tests.ranks.uneven", folder=folder, world=4, limit=180)
    assert ended.code == 0, ended.report()
    return ended


def test_every_rank_takes_part_in_every_step(ended: Ended) -> None:
    samples = [
        [row["samples"] for row in rows_of(ended, rank, "torch.float32")] for rank in range(4)
    ]
    assert [row[:10] for row in samples] == [
        [4] * 10,
        [4] * 9 + [0],
        [4] * 8 + [3, 0],
        [4] * 7 + [0, 0, 0],
    ]
    assert [row[10:] for row in samples] == [row[:10] for row in samples]  # the second pass


def test_every_batch_has_the_declared_size(ended: Ended) -> None:
    rows = [row for rank in range(4) for dtype in BARS for row in rows_of(ended, rank, dtype)]
    assert len(rows) == 160
    assert {row["size"] for row in rows} == {4}


@pytest.mark.parametrize(("dtype", "bar"), list(BARS.items()))
def test_loss_and_gradients_are_those_of_one_process_over_the_union(
    ended: Ended, dtype: str, bar: float
) -> None:
    worst = max(row["far"] for rank in range(4) for row in rows_of(ended, rank, dtype))
    assert worst < bar


def test_one_artifact_for_all_steps(ended: Ended) -> None:
    ready = ended.of("ready")
    assert len({event["digest"] for event in ready}) == 2  # one a dtype
    assert sorted(event["role"] for event in ready) == ["built"] * 2 + ["loaded"] * 6


def test_the_table_fails_where_a_gradient_is_off(ended: Ended) -> None:
    assert table(ended)[0]
    ended.results[1]["torch.float64"][3]["far"] *= 1e6
    ended.results[1]["torch.float64"][3]["far"] += 1e-9
    assert not table(ended)[0]


@pytest.fixture(scope="module")
def torchrun() -> Torchrun:  # type: ignore[misc]
    with Torchrun() as torchrun:
        yield torchrun


def test_a_rank_that_stays_away_is_waited_for_only_so_long(tmp_path, torchrun) -> None:
    ended = torchrun.run("tests.ranks.uneven_ends", "stays", folder=tmp_path, limit=60)
    assert ended.code != 0
    assert (
        "LS400: not all ranks came to batch 4 of ls.even_batches within 2 s\n" in ended.texts[0]
    ), ended.report()
    assert "rank 0 failed while waiting for all ranks at batch 4" in ended.texts[1]


def test_a_loader_that_fails_is_named_on_every_rank(tmp_path, torchrun) -> None:
    ended = torchrun.run("tests.ranks.uneven_ends", "fails", folder=tmp_path, limit=60)
    told = "rank 1 failed while reading batch 4 of its loader: OSError: shard 3 is not there"
    assert ended.code != 0
    assert told in ended.texts[0], ended.report()
    assert "OSError: shard 3 is not there" in ended.texts[1]
