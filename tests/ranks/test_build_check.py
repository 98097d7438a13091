"""What a check at the build refuses reaches every rank and stores nothing; what is right passes.

The scripts are in `build_check.py`; each refusal has a twin that is let pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.build.artifact import read_manifest
from tests.ranks.launch import Ended, Torchrun
from tests.sources import ROOT

SCRIPT = "tests.ranks.build_check"
LIMIT = 15.0  # seconds from the report of the failure until no process is left
SOURCE = (ROOT / "tests" / "ranks" / "build_check.py").read_text().splitlines()


@pytest.fixture(scope="module")
def torchrun() -> Iterator[Torchrun]:
    with Torchrun() as launcher:
        yield launcher


def ran(torchrun: Torchrun, name: str, folder: Path, **env: str) -> Ended:
    ended = torchrun.run(SCRIPT, name, folder=folder, env=env)
    assert ended.code == 0, ended.report()
    return ended


def refused(torchrun: Torchrun, name: str, folder: Path) -> Ended:
    """Every rank ends with an error, in time; nothing is stored."""
    ended = torchrun.run(SCRIPT, name, folder=folder)
    assert ended.code == 1, ended.report()
    assert len(ended.codes) == 2 and 0 not in ended.codes.values(), ended.report()
    assert ended.told is not None and ended.told < LIMIT, ended.report()
    return ended


def stored(folder: Path) -> list[Path]:
    return sorted((folder / "store").glob("*"))


def line_of(function: str, text: str) -> int:
    start = SOURCE.index(next(line for line in SOURCE if line.startswith(f"def {function}(")))
    return next(i for i, line in enumerate(SOURCE[start:], start + 1) if text in line)


def on_every_rank(ended: Ended, *texts: str) -> None:
    for printed in ended.texts:
        for text in texts:
            assert text in printed, f"{text!r} is missing\n{ended.report()}"


def test_a_forgotten_reduction_is_refused_on_every_rank(torchrun: Torchrun, tmp_path: Path) -> None:
    ended = refused(torchrun, "refused", tmp_path)
    line = f"tests/ranks/build_check.py:{line_of('forgotten', 'loss.backward()')}"
    on_every_rank(
        ended,
        "LS500: the check of forgotten found 1 fault: no artifact is made",
        "LS514: model.up.weight.grad is still partial on dp when the optimizer reads it",
        f"at   {line}  loss.backward()  axis dp",
        'fix  ls.reduce_grads(model, dp="mean")',
        'ls.compile(pending={"dp": "ddp mean"})',
    )
    assert stored(tmp_path) == []


def test_a_full_check_refuses_what_types_are_not_sure_of(
    torchrun: Torchrun, tmp_path: Path
) -> None:
    ended = refused(torchrun, "refused_full", tmp_path)
    on_every_rank(ended, "LS500: the check of half found 1 fault", "2 times the true one")
    assert stored(tmp_path) == []


def test_parameters_declared_the_same_are_compared(torchrun: Torchrun, tmp_path: Path) -> None:
    ended = refused(torchrun, "declared_apart", tmp_path)
    on_every_rank(
        ended,
        "LS310: 2 parameters differ between the ranks of dp at the first call of right",
        "model.up.bias, model.up.weight",
        "other values on rank 1",
        "torch.manual_seed(0) on every rank, before model is made",
    )


def test_a_right_step_is_built_then_loaded_without_the_checker(
    torchrun: Torchrun, tmp_path: Path
) -> None:
    store = {"LOCKSTEP_STORE": str(tmp_path / "store")}
    first = ran(torchrun, "passes", tmp_path / "first", **store)
    second = ran(torchrun, "passes", tmp_path / "second", **store)
    for rank, result in enumerate(first.results):
        builds = bool(first.of("ready", role="built", rank=rank))
        assert bool(result["checker"]) is builds, "who builds asks the checker, and no one else"
    assert [result["checker"] for result in second.results] == [[], []]
    assert {event["role"] for event in second.of("ready")} == {"loaded"}
    for before, now in zip(first.results, second.results, strict=True):
        assert len(set(before["losses"])) == 1 and before["losses"] == now["losses"]
        assert before["hashed"] == now["hashed"] == [4], "once, at the first call"
    assert all("warning" not in text for text in (*first.texts, *second.texts))
    assert len(stored(tmp_path)) == 2
    check = read_manifest(stored(tmp_path)[0])["check"]
    assert check["mode"] == "types" and check["undecided"] == []
    assert check["replicas"] == {
        "dp": ["model.up.weight", "model.up.bias", "model.down.weight", "model.down.bias"]
    }
    assert 0 < check["unknown"]["dp"] < check["values"]


def test_what_is_admitted(torchrun: Torchrun, tmp_path: Path) -> None:
    ended = ran(torchrun, "others", tmp_path)
    for found in ended.results:
        assert set(found) == {"pending", "off", "full", "unsure", "own models"}
    assert ended.texts[0].count("check='off': the gradients of forgotten#2 are not checked") == 1
    assert "with check='off', and check='types' is asked for; it is built again" in ended.texts[0]
    modes = sorted(read_manifest(path)["check"]["mode"] for path in stored(tmp_path))
    assert modes == ["full", "types", "types", "types"]
    (pending,) = [m for p in stored(tmp_path) if (m := read_manifest(p)["check"]).get("pending")]
    assert pending["pending"] == {"dp": "ddp mean"}


def test_what_passed_because_the_models_differ_is_refused_for_copies(
    torchrun: Torchrun, tmp_path: Path
) -> None:
    ended = refused(torchrun, "copies_now", tmp_path)
    assert None not in ended.results
    on_every_rank(
        ended,
        "LS500: forgotten#2 was checked when each rank of dp had parameters of its own",
        "the same model.up.weight, model.up.bias, model.down.weight, model.down.bias on every rank",
    )


def test_an_artifact_that_was_checked_less_is_built_again(
    torchrun: Torchrun, tmp_path: Path
) -> None:
    ended = ran(torchrun, "stronger", tmp_path)
    roles = [[e["role"] for e in ended.of("ready", rank=rank)] for rank in (0, 1)]
    built = [sorted(pair) for pair in zip(*roles, strict=True)]
    assert built == [["built", "loaded"]] * 3 + [["loaded", "loaded"]]
    on_every_rank_0 = "it was checked with check='off', and check='types' is asked for"
    assert on_every_rank_0 in ended.texts[0] and "it is built again" in ended.texts[0]
    (artifact,) = stored(tmp_path)
    assert read_manifest(artifact)["check"]["mode"] == "full"


def test_a_forgotten_seed_is_named_on_every_rank(torchrun: Torchrun, tmp_path: Path) -> None:
    ended = ran(torchrun, "seed", tmp_path)
    on_every_rank(
        ended,
        "warning: LS310: 4 parameters differ between the ranks of dp at the first call of right",
        "model.down.bias, model.down.weight, model.up.bias, model.up.weight",
        "other values on rank 1",
        "their gradients are reduced over dp: copies that start apart stay apart",
        "torch.manual_seed(0)",
    )
    again = ran(torchrun, "seed", tmp_path)  # now it loads
    assert {event["role"] for event in again.of("ready")} >= {"loaded"}
    on_every_rank(again, "warning: LS310: 4 parameters differ between the ranks of dp")


def test_one_odd_parameter_is_named_alone(torchrun: Torchrun, tmp_path: Path) -> None:
    ended = ran(torchrun, "one_odd", tmp_path)
    on_every_rank(ended, "LS310: 1 parameter differs", "at   model.down.bias\n")


def test_words_that_cannot_be_meant(torchrun: Torchrun, tmp_path: Path) -> None:
    ended = ran(torchrun, "words", tmp_path)
    for found in ended.results:
        assert found == [
            "LS001: check='all'\n  want one of off, types, full",
            "LS001: pending={'tp': 'mean'} names no axis of the mesh\n  want one of ['dp']",
            "LS001: pending: dp='later'\n  want one of ddp mean, ddp sum, mean, sum",
            'LS001: pending=\'dp\'\n  want ways by axis, as {"dp": "ddp mean"}',
        ]
