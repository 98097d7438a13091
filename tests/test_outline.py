"""Repeated layers are found by structure; bodies and driver, run as they are, give equal bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lockstep import _compat
from lockstep.build.outline import outline as outlining
from lockstep.build.outline.outline import Outlined, outlined
from lockstep.build.outline.proof import proved
from lockstep.build.outline.repeats import Run, find_runs
from lockstep.build.outline.text import program_text
from lockstep.capture.binding import Step
from lockstep.capture.capture import capture_call
from lockstep.capture.ranges import Size
from lockstep.capture.state import collect
from lockstep.spmd.mesh import mesh
from tests.graphs import Block, Tiny, Traced, trace, training_inputs, training_step

Case = tuple[Callable[..., Any], list[torch.Tensor]]


def reduced(value: torch.Tensor) -> torch.Tensor:
    ops = _compat.functional_collectives()
    return ops.wait_tensor(ops.all_reduce(value, "sum", "dp"))


class Reduce(torch.autograd.Function):
    """An all-reduce in the forward and in the backward, as between tensor-parallel halves."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return reduced(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return reduced(grad)


class Parallel(Block):
    """A layer with a collective inside."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + Reduce.apply(super().forward(x))


class Odd(Block):
    """A layer of another structure."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).tanh() + x


def model(kind: Callable[[int], type[Block]], layers: int = 6) -> Tiny:
    torch.manual_seed(0)
    made = Tiny(layers=layers)
    for at in range(layers):
        made.blocks[at] = kind(at)(16, 2)
    return made


def adam(made: nn.Module) -> Case:
    """A step with its optimizer inside: a rate that is read at each call, one count for all."""
    inner, count = training_step(made), len(list(made.parameters()))

    def step(*values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        *held, rate, steps = values
        parts = [held[at : at + count] for at in range(0, 3 * count, count)]
        loss, *grads = inner(*parts[0], *held[3 * count :])
        steps += 1
        lr, number = rate.item(), steps.item()
        for weight, mean, square, grad in zip(*parts, grads, strict=True):
            weight.mul_(1 - lr * 0.01)
            mean.lerp_(grad, 0.1)
            square.mul_(0.99).addcmul_(grad, grad, value=0.01)
            root = (square.sqrt() / (1 - 0.99**number) ** 0.5).add_(1e-8)
            weight.addcdiv_(mean, root, value=-lr / (1 - 0.9**number))
        return (loss,)

    inputs = training_inputs(made)
    zeros = [torch.zeros_like(value) for value in inputs[:count] * 2]
    rate = torch.tensor(0.01, dtype=torch.float64)
    return step, [*inputs[:count], *zeros, *inputs[count:], rate, torch.tensor(0.0)]


def case(name: str) -> Case:
    if name == "adam inside":
        return adam(model(lambda at: Block))
    kinds: dict[str, tuple[Callable[[int], type[Block]], int]] = {
        "dropout in every layer": (lambda at: Block, 6),
        "one odd layer": (lambda at: Odd if at == 4 else Block, 12),
        "two kinds in turn": (lambda at: Odd if at % 2 else Block, 12),
        "collectives in layers": (lambda at: Parallel, 6),
        "tied weights": (lambda at: Block, 6),
    }
    made = model(*kinds[name])
    if name == "tied weights":
        for block in made.blocks:
            block.up = made.blocks[0].up
    return training_step(made, reduced if "collectives" in name else lambda grad: grad), (
        training_inputs(made)
    )


def run(found: Outlined, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """The outputs of bodies and driver, each body run operator by operator."""

    def body(module: Any) -> Any:
        def called(given: list[Any]) -> Any:
            values = list(given)
            given.clear()
            return module(*values)

        return called

    scope = {f"body_{at}": body(module) for at, module in enumerate(found.bodies)}
    exec(found.driver, scope)
    with torch.no_grad():
        return list(scope["call"](inputs))


def check_bits(traced: Any, found: Outlined, inputs: list[torch.Tensor]) -> None:
    ours, want = ([value.clone() for value in inputs] for _ in range(2))
    torch.manual_seed(3)
    with torch.no_grad():
        left = [*traced.gm(*want), *want]
    torch.manual_seed(3)
    right = [*run(found, list(ours)), *ours]
    assert all(map(torch.equal, left, right)) and len(left) == len(right)


@pytest.fixture(scope="module", autouse=True)
def group() -> None:
    mesh("cpu", dp=-1)


@pytest.fixture(scope="module")
def plain() -> tuple[Traced, Outlined]:
    traced = trace(*case("dropout in every layer"))
    found = outlined(traced.gm)
    assert isinstance(found, Outlined)
    return traced, found


LETTERS = "abcdefghijkl"


@pytest.mark.parametrize(
    ("name", "calls"),
    [
        ("dropout in every layer", "abbbbbbcdeeeeefg"),
        ("one odd layer", "abbbbbcbbbbbbbdeffffffghiiijk"),
        ("two kinds in turn", "abbbbbbcdeeeeefg"),
        ("collectives in layers", "abbbbbbcdeeeeefggggggh"),
        ("tied weights", "abbbbbbcdeeeefg"),
        ("adam inside", "abbbbbbcdeeeeefggggggh"),
    ],
)
def test_bodies_and_driver_give_the_graph_s_bits(name: str, calls: str) -> None:
    step, inputs = case(name)
    traced = trace(step, inputs)
    found = outlined(traced.gm)
    assert isinstance(found, Outlined), found
    told = "".join(LETTERS[at] for at in found.calls)
    assert told == calls
    assert found.told()["nodes"] <= 0.5 * found.nodes
    check_bits(traced, found, inputs)


def test_sizes_may_differ_from_call_to_call() -> None:
    def step(model: nn.Module, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        loss = F.cross_entropy(model(tokens).flatten(0, 1), labels.flatten())
        loss.backward()
        return loss

    made = model(lambda at: Block)
    *_, tokens, labels = training_inputs(made)
    whole = Step(step)
    call = whole.call((made, tokens, labels), {})
    sizes = [Size(name, 0, 2, 8) for name in ("tokens", "labels")]
    graph = capture_call(whole, call, collect(call), None, sizes)
    found = outlined(graph.gm)
    assert isinstance(found, Outlined), found
    assert max(map(found.calls.count, found.calls)) >= 5
    tensors = {f"model.{name}": value.detach() for name, value in made.named_parameters()}
    for times in (1, 3):
        tensors |= {"tokens": tokens.repeat(times, 1), "labels": labels.repeat(times, 1)}
        check_bits(graph, found, [tensors[spec.name] for spec in graph.inputs])


def test_no_body_takes_or_gives_a_view(plain: tuple[Traced, Outlined]) -> None:
    _, found = plain
    for body in found.bodies[:-1]:  # the last makes the views that the step itself returns
        (outputs,) = body.graph.output_node().args
        assert not [
            node for node in outputs if "view" in str(node.target) or ".t." in str(node.target)
        ]


def test_names_are_dropped_where_they_are_last_read(plain: tuple[Traced, Outlined]) -> None:
    lines = plain[1].driver.splitlines()
    calls = [at for at, line in enumerate(lines) if "body_4(given)" in line]
    assert len(calls) == 5
    assert all(" = None" in lines[at - 1] and "given = [" in lines[at - 2] for at in calls)


def test_a_wrong_driver_or_body_is_not_proved(plain: tuple[Traced, Outlined]) -> None:
    traced, found = plain
    assert proved(traced.gm, found.bodies, found.driver)
    first = next(line for line in found.driver.splitlines() if "given = [embedding," in line)
    names = first.strip().removeprefix("given = [").removesuffix("]").split(", ")
    swapped = first.replace(f"{names[1]}, {names[2]}", f"{names[2]}, {names[1]}")
    assert swapped != first
    assert not proved(traced.gm, found.bodies, found.driver.replace(first, swapped))
    early = first + f"\n    {names[0]} = None"
    dropped = found.driver.replace(
        first, early.replace("given = [embedding,", "embedding = None; given = [embedding,")
    )
    assert not proved(traced.gm, found.bodies, dropped)
    silu = next(n for n in found.bodies[1].graph.nodes if "silu" in str(n.target))
    silu.target = torch.ops.aten.relu.default
    assert not proved(traced.gm, found.bodies, found.driver)
    silu.target = torch.ops.aten.silu.default


def test_reads_and_writes_keep_their_order() -> None:
    """The twin of the proof for memory: one more write before a read is another program."""

    def step(write_first: bool) -> Any:
        def run(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
            if write_first:
                x.add_(y)
                z = x * 2
            else:
                z = x * 2
                x.add_(y)
            return (z,)

        return trace(run, [torch.ones(2), torch.ones(2)]).gm

    def driver() -> str:
        return "def call(inputs):\n    return body_0(inputs)\n"

    first, later = step(True), step(False)
    assert proved(first, [first], driver()) and proved(later, [later], driver())
    assert not proved(first, [later], driver()) and not proved(later, [first], driver())


def test_what_is_better_left_whole_is_told() -> None:
    few = model(lambda at: Block, 3)
    assert outlined(trace(training_step(few), training_inputs(few)).gm) == (
        "no part repeats 4 times"
    )
    none = trace(lambda x: (x + 1,), [torch.ones(2)])
    assert outlined(none.gm) == "no part repeats"


def test_what_a_cut_could_change_is_left_whole() -> None:
    def in_place(x: torch.Tensor, *weights: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        for weight in weights:
            change = y @ weight
            for _ in range(6):
                change = change.sin() * 1.5
            y.add_(change)
        return (y,)

    step = trace(in_place, list(torch.randn(9, 4, 4)))
    assert outlined(step.gm) == "a body would write in place what another has made"
    half = model(lambda at: Block).bfloat16()
    traced = trace(training_step(half), training_inputs(half))
    assert isinstance(outlined(traced.gm), Outlined)
    assert "LOCKSTEP_REPEATS=once allows it" in str(outlined(traced.gm, rounding=False))


def test_little_to_save_is_left_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outlining, "LEAST_SAVED", 10_000)
    found = outlined(trace(*case("dropout in every layer")).gm)
    assert isinstance(found, str) and found.startswith("repeats would save 4")


def test_runs_of_repeats() -> None:
    body, other = list(range(20)), list(range(50, 70))
    found = find_runs(np.array([99, *body * 3, 98, *other * 4, *other[:5], 97]))
    assert found == [Run(62, 20, 4, 5), Run(1, 20, 3, 0)]
    assert find_runs(np.array([*body, *other])) == []
    assert find_runs(np.array(body[:3])) == []


def test_one_text_of_many() -> None:
    bodies = [
        f"import math\nk = {number}\ndef call(inputs):\n    [x] = inputs\n    return [x + k]\n"
        for number in (1, 10)
    ]
    driver = "def call(inputs):\n    return body_1(body_0(inputs))\n"
    scope: dict[str, Any] = {}
    exec(program_text(bodies, driver), scope)
    assert scope["call"]([5]) == [16]
