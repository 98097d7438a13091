"""The fleet under a real torchrun: its SIGTERM does not beat the message, a clean end is clean."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.ranks.launch import Ended, Torchrun


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Ended]]:
    with Torchrun() as torchrun:
        yield {
            how: torchrun.run(
                "tests.ranks.fleet_script",
                how,
                folder=tmp_path_factory.mktemp(how),
                env={"LOCKSTEP_TIMING": "", "TORCH_CPP_LOG_LEVEL": "ERROR"},  # our own defaults
            )
            for how in ("well", "uncaught", "exits")
        }


def test_a_clean_end_says_nothing(ends: dict[str, Ended]) -> None:
    ended = ends["well"]
    assert ended.code == 0, ended.report()
    assert ended.results == ["built", "loaded"]
    assert "LS" not in "".join(ended.texts) and ended.of("fault_seen") == []
    # Waiting costs no warning of torch's; what is printed is ours.
    lines = "".join(ended.texts).splitlines()
    assert all(line.startswith("[lockstep rank ") for line in lines), ended.report()


def test_torchruns_signal_does_not_beat_the_message(ends: dict[str, Ended]) -> None:
    ended = ends["uncaught"]
    assert ended.code == 1 and ended.gone < 15, ended.report()
    assert "ValueError: bad batch" in ended.texts[1]
    told = "[lockstep rank 0] LS400: rank 1 failed while running the script: ValueError: bad batch"
    assert ended.texts[0].count(told) == 1, ended.report()
    assert "  traceback of rank 1:" in ended.texts[0]
    assert "fleet_script.py" in ended.texts[0] and ", in main" in ended.texts[0]
    assert sorted(row["rank"] for row in ended.of("fault_seen", culprit=1)) == [0, 1]


def test_an_exit_in_the_middle_ends_the_job(ends: dict[str, Ended]) -> None:
    ended = ends["exits"]
    assert ended.code == 1 and ended.codes[1] == 3, ended.report()
    assert ended.gone < 15, ended.report()


def test_the_journal_tells_who_built(ends: dict[str, Ended]) -> None:
    assert {row["rank"] for row in ends["well"].of("confirmed")} == {0, 1}
    assert len(ends["well"].of("built")) == 1
