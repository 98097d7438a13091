"""One accelerator: a graph holds no index of a device, and touches no second one.

There is none here: `_compat.current_accelerator` is replaced, and tensors are stand-ins on cuda:0.
What torch does on a real one, `gpu/check.py` tells where there is one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lockstep import _compat
from lockstep.build.backends import lower
from lockstep.capture.capture import capture
from lockstep.errors import CaptureError

HERE = "tests/test_devices.py"
LOCAL = int(os.environ.get("LOCAL_RANK", "0"))
DEVICE = torch.device("cuda", LOCAL)


@pytest.fixture(autouse=True)
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A rank whose accelerator is cuda:0, and a place to make tensors on it."""
    monkeypatch.setattr(_compat, "current_accelerator", lambda: torch.device("cuda", 0))
    yield _compat.fake_mode()


def on(cuda: Any, device: str = "cuda:0") -> torch.Tensor:
    with cuda:
        return torch.zeros(2, 4, device=device)


PORTABLE = {
    "cuda()": lambda x: x.cpu().cuda(),
    'to("cuda")': lambda x: x.cpu().to("cuda"),
    'to("cuda:0")': lambda x: x.cpu().to("cuda:0"),
    "to(device)": lambda x: x.cpu().to(torch.device("cuda", LOCAL)),
    "to(a global)": lambda x: x.cpu().to(DEVICE),
    "to(index)": lambda x: x.cpu().to(torch.cuda.current_device()),
    "to(other)": lambda x: x.cpu().to(x),
    'factory, "cuda"': lambda x: x + torch.ones(4, device="cuda"),
    "factory, x.device": lambda x: x + torch.ones(4, device=x.device),
    "factory, the index": lambda x: x + torch.ones(4, device=torch.cuda.current_device()),
    "factory, a device of the index": lambda x: (
        x + torch.ones(4, device=torch.device("cuda", torch.cuda.current_device()))
    ),
    "factory, get_device()": lambda x: x + torch.ones(4, device=x.get_device()),
    "factory, an f-string": lambda x: (
        x + torch.ones(4, device=f"cuda:{torch.cuda.current_device()}")
    ),
    "a constant": lambda x: x * torch.tensor(2.0, device="cuda"),
    "a constant that moves": lambda x: x * torch.tensor([1.0, 2.0, 3.0, 4.0]).cuda(),
    "new_zeros": lambda x: x.new_zeros(4) + x,
    "cpu and back": lambda x: (x.to("cpu") * 2).to(x.device),
}


@pytest.mark.parametrize("name", PORTABLE)
def test_a_graph_follows_the_current_device(name: str, cuda: Any) -> None:
    graph = capture(PORTABLE[name], on(cuda))
    text = lower(graph, "graph").text
    assert "cuda:" not in text + graph.gm.code and "index=" not in text
    assert graph.contract()["inputs"][0]["device"] == "cuda"
    assert "coor" not in text, "a rank would need the tracer for this operator"


def test_the_choice_of_the_current_one_is_nothing(cuda: Any) -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        torch.cuda.set_device(torch.cuda.current_device())
        with torch.cuda.device(x.device):
            return x + 1

    assert "cuda" not in lower(capture(step, on(cuda)), "graph").text


def second(x: torch.Tensor) -> torch.Tensor:
    return x.to("cuda:1") * 2  # the line


def made(x: torch.Tensor) -> Any:
    return x, torch.ones(4, device=torch.device("cuda", 1))  # the line


def chosen(x: torch.Tensor) -> torch.Tensor:
    torch.cuda.set_device(1)  # the line
    return x


def inside(x: torch.Tensor) -> torch.Tensor:
    with torch.cuda.device(1):  # the line
        return x + 1


@pytest.mark.parametrize("step", [second, made, chosen, inside])
def test_a_second_accelerator_is_refused_at_its_line(step: Any, cuda: Any) -> None:
    with pytest.raises(CaptureError, match=r"touches a second accelerator, cuda:1") as caught:
        capture(step, on(cuda))
    assert caught.value.where == line_of(step)
    assert caught.value.want == "cuda:0, the current one, and the CPU"
    assert caught.value.code == "LS100"


def line_of(step: Any) -> str:
    lines = Path(__file__).read_text().splitlines()
    first = step.__code__.co_firstlineno
    return f"{HERE}:{next(i for i in range(first, first + 9) if '# the line' in lines[i - 1])}"


def test_a_closed_over_constant_on_a_second_one(cuda: Any) -> None:
    constant = on(cuda, "cuda:1")

    def used(x: torch.Tensor) -> Any:
        return x, constant.sum()

    def like(x: torch.Tensor) -> Any:
        return x, constant.new_zeros(4)

    for step, line in ((used, 2), (like, 5)):
        with pytest.raises(CaptureError, match="closes over the tensor constant") as caught:
            capture(step, on(cuda))
        here = test_a_closed_over_constant_on_a_second_one.__code__.co_firstlineno
        assert caught.value.where == f"{HERE}:{here + 2 + line}"
        assert "f32[2, 4] on cuda:1" in str(caught.value)


@pytest.mark.parametrize("kind", ["cuda:0", "cpu"])
def test_an_optimizer_takes_the_form_that_eager_takes_there(kind: str, cuda: Any) -> None:
    with cuda:
        model = nn.Linear(4, 4, device=kind)
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    graph = capture(lambda model, optimizer: optimizer.step(), model, optimizer)
    assert ("_foreach_" in lower(graph, "graph").text) is (kind == "cuda:0")


class Half(nn.Module):
    """Its second layer was left behind on another accelerator."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4, device="cuda:0")
        self.second = nn.Linear(4, 4, device="cuda:1")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))  # mixes them

    def moved(self, x: torch.Tensor) -> torch.Tensor:
        return self.second.weight.new_ones(4)  # an operator's result


def test_a_module_that_was_left_behind(cuda: Any) -> None:
    with cuda:
        model = Half()
    first = Half.__init__.__code__.co_firstlineno
    with pytest.raises(CaptureError, match="second accelerator, cuda:1") as caught:
        capture(lambda m, x: m(x), model, on(cuda))
    assert caught.value.where == f"{HERE}:{first + 6}"
    with pytest.raises(CaptureError, match="second accelerator, cuda:1") as caught:
        capture(lambda m, x: (m.moved(x), x), model, on(cuda))
    assert caught.value.where == f"{HERE}:{first + 9}"
    with pytest.raises(CaptureError, match=r"m\.second\.weight on cuda:1") as caught:
        capture(lambda m, x: m.first(x), model, on(cuda))
    assert caught.value.fixes[0] == 'move it to the current one before the step: .to("cuda")'


def test_cpu_and_accelerator_mixed_is_the_users_own_error(cuda: Any) -> None:
    with pytest.raises(RuntimeError, match="device") as caught:
        capture(lambda x: x + torch.ones(4), on(cuda))
    assert not isinstance(caught.value, CaptureError)


NUMBERS = {
    "added": lambda x: x + torch.cuda.current_device(),
    "compared": lambda x: x if torch.cuda.current_device() == 0 else -x,
    "decided": lambda x: x if torch.cuda.current_device() else -x,
    "filled": lambda x: x + torch.full((4,), torch.cuda.current_device(), device="cuda"),
    "a key": lambda x: x * {0: 1.0, 1: 2.0}[torch.cuda.current_device()],
    "get_device": lambda x: x * (1 + x.get_device()),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_the_index_is_no_number(name: str, cuda: Any) -> None:
    with pytest.raises(CaptureError, match="reads the index of its device as a number") as caught:
        capture(NUMBERS[name], on(cuda))
    assert (caught.value.where or "").startswith(f"{HERE}:")


def test_a_rank_without_an_accelerator_says_so(monkeypatch: pytest.MonkeyPatch, cuda: Any) -> None:
    monkeypatch.setattr(_compat, "current_accelerator", lambda: None)
    with pytest.raises(CaptureError, match="this machine has no accelerator") as caught:
        capture(lambda x: x + 1, on(cuda))
    assert caught.value.got == "x on cuda:0"
