"""Updates of many tensors, taken apart: each tensor's own, to the bit, fused and in place."""

from __future__ import annotations

import operator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import lockstep as ls
from bench.step import peak_bytes
from lockstep.build.artifact import PROGRAM, Artifact
from lockstep.build.outline.nodes import calls
from lockstep.build.passes import apply, update
from lockstep.build.passes.apply import Setting, applied
from lockstep.build.passes.update import loop_of, one_by_one
from tests.graphs import Traced, trace

SIZES = (5, 64, 17)
ASKED = {"update": 1}


def tensors(number: int) -> list[Tensor]:
    """Several tensors, away from 0 and positive."""
    torch.manual_seed(number)
    return [torch.rand(size) + 0.25 for size in SIZES]


FIRST, SECOND, THIRD, NUMBERS = tensors(0), tensors(1), tensors(2), [0.3, 1.7, -0.9]
CALLS: dict[str, list[Any]] = {
    "sqrt": [[FIRST]], "rsqrt": [[FIRST]], "neg": [[FIRST]], "abs": [[FIRST]], "sign": [[FIRST]],
    "exp": [[FIRST]], "reciprocal": [[FIRST]],
    "add": [[FIRST, 0.3], [FIRST, NUMBERS], [FIRST, SECOND, 0.7], [FIRST, SECOND[0].sum()]],
    "sub": [[FIRST, 0.3], [FIRST, NUMBERS], [FIRST, SECOND, 0.7]],
    "mul": [[FIRST, 0.3], [FIRST, NUMBERS], [FIRST, SECOND], [FIRST, SECOND[0].sum()]],
    "div": [[FIRST, 0.3], [FIRST, NUMBERS], [FIRST, SECOND], [FIRST, SECOND[0].sum()]],
    "addcmul": [[FIRST, SECOND, THIRD, 0.3], [FIRST, SECOND, THIRD, NUMBERS]],
    "addcdiv": [[FIRST, SECOND, THIRD, 0.3], [FIRST, SECOND, THIRD, NUMBERS]],
    "lerp": [[FIRST, SECOND, 0.3], [FIRST, SECOND, NUMBERS], [FIRST, SECOND, THIRD]],
}  # fmt: skip
CASES = [(name, args) for name, given in CALLS.items() for args in given]


def called(name: str, args: list[Any]) -> Traced:
    """A graph of one foreach call, and of the same in place on copies."""
    flat = [one for arg in args for one in (arg if isinstance(arg, list) else [arg])]
    held = [one for one in flat if isinstance(one, Tensor)]

    def step(*values: Tensor) -> list[Tensor]:
        left = iter(values)

        def own(arg: Any) -> Any:
            if isinstance(arg, list):
                return [next(left) if isinstance(one, Tensor) else one for one in arg]
            return next(left) if isinstance(arg, Tensor) else arg

        given, keywords = [own(arg) for arg in args], {}
        if name in ("add", "sub") and len(given) == 3:
            keywords["alpha"] = given.pop()
        made = getattr(torch, f"_foreach_{name}")(*given, **keywords)
        if isinstance(args[0], list) and hasattr(torch, f"_foreach_{name}_"):
            copies = [one.clone() for one in given[0]]
            getattr(torch, f"_foreach_{name}_")(copies, *given[1:], **keywords)
            made = [*made, *copies]
        return list(made)

    return trace(step, held)


@pytest.mark.parametrize(("name", "args"), CASES, ids=[f"{n}{len(a)}" for n, a in CASES])
def test_each_operator_is_its_loop_to_the_bit(name: str, args: list[Any]) -> None:
    flat = [one for arg in args for one in (arg if isinstance(arg, list) else [arg])]
    held = [one for one in flat if isinstance(one, Tensor)]
    traced = called(name, args)
    made, told = applied(traced.gm, ASKED, Setting(traced.fake_mode, {}))
    foreach = [n for n in calls(traced.gm.graph) if "_foreach_" in str(n.target)]
    assert told == {"update": len(foreach)} and foreach
    assert not [node for node in calls(made.graph) if "_foreach_" in str(node.target)]
    assert all(map(torch.equal, traced.gm(*held), made(*held)))


def test_copies_and_zeros() -> None:
    def step(*x: Tensor) -> list[Tensor]:
        first, second = list(x[:3]), list(x[3:])
        torch._foreach_copy_(first, second)
        kept = [one.clone() for one in first]
        torch._foreach_zero_(first)
        return [*first, *kept]

    traced = trace(step, [*FIRST, *SECOND])
    made, told = applied(traced.gm, ASKED, Setting(traced.fake_mode, {}))
    assert told == {"update": 2}
    given = [one.clone() for one in (*FIRST, *SECOND)]
    zeros, kept = made(*given)[:3], made(*given)[3:]
    assert not any(one.any() for one in zeros) and all(map(torch.equal, kept, SECOND))


def test_an_operator_that_the_table_has_not_stays() -> None:
    traced = trace(lambda *x: torch._foreach_norm(list(x)), FIRST)
    assert one_by_one(traced.gm.graph) == 0
    traced = called("sqrt", [FIRST])
    for node in traced.gm.graph.nodes:  # on an accelerator they are kernels of their own
        value = node.meta.get("val")
        node.meta["val"] = value.to("meta") if isinstance(value, Tensor) else value
    assert one_by_one(traced.gm.graph) == 0


def test_a_loop_that_is_put_in_wrongly_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    traced, original = called("mul", [FIRST, SECOND]), update._inlined
    setting = Setting(traced.fake_mode, {})
    assert applied(traced.gm, ASKED, setting)[1] == {"update": 2}

    def swapped(*given: Any) -> list[Any]:
        first, second, *rest = original(*given)
        return [second, first, *rest]

    monkeypatch.setattr(update, "_inlined", swapped)
    made, told = applied(traced.gm, ASKED, setting)
    assert told == {"update": "left out: it was not proved to keep every bit"}
    assert made is traced.gm


def test_a_late_write_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop that stands behind a write to what it reads gives something else."""

    def step(*x: Tensor) -> list[Tensor]:
        made = torch._foreach_mul(list(x), 2.0)
        torch._foreach_add_(list(x), 1.0)
        return [*made, *(one.clone() for one in x)]

    traced = trace(step, FIRST)
    setting = Setting(traced.fake_mode, {})
    assert applied(traced.gm, ASKED, setting)[1] == {"update": 2}

    def late(graph: Any) -> int:
        *_, last = (n for n in calls(graph) if "_foreach_add_" in str(n.target))
        first = next(n for n in calls(graph) if "_foreach_mul" in str(n.target))
        for node in [first, *first.users]:
            last.append(node) if node is first else first.append(node)
        return one_by_one(graph)

    monkeypatch.setitem(
        apply.PASSES, "update", apply.Pass(lambda graph, *_: late(graph), local=True)
    )
    told = applied(traced.gm, ASKED, setting)[1]
    assert told == {"update": "left out: it was not proved to keep every bit"}


def adamw(store: Path, on: bool) -> tuple[list[Tensor], Artifact, int]:
    """Parameters after some updates, the program, and the bytes that one more holds."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(3)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=True)

    @ls.compile(mesh=ls.mesh("cpu", dp=-1), data="dp", store=store, passes={"update": on})
    def step(model: Any, optimizer: Any) -> None:
        optimizer.step()

    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    where = [parameter.data_ptr() for parameter in model.parameters()]
    for rate in (1e-2, 3e-3, 1e-3):
        optimizer.param_groups[0]["lr"] = rate
        step(model, optimizer)
    assert where == [parameter.data_ptr() for parameter in model.parameters()]
    found = [parameter.detach().clone() for parameter in model.parameters()]
    (file,) = store.glob("*.lockstep")
    held = peak_bytes(lambda: step(model, optimizer))
    return found, Artifact.from_bytes(file.read_bytes()), held


@pytest.mark.timeout(300)  # a cold compiler cache takes most of it
def test_a_compiled_update_holds_nothing_and_has_the_same_bits(tmp_path: Path) -> None:
    found, artifact, held = adamw(tmp_path / "on", True)
    lists, other, more = adamw(tmp_path / "off", False)
    assert all(map(torch.equal, found, lists))
    assert artifact.manifest["passes"]["update"] > 4 and "passes" not in other.manifest
    assert "aten._foreach_" in other.blobs[PROGRAM].decode()  # the twin
    assert "aten._foreach_" not in artifact.blobs[PROGRAM].decode()
    parameters = 3 * (64 * 64 + 64) * 4
    assert held < parameters / 50 and more > 2 * parameters


def test_what_is_read_as_a_whole_stays() -> None:
    traced = called("sqrt", [FIRST])
    (node, *_) = [n for n in calls(traced.gm.graph) if "_foreach_sqrt" in str(n.target)]
    assert all(user.target is operator.getitem for user in node.users)
    graph, given = loop_of(node) or (None, [])
    assert graph is not None and given == list(node.args[0])
    node.graph.output_node().args = (node,)
    assert one_by_one(traced.gm.graph) == 1  # the one in place
