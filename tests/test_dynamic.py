"""`dynamic=`: one artifact for every size in a range, its guards asked at each call."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lockstep as ls
from lockstep.build.graph_backend import graph_text
from lockstep.capture.binding import Step
from lockstep.capture.capture import capture_call
from lockstep.capture.ranges import Size
from lockstep.capture.state import collect
from lockstep.errors import CaptureError, ContractError, UsageError
from lockstep.run.dynamic import fits, read_dynamic
from tests.bitwise.compare import same

BOTH = {"batch['tokens']": {0: (2, 64)}, "batch['labels']": {0: (2, 64)}}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(9, 4), nn.Linear(4, 9)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.out(torch.tanh(self.words(tokens)))


def train(model: Net, batch: dict[str, torch.Tensor]) -> Any:
    logits = model(batch["tokens"]).flatten(0, 1)
    loss = ls.loss(F.cross_entropy(logits, batch["labels"].flatten()), dp="mean")
    loss.backward()
    ls.reduce_grads(model, dp="mean")
    return loss, batch["tokens"].shape[0]


def batch(size: int, labels: int | None = None, length: int = 5) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(size)
    rows = {"tokens": size, "labels": labels or size}
    return {name: torch.randint(9, (n, length), generator=draw) for name, n in rows.items()}


def compiled(function: Any, dynamic: Any, backend: str = "graph", **options: Any) -> Any:
    mesh = ls.mesh(dp=-1)
    return ls.compile(function, mesh=mesh, backend=backend, dynamic=dynamic, **options)


def programs(step: Any) -> int:
    return len({variant.digest for variant in step._variants.values()})


@pytest.mark.parametrize("backend", ["graph", "inductor"])
def test_one_program_serves_every_size_in_the_range(backend):
    step, model = compiled(train, BOTH, backend), Net()
    twin = copy.deepcopy(model)
    for size in (4, 2, 3, 64, 17):
        mine, its = step(model, batch(size)), train(twin, batch(size))
        assert mine[1] == its[1] == size
        for p, q in zip(model.parameters(), twin.parameters(), strict=True):
            assert torch.allclose(p.grad, q.grad, atol=1e-6)
            assert backend == "inductor" or same(p.grad, q.grad)
        model.zero_grad()
        twin.zero_grad()
    assert programs(step) == 1


def test_the_contract_holds_ranges_and_guards():
    step = compiled(train, BOTH)
    step(Net(), batch(4))
    (variant,) = step._variants.values()
    contract = json.loads(json.dumps({"inputs": variant._inputs}))
    rows = {row["name"]: row["shape"] for row in contract["inputs"] if row["kind"] == "arg"}
    assert rows == {name: ["2..64", 5] for name in BOTH}
    (words,) = step._contracts.values()
    assert words["batch['tokens']"] == "i64[2..64, 5]"


@pytest.mark.parametrize(("size", "range_"), [(65, "(2, 65)"), (100, "(2, 100)")])
def test_a_size_outside_is_an_error_that_says_how_to_widen(size, range_):
    step, model = compiled(train, BOTH), Net()
    step(model, batch(4))
    with pytest.raises(ContractError) as caught:
        step(model, batch(size))
    text = str(caught.value)
    assert f"got  batch['tokens'].shape[0] = {size}" in text
    assert "want batch['tokens'].shape[0] from 2 to 64" in text
    assert f"\"batch['labels']\": {{0: {range_}}}" in text
    assert programs(step) == 1


def test_a_size_below_the_range_is_padded():
    with pytest.raises(ContractError, match=r"fix  pad it: ls\.even_batches"):
        compiled(train, BOTH)(Net(), batch(1))


def test_a_size_outside_may_be_built_for():
    step, model = compiled(train, BOTH, on_new_shape="build"), Net()
    for size in (4, 65, 7, 65, 1):
        assert step(model, batch(size))[1] == size
        model.zero_grad()
    assert programs(step) == 3


def test_sizes_that_the_step_takes_to_be_equal_have_to_be():
    step, model = compiled(train, BOTH), Net()
    step(model, batch(4))
    model.zero_grad()
    with pytest.raises(ContractError) as caught:
        step(model, batch(5, labels=6))
    text = str(caught.value)
    assert "got  batch['tokens'].shape[0] = 5, batch['labels'].shape[0] = 6" in text
    assert "want batch['tokens'].shape[0] == batch['labels'].shape[0]" in text
    assert "at   tests/test_dynamic.py:" in text


def sided(x: torch.Tensor) -> torch.Tensor:
    if x.shape[0] <= 6:
        return x * 2
    return x * 3


SIDED_AT = sided.__code__.co_firstlineno + 1


def test_the_side_of_a_branch_is_a_guard():
    step = compiled(sided, {"x": {0: (2, 64)}})
    assert step(torch.ones(6)).sum() == 12
    with pytest.raises(ContractError) as caught:
        step(torch.ones(7))
    assert "want x.shape[0] <= 6" in str(caught.value)
    assert f"at   tests/test_dynamic.py:{SIDED_AT}" in str(caught.value)


def test_what_of_a_range_is_left_out_is_told_at_start(capfd):
    compiled(sided, {"x": {0: (2, 64)}})(torch.ones(6))
    told = "58 of the 63 sizes of x.shape[0] (7, 8, 9 to 64) are left out: x.shape[0] <= 6"
    assert f"{told}, tests/test_dynamic.py:{SIDED_AT}" in capfd.readouterr().err
    compiled(train, BOTH)(Net(), batch(4))
    assert "left out" not in capfd.readouterr().err


def test_the_other_side_of_a_branch_may_be_built():
    step = compiled(sided, {"x": {0: (2, 64)}}, on_new_shape="build")
    totals = [step(torch.ones(n)).sum().item() for n in (6, 7, 5, 7)]
    assert totals == [12, 21, 10, 21]
    assert programs(step) == 2


def looped(x: torch.Tensor) -> torch.Tensor:
    total = x[0] * 0
    for i in range(len(x)):
        total = total + x[i] * i
    return total


def added(x: torch.Tensor) -> torch.Tensor:
    total = x.sum()
    return x * total + torch.ones(4)


def counted(x: torch.Tensor) -> torch.Tensor:
    total = x.sum()
    return total / len(x)


@pytest.mark.parametrize(("function", "line"), [(looped, 2), (added, 2), (counted, 2)])
def test_a_size_that_the_step_fixes_is_refused_at_its_line(function, line):
    with pytest.raises(CaptureError) as caught:
        compiled(function, {"x": {0: (2, 64)}})(torch.ones(4))
    text = str(caught.value)
    assert "the step takes x.shape[0] to be 4 and nothing else" in text
    assert f"at   tests/test_dynamic.py:{function.__code__.co_firstlineno + line}" in text


def test_a_size_by_which_something_divides_is_a_guard():
    step = compiled(lambda x: x.reshape(4, -1).sum(0), {"x": {0: (2, 64)}})
    assert step(torch.ones(8)).tolist() == [4, 4]
    assert step(torch.ones(12)).tolist() == [4, 4, 4]
    with pytest.raises(ContractError, match=r"want \(x\.shape\[0\] % 4\) == 0"):
        step(torch.ones(9))


def test_a_slice_keeps_its_strides():
    def half(x):
        return (x * 2).sum(1)

    step, wide = compiled(half, {"x": {0: (2, 9)}}), torch.arange(54.0).view(9, 6)
    for size in (4, 9, 2):
        assert same(step(wide[:size, :-1]), half(wide[:size, :-1]))
    assert programs(step) == 1


def test_two_dimensions_of_one_argument():
    def mean(x):
        return x.mean(0) + x.shape[1]

    step = compiled(mean, {"x": {0: (2, 8), 1: (2, 8)}})
    for shape in ((4, 3), (2, 8), (7, 7)):
        assert same(step(torch.ones(shape)), mean(torch.ones(shape)))
    assert programs(step) == 1


@pytest.mark.parametrize(
    ("dynamic", "text"),
    [
        ({"tokens": {0: (2, 64)}}, "train has no argument tokens\n  want one of batch['tokens'], "),
        ({"batch['tokens']": {2: (2, 64)}}, "batch['tokens'] has no dimension 2\n  got  i64[4, 5]"),
        (
            {"batch['tokens']": {0: (2,)}},
            "want (smallest, largest), two numbers\n  fix  0: (2, 64)",
        ),
        ({"batch['tokens']": {0: (8, 8)}}, "want (smallest, largest)"),
        ({"batch['tokens']": {0: (1, 8)}}, "want 2 as the smallest size"),
        ({"batch['tokens']": {-1: (2, 8)}}, "want dimensions from 0 on"),
        ({"batch['tokens']": (2, 8)}, "want ranges by argument and dimension"),
        (["tokens"], "want ranges by argument and dimension"),
    ],
)
def test_what_cannot_be_meant_is_said(dynamic, text):
    with pytest.raises(UsageError) as caught:
        compiled(train, dynamic)(Net(), batch(4))
    assert text in str(caught.value)


def test_a_transposed_argument_is_made_contiguous():
    step = compiled(lambda x: x + 1, {"x": {0: (2, 64)}})
    with pytest.raises(UsageError, match=r"pass x\.contiguous\(\)"):
        step(torch.ones(5, 4).T)


def test_a_range_admits_what_is_in_it():
    assert fits([4, 5], ["2..64", 5]) and fits([5, 1], ["*", 1]) and fits("cpu", "cpu")
    assert not fits([65, 5], ["2..64", 5])
    assert not fits([4, 6], ["2..64", 5])
    assert not fits([4], ["2..64", 5])


def test_lists_of_sizes_are_refused_by_compile_itself():
    with pytest.raises(UsageError, match="want ranges by argument"):
        ls.compile(train, dynamic={"x": [2, 64]})


def test_nothing_given_is_nothing():
    assert read_dynamic(None) == ()


def test_the_program_and_its_guards_do_not_depend_on_the_size_at_capture():
    ls.mesh(dp=-1)
    sizes = read_dynamic(BOTH)
    step, found = Step(train), []
    for size in (3, 40):
        call = step.call((Net(), batch(size)), {})
        graph = capture_call(step, call, collect(call), None, sizes)
        found.append((graph_text(graph.gm), graph.contract()))
    assert found[0] == found[1]
    names = ["batch['tokens'].shape[0]", "batch['labels'].shape[0]"]
    assert [str(Size(**row)) for row in found[0][1]["sizes"]] == names
    (guard,) = found[0][1]["guards"]
    assert guard["text"] == "n0 == n1"
