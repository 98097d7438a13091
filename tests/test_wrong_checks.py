"""`ls.check` asked what cannot be meant: one clear error each, before anything is run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import lockstep as ls
from lockstep.errors import UsageError


def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x * y).sum()


def make(mesh: Any) -> Any:
    return torch.ones(2), torch.ones(2)


async def later(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return step(x, y)


def yielding(x: torch.Tensor, y: torch.Tensor) -> Any:
    yield step(x, y)


class Yielding(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        yield step(x, y)


class Called:
    async def __call__(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return step(x, y)


def check(step: Any = step, make: Any = make, **options: Any) -> Any:
    return ls.check(step, make, **{"mesh": {"dp": 2}, "repair_s": 0, **options})


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: check(later), "the step is a coroutine\n  got  later, which is async"),
        (lambda: check(yielding), "the step is a generator\n  got  yielding, which yields"),
        (lambda: check(Yielding()), "the step is a generator"),
        (lambda: check(Called()), "the step is a coroutine"),
        (lambda: ls.compile(later), "the step is a coroutine"),
        (lambda: ls.compile(backend="graph")(yielding), "the step is a generator"),
        (lambda: check(make=yielding), "make is a generator"),
        (lambda: check(mesh=None), 'mesh=None\n  want ranks by axis, such as {"tp": 2}'),
        (lambda: check(mesh=2), "mesh=2\n"),
        (lambda: check(mesh=[("dp", 2)]), "mesh=\\[\\('dp', 2\\)\\]"),
        (lambda: check(mesh={"dp": "2"}), "got  'dp': '2'\n  want a name, and 1 rank or more"),
        (lambda: check(mesh={"dp": 2.0}), "got  'dp': 2.0"),
        (lambda: check(mesh={"dp": True}), "got  'dp': True"),
        (lambda: check(mesh={"": 2}), "got  '': 2"),
        (lambda: check(mesh={0: 2}), "got  0: 2"),
        (lambda: check(mesh=ls.mesh(dp=-1)), "fix  mesh={'dp': 1}"),
        (lambda: check(mesh={"dp": 9, "tp": 9}), "a mesh of 81 ranks\n  want 64 in all at most"),
        (lambda: check(data=3), 'data=3\n  want an axis or several, as "dp"'),
        (lambda: check(data=True), "data=True"),
        (lambda: check(data=(1,)), "no mesh axis 1\n"),
        (lambda: check(data=[["dp"]]), "no mesh axis \\['dp'\\]"),
        (lambda: check(pending="dp"), "pending='dp'\n  want ways by axis"),
        (lambda: check(pending={"x": "mean"}), "no mesh axis x\n"),
        (lambda: check(pending={"dp": "avg"}), "pending dp='avg'\n  want one of ddp mean, ddp sum"),
        (lambda: check(pending={"dp": ["mean"]}), "pending dp=\\['mean'\\]"),
        (lambda: check(repair_s=-1), "repair_s=-1\n  want seconds"),
        (lambda: check(repair_s="x"), "repair_s='x'"),
        (lambda: check(repair_s=None), "repair_s=None"),
    ],
)
def test_refused_in_words(call: Callable[[], Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        call()


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: (), "make cannot be called with the mesh alone\n  got  make()"),
        (lambda mesh, k: (), "got  make(mesh, k): missing a required argument: 'k'"),
        (lambda mesh: None, "make returns None\n  want the step's arguments on that rank: a tuple"),
        (lambda mesh: {"x": 1}, "got  a dict, which is one argument\n  want the arguments of step"),
        (lambda mesh: [1, 2], "a list, which is one argument\n  want the arguments of step(x, y)"),
        (lambda mesh: (1, 2, 3), "got  3 arguments: too many positional arguments"),
        (lambda mesh: ((1,), {"z": 2}), "got  1 argument and z: missing a required argument: 'y'"),
    ],
)
def test_a_make_that_does_not_fit(make: Any, text: str) -> None:
    with pytest.raises(UsageError) as caught:
        check(make=make)
    assert text in str(caught.value)


def test_a_generator_that_is_returned() -> None:
    with pytest.raises(ls.LockstepError, match="the step returns a generator"):
        check(lambda x, y: yielding(x, y))


def test_right_words_pass() -> None:
    for words in ("mean", "sum", "ddp mean", "ddp sum"):
        assert check(data="dp", pending={"dp": words}).ok
    assert check(data=None, make=lambda mesh: ((torch.ones(1),), {"y": torch.ones(1)})).ok
    assert check(lambda xs: xs[0].sum(), make=lambda mesh: list(make(mesh))).ok
    assert check(torch.nn.Linear(2, 1), make=lambda mesh: torch.ones(2)).ok
    assert check(mesh={"dp": 128}, witnesses="types").ok


def test_a_hook_may_give_a_module_its_arguments() -> None:
    linear = torch.nn.Linear(2, 1)
    linear.register_forward_pre_hook(lambda module, args: (torch.ones(2),))
    assert check(linear, make=lambda mesh: ()).ok
