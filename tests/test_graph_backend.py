"""Back end `graph`: readable text, bitwise equal to eager, nothing baked."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from lockstep.build.artifact import pack
from lockstep.build.backends import lower
from lockstep.errors import LoweringError, UsageError
from lockstep.run.loader import load_program
from tests.graphs import Tiny, trace, training_inputs, training_step


def loaded(step: Callable[..., Any], inputs: list[torch.Tensor]) -> Callable[[list[Any]], Any]:
    return load_program(pack({}, lower(trace(step, inputs), "graph")))


def assert_bitwise(step: Callable[..., Any], inputs: list[torch.Tensor], calls: int = 2) -> None:
    """Run eager and the loaded program on clones; all inputs and outputs must agree."""
    call = loaded(step, inputs)
    eager = [value.clone() for value in inputs]
    ours = [value.clone() for value in inputs]
    for number in range(calls):
        torch.manual_seed(number)
        with torch.no_grad():
            want = step(*eager)
        torch.manual_seed(number)
        given = list(ours)
        got = call(given)
        assert given == []
        for left, right in zip([*want, *eager], [*got, *ours], strict=True):
            assert left.dtype == right.dtype
            assert torch.equal(left, right)


def test_a_transformer_step_with_dropout_is_bitwise_eager() -> None:
    model = Tiny(layers=2)
    assert_bitwise(training_step(model), training_inputs(model))


def test_batch_norm_and_convolution_are_bitwise_eager() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.LazyLinear(2)
    )
    x = torch.randn(2, 3, 6, 6)
    model(x)
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}

    def step(*values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        *tensors, data = values
        with torch.enable_grad():
            held = dict(zip(state, tensors, strict=True))
            params = {
                n: t.detach().requires_grad_() for n, t in held.items() if t.is_floating_point()
            }
            params = {n: t for n, t in params.items() if "running" not in n}
            loss = torch.func.functional_call(model, {**held, **params}, (data,)).square().mean()
            grads = torch.autograd.grad(loss, list(params.values()))
        return (loss.detach(), *grads)

    assert_bitwise(step, [*(value.detach() for value in state.values()), x])


def test_in_place_updates_views_and_outputs_that_are_inputs() -> None:
    def step(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a.mul_(2).add_(b.sum())
        b[0].zero_()
        return a, a.view(-1)[1:], b.t(), a + 1

    inputs = [torch.randn(3, 4), torch.randn(2, 5)]
    assert_bitwise(step, inputs)
    a, b = (value.clone() for value in inputs)
    out = loaded(step, inputs)([a, b])
    assert out[0] is a
    assert out[1].data_ptr() == a.data_ptr() + 4
    assert out[2].untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def test_run_time_scalars_are_read_at_each_call() -> None:
    def step(x: torch.Tensor, lr: torch.Tensor, count: torch.Tensor) -> tuple[torch.Tensor, ...]:
        count += 1
        rate, number = lr.item(), count.item()
        x.mul_(1 - rate * 0.1).add_(x, alpha=rate / (1 - 0.9**number))
        return (x * torch.sym_max(rate, 0.5), x.sum() * -rate)

    inputs = [torch.randn(4), torch.tensor(0.3, dtype=torch.float64), torch.tensor(0.0)]
    assert_bitwise(step, inputs, calls=3)
    call = loaded(step, inputs)
    for rate in (0.25, 0.75):
        x = torch.ones(2 * 2)
        want = torch.ones(2 * 2)
        step(want, torch.tensor(rate, dtype=torch.float64), torch.tensor(0.0))
        call([x, torch.tensor(rate, dtype=torch.float64), torch.tensor(0.0)])
        assert torch.equal(x, want)


def test_foreach_updates_are_bitwise_eager() -> None:
    def step(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        torch._foreach_add_([a, b], [b, a.clone()], alpha=-0.5)
        norms = torch._foreach_norm([a, b])
        torch._foreach_mul_([a, b], torch.clamp(1 / (torch.stack(norms).sum() + 1e-6), max=1.0))
        return tuple(norms)

    assert_bitwise(step, [torch.randn(3), torch.randn(3)])


def test_autocast_is_held_by_the_graph_and_the_caller_s_is_off() -> None:
    def step(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            low = x @ w
        return low, x @ w

    inputs = [torch.randn(3, 3), torch.randn(3, 3)]
    assert_bitwise(step, inputs)
    call, want = loaded(step, inputs), step(*inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = call(list(inputs))
    assert [value.dtype for value in got] == [torch.bfloat16, torch.float32]
    assert torch.equal(got[1], want[1])


def test_parameters_that_need_gradients_may_be_written() -> None:
    x = torch.ones(2, requires_grad=True)
    (out,) = loaded(lambda value: (value.mul_(2),), [torch.ones(2)])([x])
    assert out is x and x.tolist() == [2, 2]


def test_inputs_are_freed_after_their_last_use() -> None:
    freed: list[bool] = []

    @torch.library.custom_op("lockstep_test::look", mutates_args=())
    def look(x: torch.Tensor) -> torch.Tensor:
        freed.append(watched() is None)
        return x.clone()

    look.register_fake(lambda x: x.clone())
    call = loaded(
        lambda a, b: (torch.ops.lockstep_test.look(a.sum() + b),), [torch.ones(2), torch.ones(1)]
    )
    inputs = [torch.ones(2), torch.ones(1)]
    watched = weakref.ref(inputs[0])
    call(inputs)
    assert freed == [True]


def test_the_text_is_the_same_twice_and_holds_no_place() -> None:
    model = Tiny()
    inputs = training_inputs(model)
    first, second = (lower(trace(training_step(model), inputs), "graph") for _ in range(2))
    assert first == second
    assert "/" not in first.text.replace(" / ", "")
    assert first.text.startswith("import math\n")


def test_fx_s_own_switches_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    traced = trace(lambda x: (x + 1,), [torch.ones(2)])
    want = lower(traced, "graph").text
    monkeypatch.setenv("FX_GRAPH_SHOW_META", "1")
    assert lower(traced, "graph").text == want


def test_a_constant_is_refused() -> None:
    traced = trace(lambda x: (x + torch.tensor([1.0, 2.0]),), [torch.ones(2)])
    with pytest.raises(LoweringError) as caught:
        lower(traced, "graph")
    assert str(caught.value).startswith("LS200: the graph holds a constant, _tensor_constant0\n")
    assert "fix  pass the tensor to the step, or make it a buffer of the model" in str(caught.value)


def test_odd_nodes_are_refused() -> None:
    def graph_of(target: Any, *args: Any) -> SimpleNamespace:
        graph = torch.fx.Graph()
        x = graph.placeholder("x")
        graph.output((graph.call_function(target, (x, *args)),))
        return SimpleNamespace(gm=SimpleNamespace(graph=graph), fakes=[], fake_mode=None)

    with pytest.raises(LoweringError, match="a function that text can't name"):
        lower(graph_of(assert_bitwise), "graph")
    with pytest.raises(LoweringError, match=r"an argument of .*add.* is not a plain value"):
        lower(graph_of(torch.ops.aten.add.Tensor, object()), "graph")


def test_an_unknown_back_end_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="want 'graph' or 'inductor'"):
        lower(trace(lambda x: (x + 1,), [torch.ones(1)]), "tensorrt")
