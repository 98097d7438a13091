"""What a check leaves in an artifact, when one is not enough, and how copies are compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lockstep as ls
from lockstep.build.artifact import pack, read_manifest
from lockstep.build.describe import describe
from lockstep.build.program import Program
from lockstep.errors import ArtifactError
from lockstep.fleet.replicas import axes_apart, odd_replicas
from lockstep.fleet.stores import ArtifactStore
from lockstep.run.hit import Hit
from lockstep.run.replicas import SAMPLE, digests_of
from lockstep.run.session import session


def straight(x: Tensor) -> Tensor:
    return x + (x.round() - x).detach()


def train_step(model: nn.Module, x: Tensor) -> Tensor:
    rounded = ls.intended(straight, reason="straight-through estimator")
    loss = rounded(model(x)).square().mean()
    loss.backward()
    return loss


# ---- the manifest --------------------------------------------------------------------------------


def test_the_reasons_of_intended_stand_in_the_manifest_and_are_shown(tmp_path: Path) -> None:
    mesh = ls.mesh(dp=-1)
    step = ls.compile(train_step, mesh=mesh, data="dp", backend="graph", store=tmp_path)
    step(nn.Linear(3, 2), torch.randn(4, 3))
    (artifact,) = tmp_path.glob("*.lockstep")
    check = read_manifest(artifact)["check"]
    assert check["mode"] == "types"
    assert [(i["name"], i["reason"]) for i in check["intended"]] == [
        ("straight", "straight-through estimator")
    ]
    text = describe(artifact)
    assert "\ncheck: types, no findings\n  established  nothing: no axis" in text
    assert "  intended     straight, tests/test_check_at_build.py:" in text
    assert text.count("straight-through estimator") == 1


def shown(check: dict[str, Any], folder: Path) -> str:
    program = Program("graph", "def call(inputs): ...", {}, {})
    path = folder / "step.lockstep"
    path.write_bytes(pack({"step": "train", "check": check}, program).to_bytes())
    return describe(path).partition("\n\ncheck")[2].partition("\n\n")[0]


def test_what_is_not_known_is_shown(tmp_path: Path) -> None:
    check = {
        "mode": "full",
        "seconds": 1.25,
        "established": ["order: 2 collectives"],
        "undecided": ["w is constant"],
        "values": 40,
        "unknown": {"dp": 3},
        "no rule for": {"sort": 2},
        "pending": {"dp": "ddp mean"},
        "intended": [],
    }
    assert shown(check, tmp_path).splitlines() == [
        ": full, no findings in 1.25 s",
        "  established  order: 2 collectives",
        "  undecided    w is constant",
        "  unknown      3 of 40 values along dp",
        "  unknown      sort, 2 times: no type rule",
        "  pending      ddp mean over dp",
    ]
    assert shown({"mode": "off"}, tmp_path) == ": off, the gradients of this step were not checked"


# ---- whether it is enough ------------------------------------------------------------------------


def stored(mode: str | None, folder: Path) -> tuple[ArtifactStore, bytes]:
    manifest: dict[str, Any] = {"step": "train", "fingerprint": {"step": "train"}}
    manifest |= {"check": {"mode": mode}} if mode is not None else {}
    data = pack(manifest, Program("graph", "def call(inputs): ...", {}, {})).to_bytes()
    path = folder / "pinned.lockstep"
    path.write_bytes(data)
    return ArtifactStore(path), data


@pytest.mark.parametrize(
    ("had", "asked", "serves"),
    [
        ("off", "off", True),
        ("types", "off", True),
        ("full", "off", True),
        (None, "types", False),
        ("off", "types", False),
        ("types", "types", True),
        ("full", "types", True),
        ("off", "full", False),
        ("types", "full", False),
        ("full", "full", True),
    ],
)
def test_an_artifact_serves_who_asks_for_no_more_than_it_was_checked(
    had: str | None, asked: str, serves: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pinned, data = stored(had, tmp_path)
    ours = Hit({"step": "train"}, asked, ArtifactStore(tmp_path), "a.lockstep", session())
    capfd.readouterr()
    assert ours.serves(data) is serves
    told = f"it was checked with check={had or 'off'!r}, and check={asked!r} is asked for"
    assert (told in capfd.readouterr().err) is not serves
    fixed = Hit({"step": "train"}, asked, pinned, str(pinned.path), session())
    if serves:
        assert fixed.serves(data)
    else:
        with pytest.raises(ArtifactError, match="checked less than this job asks for"):
            fixed.serves(data)


def test_another_program_is_refused_whatever_was_checked(tmp_path: Path) -> None:
    _, data = stored("full", tmp_path)
    with pytest.raises(ArtifactError, match="not the one this job wants"):
        Hit({"step": "eval"}, "off", ArtifactStore(tmp_path), "a", session()).serves(data)


# ---- copies --------------------------------------------------------------------------------------


def posted(*ranks: dict[str, str], beside: str = "[]") -> list[dict[str, Any]]:
    return [{"dp": {"beside": beside, "names": names}} for names in ranks]


def test_the_odd_ranks_of_each_name_are_told() -> None:
    rows = posted({"a": "1", "b": "1"}, {"a": "1", "b": "2"}, {"a": "1", "b": "1"})
    assert odd_replicas(rows) == {"odd": {"dp": {"b": [1]}}}
    assert odd_replicas(posted({"a": "1"}, {"a": "2"})) == {"odd": {"dp": {"a": [1]}}}
    assert odd_replicas(posted({"a": "1"}, {"a": "1"})) == {"odd": {}}


def test_ranks_are_compared_with_those_beside_them_alone() -> None:
    shards = posted({"a": "1"}, {"a": "1"}, beside="[0]") + posted(
        {"a": "2"}, {"a": "3"}, beside="[1]"
    )
    assert odd_replicas(shards) == {"odd": {"dp": {"a": [3]}}}
    votes = [
        {"replicas": {"dp": {"beside": row["dp"]["beside"], "digest": row["dp"]["names"]["a"]}}}
        for row in shards
    ]
    assert axes_apart(votes) == ["dp"]
    assert axes_apart(votes[:3]) == [] and axes_apart([{"replicas": {}}] * 2) == []


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(5, 3),
        torch.randn(5, 3).t(),
        torch.randn(4).bfloat16(),
        torch.tensor(1.5),
        torch.empty(0, 3),
        torch.arange(6),
        torch.randn(3, dtype=torch.complex64),
        torch.randn(3 * SAMPLE + 7),
    ],
)
def test_a_digest_is_of_dtype_shape_and_values(tensor: Tensor) -> None:
    other = tensor.clone()
    digest = digests_of({"a": tensor, "b": torch.ones(2), "c": other})
    assert digest["a"] == digest["c"] != digest["b"]
    assert digests_of({"a": tensor.reshape(1, *tensor.shape)})["a"] != digest["a"]
    if tensor.numel():
        assert digests_of({"a": tensor + 1})["a"] != digest["a"]


def test_large_tensors_are_sampled() -> None:
    """What another seed draws differs everywhere; a lone element between the samples is missed."""
    tensor = torch.zeros(4 * SAMPLE)
    tensor[1] = 1.0
    assert digests_of({"a": tensor}) == digests_of({"a": torch.zeros(4 * SAMPLE)})
    assert digests_of({"a": torch.randn(4 * SAMPLE)}) != digests_of({"a": torch.randn(4 * SAMPLE)})
