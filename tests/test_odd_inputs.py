"""Tensors that no program can be given, and values that no stand-in has: refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import lockstep as ls
from lockstep.capture.capture import capture
from lockstep.capture.trees import tree_of, tree_text
from lockstep.errors import CaptureError

EYE = torch.eye(3)


def product(x: torch.Tensor) -> torch.Tensor:
    return x @ torch.ones(3, 3)


ODD: dict[str, tuple[torch.Tensor, str]] = {
    "coo": (EYE.to_sparse(), "got  sparse_coo of shape [3, 3]"),
    "meta": (EYE.to("meta"), "x is on the meta device"),
    "nested": (
        torch.nested.nested_tensor([EYE, EYE[:2]], layout=torch.jagged),
        "x is a NestedTensor",
    ),
}


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("first", [True, False])
def test_an_odd_tensor_is_refused(name: str, first: bool, tmp_path: Path) -> None:
    given, told = ODD[name]
    step = ls.compile(product, backend="graph", store=tmp_path)
    if not first:
        step(EYE)
    with pytest.raises(CaptureError) as caught:
        step(given)
    assert told in str(caught.value) and "want plain local tensors" in str(caught.value)
    assert caught.value.where == f"tests/test_odd_inputs.py:{line_of('step(given)')}"


def line_of(text: str) -> int:
    """The number of the first line of this file that is a text."""
    lines = [line.strip() for line in Path(__file__).read_text().splitlines()]
    return lines.index(text) + 1


def test_an_odd_parameter_is_refused() -> None:
    model = torch.nn.Module()
    model.weight = torch.nn.Parameter(EYE.to("meta"))
    with pytest.raises(CaptureError, match=r"model\.weight is on the meta device"):
        capture(lambda model: model.weight.sum(), model)


def address(x: torch.Tensor) -> torch.Tensor:
    return x if x.data_ptr() else x + 1


def array(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.asarray(x)) + 1


def text(x: torch.Tensor) -> torch.Tensor:
    return x + len(f"{x.sum():.3f}")


READ: dict[str, tuple[Callable[..., Any], str, str]] = {
    "address": (address, "where a tensor lies in memory", "x if x.data_ptr() else"),
    "array": (array, "looks at a tensor's value", "np.asarray(x)"),
    "numpy": (lambda x: x * x.numpy().sum(), "looks at a tensor's value", "x.numpy()"),
    "text": (text, "puts a value of its own into text", ":.3f"),
}


@pytest.mark.parametrize("name", READ)
def test_a_read_is_refused_at_its_line(name: str) -> None:
    step, told, line = READ[name]
    with pytest.raises(CaptureError) as caught:
        capture(step, EYE)
    assert told in str(caught.value)
    path, _, number = (caught.value.where or "").rpartition(":")
    assert path.endswith("test_odd_inputs.py")
    assert line in Path(__file__).read_text().splitlines()[int(number) - 1]


def test_outside_of_a_capture_the_reads_are_torchs_own() -> None:
    capture(lambda x: x + 1, EYE)
    assert torch.equal(array(EYE), EYE + 1) and address(EYE) is EYE


def test_a_tensors_text_is_no_number_of_the_program() -> None:
    with pytest.raises(CaptureError, match="text that is neither printed nor logged"):
        capture(lambda x: x + len(f"{x}"), EYE)
    assert "size=" not in f"{EYE}" and len(f"{EYE}") > 40  # and is torch's own again


def test_a_backward_into_what_came_before_is_refused() -> None:
    def step(x: torch.Tensor) -> None:
        x.sum().backward()

    with pytest.raises(CaptureError, match="an argument that was computed before"):
        capture(step, torch.ones(3, requires_grad=True) * 2)


def test_a_sparse_gradient_is_refused() -> None:
    def step(model: torch.nn.Module, tokens: torch.Tensor) -> None:
        model(tokens).sum().backward()

    tokens = torch.tensor([1, 2])
    with pytest.raises(CaptureError, match=r"a sparse gradient in model\.weight"):
        capture(step, torch.nn.Embedding(4, 2, sparse=True), tokens)
    capture(step, torch.nn.Embedding(4, 2), tokens)


def test_what_torch_max_returns_is_returned(tmp_path: Path) -> None:
    step = ls.compile(lambda x: x.max(dim=1), backend="graph", store=tmp_path)
    got, want = step(EYE), EYE.max(dim=1)
    assert type(got) is type(want) and torch.equal(got.values, want.values)


def test_a_tree_goes_through_text() -> None:
    leaves, spec = torch.utils._pytree.tree_flatten({"a": (1, [2]), "b": EYE.sort()})
    assert tree_of(tree_text(spec)) == spec and len(leaves) == 4


def test_a_container_without_a_name_is_refused() -> None:
    from collections import namedtuple

    pair = namedtuple("pair", "a b")
    graph = capture(lambda x: pair(x + 1, x + 2), EYE)
    with pytest.raises(CaptureError, match="a container that no file can name"):
        graph.contract()


def test_a_users_error_says_where_it_rose() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        return x @ torch.ones(4, 4)

    with pytest.raises(RuntimeError) as caught:
        capture(step, EYE)
    (note,) = caught.value.__notes__
    assert "tests/test_odd_inputs.py" in note and "LOCKSTEP=off" in note


@pytest.mark.parametrize("made", [[], [[], []], [2.0], [1.0, 2.0]])
def test_a_constant_of_any_length_is_captured(made: list[Any], tmp_path: Path) -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        constant = torch.tensor(made)
        return torch.cat([x, constant.flatten()]) + constant.dim()

    compiled = ls.compile(step, backend="graph", store=tmp_path)
    assert torch.equal(compiled(torch.ones(3)), step(torch.ones(3)))
