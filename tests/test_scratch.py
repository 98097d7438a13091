"""Buffers that a library keeps for itself hold no stand-in after a capture."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch

from lockstep import _compat
from lockstep.capture.scratch import Scratch

SOURCE = """
class Keeper:
    def __init__(self):
        self.by_kind = {}
        self.last = None

class Owner:
    def __init__(self, keeper):
        self.inner = [{"keeper": keeper}]

KEEPER = Keeper()
OWNER = Owner(KEEPER)
LIST = []
"""


@pytest.fixture
def package() -> Iterator[Any]:
    made: Any = ModuleType("a_library")
    made.__dict__["__name__"] = "a_library"
    exec(SOURCE, made.__dict__)
    sys.modules["a_library"] = made
    yield made
    del sys.modules["a_library"]


@pytest.mark.parametrize(
    "keep",
    [
        lambda m, fake: m.KEEPER.by_kind.update({("f32", 4): fake}),
        lambda m, fake: setattr(m.KEEPER, "last", fake),
        lambda m, fake: m.LIST.append(fake),
        lambda m, fake: setattr(m, "SCRATCH", fake),
    ],
)
def test_a_stand_in_leaves_what_was_there_before(
    package: Any, keep: Callable[[Any, Any], Any]
) -> None:
    real = torch.zeros(2)
    package.KEEPER.by_kind["real"] = real
    scratch = Scratch(["a_library"])
    keep(package, _compat.fake_of(_compat.fake_mode(), torch.zeros(4)))
    scratch.put_back()
    assert package.KEEPER.by_kind == {"real": real} and package.KEEPER.last is None
    assert package.LIST == [] and not hasattr(package, "SCRATCH")


def test_what_is_no_stand_in_stays(package: Any) -> None:
    scratch = Scratch(["a_library"])
    package.KEEPER.last = kept = torch.zeros(2)
    package.LIST.append(3)
    scratch.put_back()
    assert package.KEEPER.last is kept and package.LIST == [3]


def test_other_packages_are_not_looked_at(package: Any) -> None:
    scratch = Scratch(["another_library"])
    package.KEEPER.last = _compat.fake_of(_compat.fake_mode(), torch.zeros(4))
    scratch.put_back()
    assert _compat.is_fake(package.KEEPER.last)
