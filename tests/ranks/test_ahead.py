"""Steps built ahead of time, in a world that is not there, are what real ranks then load."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lockstep.build.artifact import read_manifest
from lockstep.cli import main
from tests.ranks.launch import ROOT, Ended, Torchrun

pytestmark = pytest.mark.timeout(900)  # several builds and jobs each
SCRIPT = "tests/ranks/ahead_script.py"


def line_of(words: str) -> str:
    """The script's line that holds these words."""
    lines = (ROOT / SCRIPT).read_text().splitlines()
    return f"ahead_script.py:{next(i for i, line in enumerate(lines, 1) if words in line)}"


def build(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Run `lockstep build`; its exit code, what it printed, and what it told on stderr."""
    flags, script = words[: words.index("--")], words[words.index("--") :]
    code = main(["build", SCRIPT, *flags, *script])
    return code, *capsys.readouterr()


def run(folder: Path, store: Path, *words: str, world: int = 2) -> Ended:
    with Torchrun() as torchrun:
        env = {"LOCKSTEP_STORE": str(store)}
        script = "tests.ranks.ahead_script"
        return torchrun.run(script, *words, folder=folder, world=world, env=env)


def roles(ended: Ended) -> list[str]:
    return sorted(f"{event['step']} {event['role']}" for event in ended.of("ready"))


def figures(ended: Ended) -> list[list[str]]:
    """What each rank computed."""
    return [re.findall(r"^(?:loss|eval).*$", text, re.MULTILINE) for text in ended.texts]


def test_real_ranks_load_what_was_built_ahead_and_compute_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, bundle, outside = tmp_path / "store", tmp_path / "b.lockstep", tmp_path / "model.pt"
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    flags = ("--world-size", "2", "--store", str(store), "-o", str(bundle))
    code, out, err = build(capsys, *flags, "--", "plain", str(outside))
    assert code == 0, err
    assert outside.read_text() == "epoch 1"
    assert "train_step [" in out and "eval_step [" in out
    assert "every rank captures the same graph, ranks 0 and 1 generate the same code" in out
    assert "other_step was not reached, and is not built" in out
    assert f"warning: the script writes {outside.resolve()}" in out
    assert f"torch.save to {outside} is left out" in out
    manifests = {m["step"]: m for m in map(read_manifest, store.glob("*.lockstep"))}
    assert sorted(manifests) == ["eval_step", "train_step"]
    compared = manifests["train_step"]["compared"]
    assert (compared["ranks"], compared["every rank"], compared["code of"]) == (
        [0, 1],
        True,
        [0, 1],
    )

    loading, pinned = run(tmp_path / "a", store, "plain"), run(tmp_path / "b", bundle, "plain")
    building = run(tmp_path / "c", tmp_path / "other", "plain")
    for ended in (loading, pinned):
        assert ended.code == 0, ended.report()
        assert roles(ended) == 2 * ["eval_step loaded"] + 2 * ["train_step loaded"]
        assert ended.of("stage") == ended.of("viewed") == []  # no rank has traced
        assert figures(ended) == figures(building)
    assert "eval_step built" in roles(building)


def test_a_number_of_each_rank_becomes_a_formula_or_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "store"
    flags = ("--world-size", "4", "--store", str(store), "--steps", "train_step")
    code, _, err = build(capsys, *flags, "--", "formula")
    assert code == 0, err
    (artifact,) = store.glob("*.lockstep")
    assert "'more per': {'dp': 3}" in str(read_manifest(artifact)["fingerprint"])
    code, _, err = build(capsys, *flags, "--", "square")
    assert code == 1
    assert "ask for different programs at train_step" in err
    assert "got  module model.offset: 9 on rank 3\n  want module model.offset: 0 on rank 0" in err
    assert len(list(store.glob("*.lockstep"))) == 1


@pytest.mark.parametrize(
    ("how", "code", "told"),
    [
        ("reads", 2, ["the set-up reads the value of a tensor", line_of("int(model"), "--real"]),
        ("fails", 2, ["failed, below fake tensors", line_of("raise V"), "no validation set"]),
        ("unreduced", 1, ["LS500: the check of train_step found", "no artifact is made"]),
        ("closes", 1, ["the step uses MASK", line_of("x * MASK"), "f32[4], neither"]),
        ("absent", 1, ["rank 1 ended its script without a call of train_step"]),
    ],
)
def test_what_cannot_be_built_is_told_at_its_line(
    how: str, code: int, told: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--world-size", "2", "--store", str(tmp_path / "store"))
    got, _, err = build(capsys, *flags, "--", how)
    assert got == code, err
    for words in told:
        assert words in err, err
    kept = [read_manifest(path)["step"] for path in tmp_path.glob("store/*.lockstep")]
    assert kept == (["train_step"] if how == "fails" else [])


def test_the_set_up_runs_truly_on_demand_and_for_several_meshes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, bundle = tmp_path / "store", tmp_path / "x.lockstep"
    flags = ("--real", "--mesh", "dp=2", "--mesh", "dp=3", "--steps", "eval_step")
    code, out, err = build(capsys, *flags, "--store", str(store), "-o", str(bundle), "--", "truly")
    assert code == 0, err
    sizes = sorted(read_manifest(path)["fingerprint"]["mesh dp"] for path in store.iterdir())
    assert sizes == [2, 3]
    assert "1 artifact(s) for 3 rank(s)" in out
    assert "2 artifact(s)," in out.splitlines()[-1]


def test_a_device_that_is_not_here_is_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = build(capsys, "--device", "cuda", "--", "plain")
    assert code == 2
    assert err.startswith("LS001: --device cuda: this machine has none\n  got  no accelerator")


def test_a_step_that_is_not_called_cannot_be_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--steps", "other_step", "--store", str(tmp_path))
    code, _, err = build(capsys, *flags, "--", "plain")
    assert code == 2
    assert "does not come to other_step" in err
