"""A fingerprint changes with everything that can change the program, and with nothing else."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from lockstep.build.fingerprint import differences, digest, fingerprint, short, show
from lockstep.capture.binding import Step
from lockstep.run.key import Bound, contract
from lockstep.spmd.types import I, P

SOURCE = '''
"""A module."""
import torch
from torch import nn

FACTOR = 2.0
TABLE = {"a": [1, 2]}

def helper(x):
    """Doc."""
    return x * FACTOR

class Model(nn.Module):
    def __init__(self, eps=1e-5):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.eps = eps

    def forward(self, x):
        return helper(self.linear(x)) + self.eps + TABLE["a"][0]

def step(model, x):
    # a comment
    loss = model(x).sum()
    loss.backward()
    return loss
'''


def load(folder: Path, source: str) -> ModuleType:
    path = folder / "user_code.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location("user_code", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["user_code"] = module
    spec.loader.exec_module(module)
    return module


def table(folder: Path, source: str = SOURCE, rows: int = 2, change: Any = None) -> dict[str, Any]:
    import linecache

    linecache.clearcache()
    user = load(folder, source)
    model = user.Model()
    if change:
        change(model)
    step = Step(user.step)
    call = step.call((model, torch.ones(rows, 3)), {})
    bound = Bound(step, call)
    return fingerprint(
        step,
        call,
        bound.state,
        bound.reach,
        contract=contract(call, bound),
        mesh={"dp": 2},
        backend="graph",
        options={"data": "dp"},
    )


def test_comments_docstrings_and_positions_do_not_count(tmp_path: Path) -> None:
    other = SOURCE.replace("    # a comment\n", "\n\n").replace('"""Doc."""', '"""Another."""')
    assert digest(table(tmp_path)) == digest(table(tmp_path, other))


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ("model(x).sum()", "model(x).mean()", "source user_code.step"),
        ("return x * FACTOR", "return x + FACTOR", "source user_code.helper"),
        ("+ self.eps +", "- self.eps +", "source user_code.Model.forward"),
        ("FACTOR = 2.0", "FACTOR = 3.0", "value user_code:FACTOR"),
        ('{"a": [1, 2]}', '{"a": [1, 3]}', "value user_code:TABLE"),
        ("eps=1e-5", "eps=1e-6", "module model"),
        ("nn.Linear(3, 3)", "nn.Linear(3, 3, bias=False)", "contract model.linear.bias"),
    ],
)
def test_a_change_is_told_by_its_field(tmp_path: Path, old: str, new: str, field: str) -> None:
    assert old in SOURCE
    rows = differences(table(tmp_path), table(tmp_path, SOURCE.replace(old, new)))
    assert field in [name for name, _, _ in rows]


def test_the_contract_counts(tmp_path: Path) -> None:
    base = table(tmp_path)
    assert differences(base, table(tmp_path, rows=4)) == [("contract x", "f32[2, 3]", "f32[4, 3]")]
    frozen = table(tmp_path, change=lambda m: m.linear.bias.requires_grad_(False))
    assert differences(base, frozen) == [
        ("contract model.linear.bias", "f32[3] needs grad, no .grad", "f32[3]")
    ]
    assert [r[0] for r in differences(base, table(tmp_path, change=lambda m: m.eval()))] == [
        "contract model.linear.training",
        "contract model.training",
    ]


def test_nothing_of_the_machine_is_in_it(tmp_path: Path) -> None:
    text = str(table(tmp_path))
    for secret in (str(tmp_path), str(Path.cwd()), str(Path.home()) + "/"):
        assert secret not in text


def test_values_are_shown_exactly_and_without_addresses() -> None:
    assert show(0.1) == "0x1.999999999999ap-4"
    assert show({"a": (1, None), "b": torch.float32}) == {"a": [1, None], "b": "torch.float32"}
    assert show({"b": 1, "a": 2}) == {"b": 1, "a": 2, "(order)": ["b", "a"]}
    assert show(object()) == "<builtins.object>"
    config = SimpleNamespace(flag=True, sizes=[1, 2], _path="/somewhere", lock=object())
    assert show(config) == {"class": "types.SimpleNamespace", "flag": True, "sizes": [1, 2]}
    assert show(torch.device("cuda:3")) == show("cuda:3") == "cuda"
    assert show(["/home/me/data", {"log_dir": "runs"}]) == ["<path>", {"log_dir": "<path>"}]
    assert short([1]) == [1]
    long = short(list(range(5000)))
    assert long.startswith("list, sha256 ") and long != short(list(range(5001)))


def test_a_value_is_what_is_read_back_of_it() -> None:
    for value in (I, P("mean"), pytest.ExitCode.OK, True, 1.5, torch.float32):
        shown = show(value)
        again = json.loads(json.dumps(shown))
        assert type(shown) is type(again) and shown == again
