"""Public functions called with what cannot be meant: one clear error each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import lockstep as ls
from lockstep.errors import UsageError


def mesh() -> Any:
    return ls.mesh(dp=-1)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: ls.compile(torch.nn.Linear(1, 1)), "takes a function or a method"),  # type: ignore[call-overload]
        (lambda: ls.compile(print), "got  a builtin_function_or_method"),
        (lambda: ls.compile(mesh="dp"), "mesh='dp'"),  # type: ignore[arg-type]
        (lambda: ls.compile(mesh=mesh(), data="zz"), r"want one of \['dp'\]"),
        (lambda: ls.compile(data=(3,)), r"data=\(3,\) names no axis"),  # type: ignore[arg-type]
        (lambda: ls.compile(backend="fast"), "want one of graph, inductor"),
        (lambda: ls.loss(3.0, dp="mean"), "ls.loss takes a Tensor"),  # type: ignore[arg-type]
        (lambda: ls.reduce_grads(None, dp="mean"), "ls.reduce_grads takes a Module"),  # type: ignore[arg-type]
        (lambda: ls.mesh(), "a mesh needs an axis"),
        (lambda: ls.mesh(dp=True), "mesh axis dp cannot have True ranks"),
    ],
)
def test_refused_in_words(call: Callable[[], Any], text: str) -> None:
    mesh()
    with pytest.raises(UsageError, match=text):
        call()


def test_right_words_pass() -> None:
    step = ls.compile(mesh=mesh(), data=("dp",), backend="graph")(lambda x: x + 1)
    assert step(torch.ones(1)).item() == 2
