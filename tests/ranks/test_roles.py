"""Roles on real ranks: two programs along one axis, one builder each, built ahead of time, too."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from lockstep.build.artifact import read_manifest
from lockstep.cli import main
from tests.ranks.launch import Ended, Torchrun

pytestmark = pytest.mark.timeout(600)
PROGRAMS = {
    *(("first_step", "pp=0"), ("last_step", "pp=1")),
    *(("eval_step", "pp=0"), ("eval_step", "pp=1")),
}


def ready(ended: Ended) -> Counter[tuple[str, str, int | None]]:
    """Who has which program, and who built it."""
    return Counter((row["step"], row["program_of"], row["by"]) for row in ended.of("ready"))


def figures(ended: Ended) -> list[list[str]]:
    return [re.findall(r"^(?:loss|eval).*$", text, re.MULTILINE) for text in ended.texts]


def programs(store: Path) -> set[tuple[str, str]]:
    manifests = map(read_manifest, store.glob("*.lockstep"))
    return {(m["step"], m["fingerprint"]["options role"]) for m in manifests}


def test_each_role_has_its_program_built_by_one_of_its_ranks_or_ahead(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, ahead = tmp_path / "store", tmp_path / "ahead"
    code = main(["build", "tests/ranks/roles.py", "--mesh", "pp=2,dp=2", "--store", str(ahead)])
    out, err = capsys.readouterr()
    assert code == 0, err
    assert programs(ahead) == PROGRAMS
    for step, role in PROGRAMS:
        assert f"{step} {role} [" in out
    with Torchrun() as torchrun:
        script, limit = "tests.ranks.roles", 150.0
        building, loading = (
            torchrun.run(
                script, *words, folder=tmp_path / name, world=4, limit=limit,
                env={"LOCKSTEP_STORE": str(kept)},
            )
            for name, kept, words in (("a", store, ["twin"]), ("b", ahead, []))
        )  # fmt: skip
    assert building.code == 0, building.report()
    assert ready(building) == {
        (step, role, 0 if role == "pp=0" else 2): 2 for step, role in PROGRAMS
    }
    assert programs(store) == PROGRAMS
    names = {path.name for path in store.glob("*.lockstep")}
    assert names == {path.name for path in ahead.glob("*.lockstep")}
    assert loading.code == 0, loading.report()
    assert ready(loading) == {(step, role, None): 2 for step, role in PROGRAMS}
    assert loading.of("stage") == loading.of("viewed") == []
    assert figures(building) == figures(loading)
    assert building.of("fault") == loading.of("fault") == []
    told = "".join(building.texts)
    assert "first_step v0 pp=0 [" in told and "last_step v0 pp=1 [" in told
