"""A config is found by name, changed by flags, and refused in one line before anything starts."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from lockstep.cli import main
from lockstep.configs import find
from lockstep.configs.find import names
from lockstep.errors import UsageError
from lockstep.models import llama
from lockstep.trainer import launch, validate
from lockstep.trainer.config import Mesh, TrainConfig, flags
from lockstep.trainer.words import parsed


def test_configs_are_found_by_their_short_and_their_full_names():
    assert names() == ["llama3:1b", "llama3:8b", "llama3:debug"]
    assert find("lockstep.configs.llama3:debug") == find("llama3:debug")
    assert find("llama3:8b").model == llama.config("8b")


def test_a_config_of_ones_own_is_found_beside_the_working_folder(tmp_path, monkeypatch):
    source = "from lockstep.configs import find\ndef small():\n    return find('llama3:debug')\n"
    (tmp_path / "own_configs_of_a_test.py").write_text(source + "def none():\n    return 3\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert find("own_configs_of_a_test:small") == find("llama3:debug")
    with pytest.raises(UsageError, match="none returns a int, not a TrainConfig"):
        find("own_configs_of_a_test:none")


def leaves(value: object, prefix: str = "--") -> list[str]:
    """The flags of a real config, found by another way than `flags`."""
    found = []
    for field in dataclasses.fields(value):
        held, name = getattr(value, field.name), prefix + field.name.replace("_", "-")
        found += leaves(held, name + ".") if dataclasses.is_dataclass(held) else [name]
    return found


def test_every_value_is_a_flag():
    assert flags() == leaves(find("llama3:debug"))
    asked = parsed(
        "x",
        find("llama3:debug"),
        [
            *("--optimizer.lr=3e-4", "--mesh.dp", "2", "--model.kv_heads", "4", "--check"),
            *("--data.paths", "a.txt", "b.npy", "--guard.action", "roll back"),
        ],
    )
    config = asked.config
    assert (config.optimizer.lr, config.mesh.dp, config.model.kv_heads) == (3e-4, 2, 4)
    assert (config.data.paths, config.guard.action) == (("a.txt", "b.npy"), "roll back")
    assert (asked.nproc_per_node, asked.check) == (1, True)


@pytest.mark.parametrize(
    ("mesh", "world", "sizes"),
    [
        (Mesh(), 4, {"dp": 4}),
        (Mesh(), 1, {"dp": 1}),
        (Mesh(tp=2), 4, {"dp": 2, "tp": 2}),
        (Mesh(fsdp=2, tp=2), 4, {"fsdp": 2, "tp": 2}),
        (Mesh(tp=2, pp=2), 8, {"pp": 2, "dp": 2, "tp": 2}),
    ],
)
def test_a_mesh_has_the_axes_of_more_than_one_rank(mesh, world, sizes):
    assert mesh.sizes(world) == sizes


@pytest.fixture
def job(tmp_path, monkeypatch):
    """Words for `main` that need no change to be right; nothing may be started."""
    monkeypatch.setattr(launch, "launch", lambda words, ranks: pytest.fail("ranks were started"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_bytes(bytes(range(200)))
    return [
        *("train", "llama3:debug", "--folder", "out", "--data.paths", "text"),
        *("--data.batch", "4", "--data.sequence", "8"),
    ]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--optimizer.lrr", "1"], "has no --optimizer.lrr; did you mean --optimizer.lr?"),
        (["--mesh.tp", "3", "--nproc-per-node", "3"], "model.heads 4 is not divided by tp 3"),
        (["--mesh.tp", "4", "--nproc-per-node", "4"], "model.kv_heads 2 is not divided by tp 4"),
        (["--mesh.dp", "3"], "mesh dp=3 fsdp=1 cp=1 tp=1 pp=1 does not make up 1 rank(s)"),
        (["--mesh.tp", "2", "--nproc-per-node", "2", "--model.ffn", "33"], "model.ffn 33 is not"),
        (["--mesh.tp", "2", "--nproc-per-node", "2", "--model.vocab", "257"], "model.vocab 257"),
        (["--mesh.pp", "5", "--nproc-per-node", "5"], "model.layers 4 do not fill mesh.pp 5 x"),
        (
            ["--mesh.pp", "2", "--mesh.chunks", "2", "--nproc-per-node", "2"],
            "data.micro_batches 1 is not divided by mesh.pp 2",
        ),
        (["--mesh.chunks", "2"], "mesh.chunks 2 needs mesh.pp of 2 or more"),
        (["--nproc-per-node", "3"], "data.batch 4 is not divided by data ranks 3"),
        (["--data.micro-batches", "3"], "data.batch 4 is not divided by 1 data rank(s) x 3"),
        (["--nproc-per-node", "0"], "--nproc-per-node 0 is less than 1"),
        (["--data.sequence", "90"], "the data hold 2 sequence(s) of 90 tokens; one batch has 4"),
        (["--data.paths", "none.txt"], "data.paths: there is no file none.txt"),
        (["--data.tokenizer", "t.json"], "data.tokenizer: there is no file t.json"),
        (["--model.vocab", "100"], "model.vocab 100 is less than the tokenizer's 256 tokens"),
        (["--checkpoint.resume", "gone"], "checkpoint gone is missing: there is no such folder"),
        (["--schedule.warmup", "300"], "schedule.warmup 300 is more than schedule.steps 200"),
        (["--optimizer.lr", "nan"], "optimizer.lr nan is no rate"),
        (["--eval.every", "5"], "eval.part 0.05 holds out 1 sequence(s) of 24; one batch has 4"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2_before_anything_starts(job, words, line, capsys):
    assert main([*job, *words]) == 2
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1 and told[0].startswith("LS001: ") and line in told[0], told


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("llama3:debg", "there is no config llama3:debg; did you mean llama3:debug? There are"),
        ("no.such:debug", "there is no config no.such:debug"),
        ("llama3", "there is no config llama3"),
    ],
)
def test_an_unknown_config_is_one_line(job, name, line, capsys):
    assert main(["train", name]) == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert line in told


def test_a_right_config_comes_to_the_start(job, monkeypatch):
    started = []
    monkeypatch.setattr(launch, "launch", lambda words, ranks: started.append(ranks) or 0)
    assert main([*job, "--nproc-per-node", "2"]) == 0
    assert started == [2]


@pytest.mark.parametrize(("rank", "told"), [("0", 1), ("1", 0)])
def test_under_torchrun_rank_0_alone_says_what_is_wrong(job, rank, told, monkeypatch, capsys):
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main([*job, "--data.batch", "3"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == told


def config(folder: Path, **changes: object) -> TrainConfig:
    array = folder / "tokens.npy"
    np.save(array, np.arange(100, dtype=np.uint16))
    base = find("llama3:debug")
    data = dataclasses.replace(base.data, paths=(str(array),), batch=2, sequence=8)
    return dataclasses.replace(base, folder=str(folder), data=data, **changes)


def test_a_torn_checkpoint_is_told_and_the_last_whole_one_is_taken(tmp_path):
    made = config(tmp_path)
    data = {"position": 4, "sequences": 12, "sequence": 8, "seed": 0, "order": "shuffled"}
    told = {"data": data, "model": dataclasses.asdict(made.model)}
    for step in (10, 20):
        folder = tmp_path / "checkpoints" / f"step-{step:08d}"
        folder.mkdir(parents=True)
        (folder / "part").write_bytes(b"12345")
        mark = {"step": step, "files": {"part": 5}, "told": told}
        (folder / "whole.json").write_text(json.dumps(mark))
    assert validate.validated(made, 1).step == 20
    (folder / "part").write_bytes(b"123")
    assert validate.validated(made, 1).step == 10
    exactly = dataclasses.replace(made.checkpoint, resume=str(folder))
    with pytest.raises(UsageError, match=r"is torn: part has 3 of 5 bytes$"):
        validate.validated(dataclasses.replace(made, checkpoint=exactly), 1)
    with pytest.raises(UsageError, match=r"data had seed 0, these 1$"):
        validate.validated(dataclasses.replace(made, seed=1), 1)
    wider = dataclasses.replace(made, model=dataclasses.replace(made.model, ffn=64))
    with pytest.raises(UsageError, match=r"has model.ffn 384, this config 64$"):
        validate.validated(wider, 1)
    (folder.parent / "step-00000010" / "whole.json").unlink()
    with pytest.raises(UsageError, match=r"no checkpoint in .* is whole: .* it has no whole.json$"):
        validate.validated(made, 1)
