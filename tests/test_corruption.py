"""Changed artifacts are refused and nothing of them runs; where that does not hold, it is seen."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path
from typing import Any

import pytest

from lockstep.build.artifact import Artifact
from tests.corruption.__main__ import mutations, seal_of
from tests.corruption.bombs import NAMES
from tests.corruption.files import Real, real_files, sung
from tests.corruption.forged import parts
from tests.corruption.judge import Judge, Mutation, as_a_rank, faults


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Real], Any, Any, Path]:
    folder = tmp_path_factory.mktemp("corruption")
    (trusted, public), (stranger, _) = seal_of(folder, "one"), seal_of(folder, "stranger")
    return real_files(("graph",), folder, trusted), trusted, stranger, public


def few(made: Any, scale: int = 3) -> list[Mutation]:
    files, trusted, stranger, _ = made
    small = mutations(files, scale, random.Random(1), trusted, stranger)
    return [one for one in small if not one.kind.startswith("a bomb: ")]


def test_files_as_they_were_built_run(made: Any, tmp_path: Path) -> None:
    files, _, _, public = made
    before = sung()
    for real in files:
        outcome = Judge(tmp_path, public).judge(
            Mutation("", real.data, real.wanted, True, real.signed)
        )
        assert outcome.became == "accepted", outcome.told
    assert sung() == before + 4


def test_all_kinds_are_refused_in_words_and_nothing_runs(made: Any, tmp_path: Path) -> None:
    judge, before = Judge(tmp_path, made[3]), sung()
    outcomes = [judge.judge(one) for one in few(made)]
    assert faults(outcomes, 60.0) == []
    assert sung() == before
    assert len({one.mutation.kind for one in outcomes}) > 40
    assert sum(one.mutation.rehashed for one in outcomes) > len(outcomes) * 0.4


@pytest.mark.parametrize("careless", ["digests", "signature", "words", "late"])
def test_what_does_not_hold_is_seen(careless: str, made: Any, tmp_path: Path) -> None:
    """The twin: a reader that leaves a check out, tells nothing, or looks after it has run."""

    def admit(data: bytes, wanted: dict[str, Any]) -> Any:
        if careless == "digests":  # the program's text, whatever its digest says
            exec(parts(data)[1]["program.py"].decode(), {})
        elif careless == "signature":
            as_a_rank(data[:48] + bytes(96) + data[144:], wanted)
        elif careless == "words":
            raise KeyError("blobs")
        else:
            exec("import builtins\nbuiltins.lockstep_test_canary += 1", {})
            as_a_rank(data, wanted)

    with pytest.MonkeyPatch.context() as patch:
        if careless == "signature":  # as if nobody had set what to trust
            patch.setattr("lockstep.build.signature.trusted_keys", lambda: None)
        judge = Judge(tmp_path, made[3], admit)
        outcomes = [judge.judge(one) for one in few(made)]
    wanted = {"digests": "accepted", "signature": "accepted", "words": "raw", "late": "ran"}
    assert {one.became for one in outcomes} & {wanted[careless]}
    assert faults(outcomes, 60.0) != []


def test_a_slow_refusal_is_a_fault(made: Any, tmp_path: Path) -> None:
    outcomes = [Judge(tmp_path, made[3]).judge(few(made)[0])]
    assert faults(outcomes, 60.0) == []
    assert faults(outcomes, 0.0) != []


def test_each_odd_name_is_refused_by_its_own(made: Any) -> None:
    """Not because the table is then unsorted, or another blob is missing."""
    from tests.corruption.bombs import rows_of
    from tests.corruption.forged import UNSIGNED, file_of, spelled

    for name in NAMES:
        manifest, rows, tail = rows_of(made[0][0])
        tail += bytes(-len(tail) % 64)
        row = {
            "name": name,
            "offset": len(tail),
            "size": 1,
            "sha256": hashlib.sha256(b"x").hexdigest(),
            "stored": "raw",
        }
        table = sorted([*rows, row], key=lambda one: one["name"])
        if table[-1] is not row:  # offsets follow the order of names
            table = [{**row, "offset": 0}]
            tail = b""
        data = file_of(spelled({**manifest, "blobs": table}), tail + b"x", UNSIGNED)
        with pytest.raises(Exception, match=r"unsound table|the name of a kernel"):
            Artifact.from_bytes(data)
