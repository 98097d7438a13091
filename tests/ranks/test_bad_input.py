"""Each bad input is a clear error on every rank, all processes end in time, nothing is left over.

The scripts are in `bad_input.py`. Where a script leaves a result, its first half is the twin: the
same with good input works.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lockstep.build.keys import generate
from tests.ranks.launch import QUICK, ROOT, Ended, Torchrun

LIMIT = 15.0  # seconds from the report of the failure until no process is left
LOSS = 2.83976411819458  # what the same step gives eagerly; `lives` and `alone` compare it


@pytest.fixture(scope="module")
def torchrun() -> Iterator[Torchrun]:
    with Torchrun() as launcher:
        yield launcher


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of scripts that may find the good step in a store: it is built once."""
    return {"LOCKSTEP_STORE": str(tmp_path_factory.mktemp("shared") / "store")}


def failed(torchrun: Torchrun, name: str, folder: Path, **options: Any) -> Ended:
    """Run a script that must fail: on every rank, in time, with nothing left half-written."""
    ended = torchrun.run("tests.ranks.bad_input", name, folder=folder, **options)
    assert ended.code == 1, ended.report()
    assert len(ended.codes) == 2 and 0 not in ended.codes.values(), ended.report()
    assert ended.told is not None and ended.told < LIMIT, ended.report()
    assert not list(folder.glob("store/.*")), sorted(folder.glob("store/.*"))
    return ended


def on_every_rank(ended: Ended, *texts: str) -> None:
    for printed in ended.texts:
        for text in texts:
            assert text in printed, f"{text!r} is missing\n{ended.report()}"


def test_a_batch_that_no_variant_covers(
    torchrun: Torchrun, tmp_path: Path, shared: dict[str, str]
) -> None:
    ended = failed(torchrun, "new_shape", tmp_path, env=shared)
    assert ended.results == [LOSS, LOSS]
    on_every_rank(
        ended,
        "LS300: train_step has no variant for this call, and on_new_shape is 'error'",
        "got  tokens: i64[3, 8]",
        "want tokens: i64[4, 8]",
        "pad the batch to a known shape",
    )


def test_renamed_parameters(torchrun: Torchrun, tmp_path: Path) -> None:
    ended = failed(torchrun, "renamed", tmp_path)
    assert ended.results == [LOSS, LOSS]
    assert len(ended.of("ready", step="train_step#2", role="loaded")) == 2
    on_every_rank(
        ended,
        "LS210: the artifact is not the one this job wants",
        "contract model.head.weight: -",
        "contract model.head.weight: f32[16, 8] needs grad, no .grad",
        "contract model.out.weight: f32[16, 8] needs grad, no .grad",
        "contract model.out.weight: -",
    )


def test_ranks_that_disagree_on_a_shape(torchrun: Torchrun, tmp_path: Path) -> None:
    ended = failed(torchrun, "odd_shape", tmp_path)
    on_every_rank(ended, "rank 1 differs in contract tokens", "i64[4, 9] on rank 1", "i64[4, 8]")
    assert ended.of("built") == []


def test_a_rank_that_calls_another_step_first(torchrun: Torchrun, tmp_path: Path) -> None:
    ended = failed(torchrun, "other_step", tmp_path)
    on_every_rank(ended, "ranks call different steps", "rank 0 called train_step; rank 1 called")
    assert ended.of("built") == []


def test_a_branch_on_a_value(torchrun: Torchrun, tmp_path: Path) -> None:
    ended = failed(torchrun, "branches", tmp_path)
    on_every_rank(
        ended,
        "LS100: the step looks at a tensor's value",
        "tests/ranks/bad_input.py:",
        "if hidden.sum() > 0:",
        "torch.where(condition, a, b)",
    )
    assert not list((tmp_path / "store").glob("*"))


def test_a_builder_that_raises_in_its_model(torchrun: Torchrun, tmp_path: Path) -> None:
    ended = failed(torchrun, "raises", tmp_path)
    on_every_rank(
        ended, "ValueError: layer 3 has no weights", 'raise ValueError("layer 3 has no weights")'
    )
    builder = ended.of("stage")[0]["rank"]
    other = ended.texts[1 - builder]
    assert f"rank {builder} failed while obtaining train_step" in other
    assert f"traceback of rank {builder}:" in other
    assert {row["rank"] for row in ended.of("stage")} == {builder}, "no other rank tried"


def test_an_artifact_with_a_flipped_byte(torchrun: Torchrun, tmp_path: Path) -> None:
    ended = failed(torchrun, "flipped", tmp_path)
    assert ended.results == [LOSS, LOSS]
    on_every_rank(
        ended, "LS210: changed bytes in ", str(tmp_path / "store"), "build it again, or copy it"
    )
    assert ended.of("ready", step="train_step#2") == []


def test_an_artifact_of_a_key_that_is_not_trusted(torchrun: Torchrun, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.mkdir(mode=0o700)
    (ours, name), (later, other) = generate(keys / "ours"), generate(keys / "later")
    env = {"LOCKSTEP_SIGN": str(keys / "ours"), "LOCKSTEP_TRUST": str(ours), "LATER": str(later)}
    ended = failed(torchrun, "mistrusted", tmp_path, env=env)
    assert ended.results == [LOSS, LOSS]
    told = "LS211: the artifact is signed with a key that is not trusted"
    on_every_rank(ended, told, f"got  {name}", f"a key that LOCKSTEP_TRUST holds: {other}")
    assert ended.of("ready", step="train_step#2") == []


def test_a_store_below_a_folder_that_others_can_write(torchrun: Torchrun, tmp_path: Path) -> None:
    (tmp_path / "open" / "store").mkdir(parents=True, mode=0o700)
    (tmp_path / "open").chmod(0o777)
    env = {"LOCKSTEP_STORE": str(tmp_path / "open" / "store")}
    ended = failed(torchrun, "reachable", tmp_path, env=env)
    told = "LS230: another user can write what this job would execute"
    on_every_rank(ended, told, f", of {tmp_path}/open", f"fix  chmod go-w {tmp_path}/open")


def test_a_store_that_cannot_be_one(torchrun: Torchrun, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    env = {"LOCKSTEP_STORE": str(tmp_path / "file" / "store")}
    ended = failed(torchrun, "no_store", tmp_path, env=env)
    on_every_rank(ended, "LS230: an artifact cannot be read", str(tmp_path / "file" / "store"))


def test_a_rank_that_swallows_its_exception_and_sleeps(torchrun: Torchrun, tmp_path: Path) -> None:
    ended = failed(torchrun, "sleeps", tmp_path)
    assert ended.results == [LOSS, LOSS]
    assert 75 in ended.codes.values(), ended.report()
    assert "rank 1 failed while running train_step, call 6: IndexError" in ended.texts[0]
    assert "still running train_step, call 6 5 s after the fault of rank 1" in ended.texts[0]
    assert ended.of("fault", culprit=1) and len(ended.of("fault_seen", culprit=1)) == 2


def test_a_rank_that_fails_between_two_steps(
    torchrun: Torchrun, tmp_path: Path, shared: dict[str, str]
) -> None:
    ended = failed(torchrun, "between", tmp_path, env=shared)
    on_every_rank(ended, "KeyError: 'learning_rate'", 'raise KeyError("learning_rate")')
    assert "rank 1 failed while running the script" in ended.texts[0]


def test_what_is_refused_before_anything_is_agreed(torchrun: Torchrun, tmp_path: Path) -> None:
    """On real ranks each is refused at once, and the job can go on: its next step works."""
    ended = torchrun.run("tests.ranks.bad_input", "lives", folder=tmp_path)
    assert ended.code == 0, ended.report()
    for found in ended.results:
        assert "LS100: the step scaled_step closes over the tensor SCALE" in found["closes over"]
        assert "tests/ranks/bad_input.py:" in found["closes over"]
        assert "pass it: scaled_step(..., SCALE)" in found["closes over"]
        assert "LS100: model is wrapped by DistributedDataParallel with what no" in found["ddp"]
        assert "the communication hook powerSGD_hook" in found["ddp"]
        assert 'ls.reduce_grads(model, dp="mean") after backward()' in found["ddp"]
        assert "LS100: model is wrapped by fully_shard with what no graph holds" in found["fsdp"]
        assert "offload_policy=CPUOffloadPolicy()" in found["fsdp"]
        assert found["from memory"] == found["again"] == found["eager"] == LOSS
    (built,) = ended.of("ready", role="built")
    (loaded,) = ended.of("ready", role="loaded")
    assert built["path"] is None and built["digest"] == loaded["digest"]
    warning = "this job goes on from memory, the next start builds again"
    assert warning in ended.texts[built["rank"]] and "/proc/lockstep" in ended.texts[built["rank"]]


# ---- a world of one, outside torchrun ------------------------------------------------------------


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("alone")
    env = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "LOCKSTEP")}
    env |= {
        "LAUNCH_FOLDER": str(folder),
        "LOCKSTEP_STORE": str(folder / "store"),
        "LOCKSTEP_RUNS": str(folder / "runs"),
        "LOCKSTEP_TIMING": QUICK,
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "tests.ranks.bad_input", "alone"]
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=220)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "train_step v0" in done.stderr and "built by rank 0" in done.stderr
    return json.loads((folder / "result0").read_text())


def test_outside_torchrun_is_a_world_of_one(alone: dict[str, Any]) -> None:
    assert alone["loss"] == alone["eager"] == alone["as before"] == alone["pinned"] == LOSS


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("dtype", ["got  tokens: i32[4, 8]", "want tokens: i64[4, 8]"]),
        ("device", ["LS100: tokens is on the meta device", "got  i64[4, 8] on meta"]),
        ("renamed", ["contract model.head.weight: -", "contract model.out.weight: -"]),
        (
            "reshaped",
            [
                "contract model.embed.weight: f32[16, 8] needs grad",
                "contract model.embed.weight: f32[16, 12] needs grad",
            ],
        ),
        (
            "retied",
            [
                "contract model.embed.weight: f32[16, 8] needs grad, no .grad\n",
                "contract model.embed.weight: f32[16, 8] needs grad, no .grad, tied to "
                "model.out.weight",
                "contract model.out.weight: -",
            ],
        ),
        ("branches", ["at   tests/ranks/bad_input.py:", "got  if hidden.sum() > 0:"]),
    ],
)
def test_alone(alone: dict[str, Any], name: str, texts: list[str]) -> None:
    for text in texts:
        assert text in alone[name], alone[name]


def test_an_artifact_cut_or_changed_anywhere(alone: dict[str, Any]) -> None:
    assert alone["damaged"] == [], "these loaded, or were refused without their name"
    assert alone["mended"] == LOSS
