"""`gpu/check.py`: its table, its exit code, and that each of its checks can fail."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FILE = Path(__file__).parents[1] / "gpu" / "check.py"


@pytest.fixture(scope="module")
def gpu() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_check", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["gpu_check"] = module  # its dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


def result(role: str = "loaded", **other: Any) -> dict[str, Any]:
    traces = 1 if role == "built" else 0
    found = {"losses": ["0x1p+0"], "state": "ab" * 32, "counts": {"traces": traces, "builds": 0}}
    return found | {"roles": [role], "digests": ["cd" * 32]} | other


class Chain:
    """Processes that did not run: the first has built, `others` are what came of later ones."""

    def __init__(self, others: dict[int, dict[str, Any]], eager: dict[str, Any] | None = None):
        self.devices, self._others = len(others) or 1, others
        self._eager = eager or result("built")

    def step(self, backend: str, index: int = 0, eager: bool = False) -> dict[str, Any]:
        return self._eager if eager else result("built")

    def again(self, backend: str, index: int) -> dict[str, Any]:
        return self._others[index]


def test_what_holds_on_every_device_is_told_with_its_artifact(gpu: ModuleType) -> None:
    chain = Chain({0: result(), 1: result(), 2: result()})
    assert gpu.loads("graph", None)(chain) == "on index 1, 2: artifact cdcdcdcdcdcd"
    assert gpu.loads("graph", 0)(chain) == "on index 0: artifact cdcdcdcdcdcd"
    assert gpu.as_eager("graph")(chain) == "1 calls, state abababababab"


@pytest.mark.parametrize(
    ("odd", "told"),
    [
        ({"roles": ["built"]}, r"on index 1: \['built'\]"),
        ({"digests": ["ef"]}, "on index 1: another artifact"),
        ({"counts": {"traces": 0, "builds": 2}}, "on index 1: {'traces': 0, 'builds': 2}"),
        ({"losses": ["0x1p+1"]}, "on index 1: other numbers"),
        ({"state": "00"}, "on index 1: other numbers"),
    ],
)
def test_each_part_of_a_load_can_fail(gpu: ModuleType, odd: dict[str, Any], told: str) -> None:
    with pytest.raises(AssertionError, match=told):
        gpu.loads("graph", None)(Chain({0: result(), 1: result(**odd)}))


def test_another_number_than_eager_fails(gpu: ModuleType) -> None:
    with pytest.raises(AssertionError, match="is not"):
        gpu.as_eager("graph")(Chain({}, eager=result("built", losses=["0x1p+9"])))


def test_the_table_and_the_exit_code(
    gpu: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_: Any) -> str:
        raise AssertionError("3 is not 4\nand more")

    checks = [
        gpu.Check("one", 0, lambda _: "seen"),
        gpu.Check("two", 1, broken),
        gpu.Check("three", 2, broken),
    ]
    monkeypatch.setattr(gpu, "CHECKS", checks)
    monkeypatch.setattr(gpu, "devices", lambda: (0, "no accelerator"))
    assert gpu.main([]) == 0
    out = capsys.readouterr().out
    assert "one\n    holds: seen\n" in out
    assert "two\n    not verified here: no accelerator\n" in out
    assert out.endswith("\n1 hold, 0 do not, 2 not verified here\n")
    monkeypatch.setattr(gpu, "devices", lambda: (1, "1 x H200"))
    assert gpu.main([]) == 1
    out = capsys.readouterr().out
    assert "two\n    does not hold: 3 is not 4\n    and more\n" in out
    assert "three\n    not verified here: 1 x H200\n" in out
    assert out.endswith("\n1 hold, 1 do not, 1 not verified here\n")


def test_the_line_of_two_devices_needs_two(gpu: ModuleType) -> None:
    every = [check for check in gpu.CHECKS if "every other" in check.line]
    assert [check.needs for check in every] == [2, 2]
    assert {check.needs for check in gpu.CHECKS} == {0, 1, 2}
