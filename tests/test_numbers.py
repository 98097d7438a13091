"""Numbers that were read from tensors: values to Python, tensors where they meet tensors again."""

from __future__ import annotations

import math
import pickle

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from lockstep.capture.numbers import ReadFloat, ReadInt, ReadNumbers, read


def taped(step, *given: torch.Tensor) -> list[str]:
    """The operators on the tape of a function, with their constant operands."""

    def reading(*tensors: torch.Tensor) -> torch.Tensor:
        with ReadNumbers(lambda _: None):
            return step(*tensors)

    gm = make_fx(reading, _error_on_data_dependent_ops=False)(*given)
    kept = (
        n for n in gm.graph.nodes if n.op == "call_function" and (n.users or "scalar" in n.name)
    )
    return [str(n.target).removeprefix("aten.").split(".")[0] for n in kept]


@pytest.mark.parametrize(
    "compute",
    [
        lambda n: n + 1,
        lambda n: 1 - n,
        lambda n: 2.0 / (n + 1e-6),
        lambda n: n % 2,
        lambda n: n**2,
        lambda n: 2**n,
        lambda n: -abs(n) // 2,
        lambda n: n * n,
    ],
)
@pytest.mark.parametrize("value", [2.5, 3])
def test_arithmetic_is_pythons_and_its_tensor_follows(compute, value):
    number = read(value, torch.tensor(value, dtype=torch.float64))
    made = compute(number)
    assert type(made) in (ReadFloat, ReadInt)
    assert made == compute(value)
    assert made.tensor.item() == pytest.approx(made)


def test_what_is_no_number_stays_what_it_is():
    assert read(True, torch.tensor(True)) is True
    assert read([1.0], torch.ones(1)) == [1.0]
    number = read(2.0, torch.tensor(2.0))
    assert type(math.sqrt(number)) is float
    assert type(pickle.loads(pickle.dumps(number))) is float
    assert (number > 1) is True
    with pytest.raises(TypeError):
        number + "a"


def test_a_number_that_meets_a_tensor_is_on_the_tape():
    def step(x: torch.Tensor) -> torch.Tensor:
        return x * (1 / x.norm().item())

    assert taped(step, torch.ones(3))[-3:] == ["reciprocal", "mul", "mul"]
    assert "_local_scalar_dense" in taped(step, torch.ones(3))


@pytest.mark.parametrize("in_place", [False, True])
def test_a_tensor_that_is_scaled_in_place_has_the_same_values(in_place):
    def step(x: torch.Tensor) -> torch.Tensor:
        scale = 3 / x.sum().item()
        return x.clone().mul_(scale) if in_place else scale * x

    x = torch.arange(1.0, 4.0)
    with ReadNumbers(lambda _: None):
        assert torch.equal(step(x), step(x))
        assert torch.allclose(step(x), x / 2)


def test_a_size_or_an_index_is_a_plain_number():
    def step(x: torch.Tensor) -> torch.Tensor:
        n = (x > 0).sum().item()
        return x[:n].reshape(n, 1) / n

    with ReadNumbers(lambda _: None):
        assert step(torch.tensor([1.0, 2.0, -1.0])).tolist() == [[0.5], [1.0]]


def test_an_option_that_takes_a_number_alone_gets_it():
    with ReadNumbers(lambda _: None):
        rate = torch.tensor(0.0).item()
        assert torch.equal(torch.nn.functional.dropout(torch.ones(3), p=rate), torch.ones(3))
        assert torch.tensor(torch.tensor(2.0).item()).item() == 2.0


def test_every_read_is_noted():
    seen: list[float] = []
    x = torch.ones(2)
    with ReadNumbers(lambda t: seen.append(t.sum().item())):
        float(x.sum())
        x.tolist()
        x.numpy()
        x.sum().item()
    assert seen[:4] == [2.0, 2.0, 2.0, 2.0]
