"""What no fingerprint reads is audited: traced again at the first hit, and whenever it is asked."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

import lockstep as ls
from lockstep.errors import ArtifactError
from lockstep.run.audit import MARK

SAID = "its graph is the artifact's"


def picks() -> int:
    """What an object that can't be looked into gives."""
    return next(COUNTER)


COUNTER: Any = itertools.repeat(2)


def hidden(x: torch.Tensor) -> torch.Tensor:
    return x * picks()


def plain(x: torch.Tensor) -> torch.Tensor:
    return x * 3


def run(step: Any, store: Path, capfd: pytest.CaptureFixture[str]) -> str:
    ls.compile(backend="graph", store=store)(step)(torch.ones(2))
    return capfd.readouterr().err


@pytest.fixture(autouse=True)
def as_it_was() -> Any:
    global COUNTER
    COUNTER = itertools.repeat(2)
    yield
    COUNTER = itertools.repeat(2)


def test_the_first_hit_is_audited_and_the_next_is_not(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert "built by rank 0" in run(hidden, tmp_path, capfd)
    assert list(tmp_path.glob("*" + MARK)) == []
    assert SAID in run(hidden, tmp_path, capfd)
    assert len(list(tmp_path.glob("*" + MARK))) == 1
    text = run(hidden, tmp_path, capfd)
    assert "loaded by" in text and SAID not in text


def test_a_change_that_no_fingerprint_reads_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    global COUNTER
    run(hidden, tmp_path, capfd)
    COUNTER = itertools.repeat(5)
    with pytest.raises(ArtifactError) as raised:
        run(hidden, tmp_path, capfd)
    assert raised.value.what == (
        "hidden traces to another graph than the artifact's, and their fingerprints are the same"
    )
    assert raised.value.why is not None
    assert "test_audit:COUNTER: itertools.repeat" in raised.value.why


def test_what_is_read_whole_is_audited_when_asked(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(plain, tmp_path, capfd)
    assert SAID not in run(plain, tmp_path, capfd)
    monkeypatch.setenv("LOCKSTEP_AUDIT", "1")
    assert SAID in run(plain, tmp_path, capfd)


def test_it_can_be_left_out(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(hidden, tmp_path, capfd)
    monkeypatch.setenv("LOCKSTEP_AUDIT", "0")
    assert SAID not in run(hidden, tmp_path, capfd)
