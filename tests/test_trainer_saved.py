"""Checkpoints on disk: whole or not there, the last good one kept, drafts swept away."""

from __future__ import annotations

import json

import pytest

from lockstep.errors import UsageError
from lockstep.trainer.saved import draft_of, finish, newest, read, sweep


def save(folder, step: int):
    draft = draft_of(folder, step)
    draft.mkdir(parents=True)
    (draft / "part").write_bytes(bytes(step))
    return finish(draft, step, {"mean": 0.5})


def names(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_draft_is_no_checkpoint_until_it_is_marked_and_named(tmp_path):
    draft_of(tmp_path, 3).mkdir()
    assert newest(tmp_path) == (None, [])
    saved = save(tmp_path, 5)
    assert (saved.path.name, saved.step) == ("step-00000005", 5)
    assert read(saved.path) == saved == newest(tmp_path)[0]
    assert names(tmp_path) == [".draft-00000003", "step-00000005"]


def test_the_newest_are_kept_and_drafts_go(tmp_path):
    for step in (1, 2, 10):
        save(tmp_path, step)
    draft_of(tmp_path, 11).mkdir()
    sweep(tmp_path, 0)
    assert names(tmp_path) == ["step-00000001", "step-00000002", "step-00000010"]
    sweep(tmp_path, 2)
    assert names(tmp_path) == ["step-00000002", "step-00000010"]


def test_a_step_that_is_saved_again_takes_the_place_of_the_first(tmp_path):
    first = save(tmp_path, 4)
    (first.path / "old").touch()
    assert read(save(tmp_path, 4).path).path == first.path
    assert not (first.path / "old").exists()


def cut(path):
    (path / "part").write_bytes(b"")


def lost(path):
    (path / "part").unlink()


def unmarked(path):
    (path / "whole.json").unlink()


def half_marked(path):
    text = (path / "whole.json").read_text()
    (path / "whole.json").write_text(text[: len(text) // 2])


def other_mark(path):
    (path / "whole.json").write_text(json.dumps([1]))


@pytest.mark.parametrize(
    ("tear", "told"),
    [
        (cut, "part has 0 of 2 bytes"),
        (lost, "part is missing"),
        (unmarked, "it has no whole.json"),
        (half_marked, "its whole.json cannot be read"),
        (other_mark, "its whole.json cannot be read"),
    ],
)
def test_a_torn_one_is_named_and_the_one_before_is_found(tear, told, tmp_path):
    save(tmp_path, 1)
    path = save(tmp_path, 2).path
    tear(path)
    with pytest.raises(UsageError, match=f"LS001: checkpoint {path} is torn: {told}$"):
        read(path)
    found, torn = newest(tmp_path)
    assert found.step == 1 and torn == [f"checkpoint {path} is torn: {told}"]
