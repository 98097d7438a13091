"""A captured graph that lost something is refused on every rank; what lost nothing trains the same.

The scripts are in `eager_check.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.cli import main
from tests.ranks.launch import Ended, Torchrun

SCRIPT = "tests.ranks.eager_check"
LIMIT = 15.0  # seconds from the report of the failure until no process is left


@pytest.fixture(scope="module")
def torchrun() -> Iterator[Torchrun]:
    with Torchrun() as launcher:
        yield launcher


def refused(torchrun: Torchrun, name: str, folder: Path, *texts: str) -> Ended:
    """Every rank ends with these texts, in time; nothing is stored."""
    ended = torchrun.run(SCRIPT, name, folder=folder)
    assert ended.code == 1, ended.report()
    assert len(ended.codes) == 2 and 0 not in ended.codes.values(), ended.report()
    assert ended.told is not None and ended.told < LIMIT, ended.report()
    for printed in ended.texts:
        for text in texts:
            assert text in printed, f"{text!r} is missing\n{ended.report()}"
    assert list((folder / "store").glob("*.lockstep")) == []
    return ended


def test_a_whole_graph_trains_the_same_with_the_comparison_and_without(
    torchrun: Torchrun, tmp_path: Path
) -> None:
    ended = torchrun.run(SCRIPT, "passes", folder=tmp_path)
    assert ended.code == 0, ended.report()
    for rank, found in enumerate(ended.results):
        assert found["on"] == found["off"]
        assert found["on"]["calls"] == (4 if rank == 0 else 0), "once a call, and not once more"
        assert found["frozen"]
        assert {one["result"] for one in found["eager"].values()} == {"equal"}
        assert found["eager"]["through_work"]["collectives"] == {
            "all_gather over dp": 1,
            "all_reduce over dp": 5,
        }
        assert found["eager"]["evaluated"]["collectives"] == {"all_reduce over dp": 1}
    assert ended.texts[0].count("logged ") == ended.texts[0].count("printed ") == 8
    assert ended.texts[1].count("printed ") == 8
    eager = ended.of("eager")
    assert sorted((row["step"], row["rank"]) for row in eager) == [
        (step, rank) for step in ("evaluated", "through_work", "whole") for rank in (0, 1)
    ]


def test_reductions_below_python_are_missed(torchrun: Torchrun, tmp_path: Path) -> None:
    refused(
        torchrun,
        "hidden",
        tmp_path,
        "LS420: the captured graph of hidden.<locals>.step does not do what hidden.<locals>.step ",
        "at   model.up.weight.grad",
        "all_reduce over dp: 6 in the step, 0 in the graph: 6 missing",
        "on ranks 0, 1",
    )


def test_a_lost_collective_is_named_with_the_first_gradient(
    torchrun: Torchrun, tmp_path: Path
) -> None:
    refused(
        torchrun,
        "collective",
        tmp_path,
        "LS420: the captured graph of through_work does not do what through_work does",
        "at   model.up.weight.grad",
        "all_reduce over dp: 6 in the step, 0 in the graph: 6 missing",
        'ls.compile(eager_check="off")',
    )


def test_another_reduction_is_seen_where_no_value_shows_it(
    torchrun: Torchrun, tmp_path: Path
) -> None:
    ended = refused(
        torchrun,
        "reduction",
        tmp_path,
        "LS420: the captured graph of averaged does not do what averaged does",
        "all_reduce avg over dp: 6 in the step, 0 in the graph: 6 missing",
        "all_reduce max over dp: 0 in the step, 6 in the graph: 6 extra",
    )
    assert "other bits" not in ended.texts[0]


def test_a_lost_hook_is_named_by_its_parameter(torchrun: Torchrun, tmp_path: Path) -> None:
    ended = refused(
        torchrun,
        "hook",
        tmp_path,
        "LS420: the captured graph of through_work does not do what through_work does",
        "at   model.down.weight.grad",
        "more than rounding in 1 gradient(s): model.down.weight.grad",
    )
    assert "missing" not in ended.texts[0] and "extra" not in ended.texts[0]


def test_a_step_that_fails_on_one_rank_ends_all(torchrun: Torchrun, tmp_path: Path) -> None:
    ended = refused(torchrun, "raises", tmp_path, "a batch that the user's operator refuses")
    assert "rank 1 failed while running raises.<locals>.step eagerly" in ended.texts[0]


SCRIPT_OF_CHECK = str(Path(__file__).with_name("eager_script.py"))


def test_the_verb_compares_alone_and_keeps_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LOCKSTEP_STORE", str(tmp_path / "store"))
    assert main(["check", "--eager", SCRIPT_OF_CHECK]) == 0
    train, evaluate, never = capsys.readouterr().out.splitlines()
    assert train.startswith("train_step: its graph gave the bits of the step: ")
    assert evaluate.startswith("evaluate: its graph gave the bits of the step: ")
    assert evaluate.endswith(" values on each of 2 ranks; all_reduce over dp 1 times")
    assert never == "never was not called, and is not compared"
    assert not (tmp_path / "store").exists()


def test_the_verb_names_what_a_graph_lost(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--eager", SCRIPT_OF_CHECK, "--", "hidden"]) == 1
    out = capsys.readouterr().out
    assert out.startswith("train_step:\nLS420: the captured graph of train_step does not do what ")
    assert "  at   model.weight.grad\n" in out
    assert "all_reduce over dp: 2 in the step, 0 in the graph: 2 missing" in out
    assert "evaluate was not called, and is not compared" in out


def test_questions_of_the_verb_that_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--eager", "--capture", SCRIPT_OF_CHECK]) == 2
    assert "--capture and --eager are two questions" in capsys.readouterr().err
    assert main(["check", "--eager", "--json", SCRIPT_OF_CHECK]) == 2
    assert "LS001: --eager prints text" in capsys.readouterr().err
