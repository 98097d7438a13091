"""`compare` on real ranks. Slow: each start under torch imports and runs its compiler."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockstep.report.compare import Comparison, Row, compare
from lockstep.run.modes import ON, TORCH_ONE_RANK

SCRIPT = Path(__file__).with_name("compare_script.py")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    folder = tmp_path_factory.mktemp("compare")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_VEC_ISA_OK", "1")  # else it compiles a program to find out
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
        return compare(SCRIPT, (), world=2, folder=folder, limit_s=200, ways=(TORCH_ONE_RANK, ON))


def rows(found: Comparison, way: str, start: str) -> list[Row]:
    return [row for row in found.rows if (row.way, row.start) == (way, start)]


def test_under_lockstep_one_rank_builds_and_then_all_load(found):
    cold, warm = rows(found, ON, "cold"), rows(found, ON, "warm")
    assert sorted(row.role for row in cold) == ["built", "loaded"]
    assert [row.role for row in warm] == ["loaded", "loaded"]
    assert len({row.digest for row in cold + warm}) == 1
    built = next(row for row in cold if row.role == "built")
    assert 0 < built.compile_s < built.first_call_s
    assert Path(built.path).stat().st_size > 0
    assert [row.compile_s for row in warm] == [0.0, 0.0]
    assert [row.compilers for row in cold + warm] == [0, 0, 0, 0]


def test_under_torch_every_rank_traces_and_lowers_or_asks_the_cache(found):
    cold, warm = rows(found, TORCH_ONE_RANK, "cold"), rows(found, TORCH_ONE_RANK, "warm")
    assert [row.rank for row in cold] == [0, 1]
    assert any(row.role == "built" and row.detail["lowerings"] > 0 for row in cold)
    assert [row.role for row in warm] == ["loaded", "loaded"]
    assert all(row.detail["hits"] == 1 and row.detail["lowerings"] == 0 for row in warm)
    assert all(row.detail["frames"] > 0 and row.compile_s > 0 for row in cold + warm)
    assert {row.flag for row in cold + warm} == {"on"}
    assert len({row.digest for row in cold + warm}) == 1
    assert cold[0].path.endswith("/torch-one-rank/inductor")


def test_the_world_and_the_versions_are_told(found):
    assert found.world == 2
    assert found.torch.startswith("2.")
    assert all(seconds > 0 for starts in found.wall_s.values() for seconds in starts.values())
