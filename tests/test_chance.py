"""What the system draws by chance is another at each call: refused at its line inside a step."""

from __future__ import annotations

import os
import random
import secrets
import uuid
from collections.abc import Callable

import pytest
import torch
from torch import nn

from lockstep.capture.capture import capture
from lockstep.errors import CaptureError

HERE = "tests/test_chance.py"
DRAWS: dict[str, Callable[[], float]] = {
    "uuid.uuid4()": lambda: uuid.uuid4().int % 5,
    "uuid.uuid1()": lambda: uuid.uuid1().int % 5,
    "os.urandom()": lambda: os.urandom(1)[0],
    "secrets.randbelow()": lambda: secrets.randbelow(5),
    "secrets.choice()": lambda: secrets.choice([1, 2]),
    "secrets.token_bytes()": lambda: len(secrets.token_bytes(3)),
    "random.SystemRandom.random()": lambda: random.SystemRandom().random(),
}


@pytest.mark.parametrize("name", DRAWS)
def test_it_is_refused_at_its_line(name: str) -> None:
    draw = DRAWS[name]
    with pytest.raises(CaptureError) as caught:
        capture(lambda x: x * draw(), torch.ones(2))
    assert caught.value.what == f"the step reads its process or machine: {name}"
    assert caught.value.where == f"{HERE}:{draw.__code__.co_firstlineno}"


def test_outside_of_a_step_it_is_the_users_own() -> None:
    scale = float(secrets.randbelow(5) + len(uuid.uuid4().hex) + os.urandom(1)[0])
    graph = capture(lambda x, scale: x * scale, torch.ones(2), scale)
    assert [spec.kind for spec in graph.inputs] == ["arg", "float"]
    assert len(uuid.uuid4().hex) == 32, "put back"


@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_scripted_module_is_named() -> None:
    scripted = torch.jit.script(nn.Linear(2, 2))
    for model, name in ((scripted, "model"), (nn.Sequential(scripted), "model.0")):
        with pytest.raises(CaptureError, match=rf"^LS100: {name} is made by torch\.jit") as caught:
            capture(lambda model, x: model(x), model, torch.ones(1, 2))
        assert caught.value.got == "RecursiveScriptModule"
