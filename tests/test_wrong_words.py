"""Public functions called with what cannot be meant: one clear error each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import lockstep as ls
from lockstep.checker.finding import Finding, Report
from lockstep.errors import UsageError
from lockstep.spmd.claims import recording_claims


def mesh() -> Any:
    return ls.mesh(dp=-1)


def weighted(losses: Any, weights: Any, *axes: Any) -> Any:
    return ls.weighted_mean(losses, weights, *axes)


def typed_in_a_check(value: Any) -> None:
    with recording_claims():
        ls.typed(value, dp=ls.R)


def parameters(model: Any, patterns: Any) -> None:
    ls.type_parameters(model, patterns)


ONES, LINEAR = torch.ones(3), torch.nn.Linear(1, 1)


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
        (lambda: ls.compile(data=3), "data=3\n  want an axis or several"),  # type: ignore[call-overload]
        (lambda: ls.compile(data=True), "data=True\n"),  # type: ignore[call-overload]
        (
            lambda: ls.compile(mesh=mesh(), pending={"dp": ["x"]}),  # type: ignore[dict-item]
            r"pending: dp=\['x'\]\n  want one of ddp mean, ddp sum, mean, sum",
        ),
        (lambda: ls.compile(store=3), "store=3\n  want a directory"),  # type: ignore[call-overload]
        (lambda: weighted(3.0, ONES, "dp"), "the losses are no tensor\n  got  a float"),
        (lambda: weighted(ONES, [1, 1, 1], "dp"), "the weights are no tensor\n  got  a list"),
        (lambda: weighted(ONES, ONES, 3), "weighted_mean: 3 is no mesh axis\n  want names of axes"),
        (lambda: weighted(ONES, ONES, ("dp",)), r"\('dp',\) is no mesh axis"),
        (lambda: weighted(ONES, ONES, "dp", "dp"), "an axis is named twice\n  got  dp, dp"),
        (lambda: typed_in_a_check(3), "ls.typed takes a Tensor\n  at   .*\n  got  a int"),
        (lambda: typed_in_a_check(LINEAR), r"got  a Linear\n  fix  ls.type_parameters\(model"),
        (lambda: parameters(LINEAR, "x"), "patterns='x'\n  want axis -> type by pattern"),
        (lambda: parameters(LINEAR, {"*": ls.R}), r"'\*': R\n  want axis -> type by pattern"),
        (lambda: parameters(LINEAR, {3: {}}), "3: {}\n  want axis -> type by pattern"),
        (lambda: parameters(None, {}), "type_parameters takes a Module\n  got  a NoneType"),
        (lambda: ls.signature("f32"), "ls.signature takes a function\n  got  'f32'"),  # type: ignore[arg-type]
        (lambda: ls.intended(print, reason=3), "needs a reason\n  got  3"),  # type: ignore[call-overload]
        (lambda: ls.intended(3, reason="x"), "ls.intended takes a function\n  got  a int"),  # type: ignore[call-overload]
        (lambda: ls.mesh(), "a mesh needs an axis"),
        (lambda: ls.mesh(dp=True), "mesh axis dp cannot have True ranks"),
    ],
)
def test_refused_in_words(call: Callable[[], Any], text: str) -> None:
    mesh()
    with pytest.raises(UsageError, match=text):
        call()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [((), "missing a required argument: 'x'"), ((1, 2), "too many positional arguments")],
)
def test_a_wrong_call_names_the_step(arguments: tuple[Any, ...], text: str) -> None:
    def train_step(x: Any) -> Any:
        return x

    with pytest.raises(TypeError, match=rf"train_step\(\): {text}"):
        ls.compile(mesh=mesh(), backend="graph")(train_step)(*arguments)


def test_a_report_shows_its_text() -> None:
    report = Report([Finding("LS520", "a gradient is partial")])
    assert repr(report) == str(report) == "LS520: a gradient is partial\n1 finding"
    assert repr(Report()) == "nothing found, nothing established"


def test_right_words_pass() -> None:
    step = ls.compile(mesh=mesh(), data=("dp",), backend="graph")(lambda x: x + 1)
    assert step(torch.ones(1)).item() == 2
