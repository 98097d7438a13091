"""`ls.log` and `ls.on_rank` in one process: at once, compiled, in a check; and what they refuse."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import lockstep as ls
from lockstep.capture.capture import capture
from lockstep.capture.percent import Percents
from lockstep.checker.world import simulated_rank
from lockstep.run.emit import value
from lockstep.spmd.claims import in_phase
from lockstep.spmd.effects import Where
from lockstep.spmd.places import places_of

SEEN: list[Any] = []
NO_FUNCTION: Any = "note"


def note(*values: Any) -> None:
    SEEN.append([v.tolist() if isinstance(v, Tensor) else v for v in values])


def step(x: Tensor) -> Tensor:
    total = x.sum()
    ls.log("sum {:.2f} of {}", total, x.shape[0])
    ls.on_rank(0, note, x, "before")
    x.add_(1)
    ls.on_rank(0, note, x, "after")
    return total


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return ls.compile(backend="graph")(function)


def test_it_happens_at_once_outside_of_a_compiled_step(capsys: pytest.CaptureFixture[str]) -> None:
    SEEN.clear()
    step(torch.zeros(2))
    assert capsys.readouterr().out == "sum 0.00 of 2\n"
    assert SEEN == [[[0.0, 0.0], "before"], [[1.0, 1.0], "after"]]


def test_compiled_it_happens_once_a_call_with_the_values_of_its_place(
    capsys: pytest.CaptureFixture[str],
) -> None:
    SEEN.clear()
    run, x = compiled(step), torch.zeros(2)
    capsys.readouterr()
    for _ in range(3):
        run(x)
    lines = [row for row in capsys.readouterr().out.splitlines() if row.startswith("sum")]
    assert lines == ["sum 0.00 of 2", "sum 2.00 of 2", "sum 4.00 of 2"]
    assert SEEN[:2] == [[[0.0, 0.0], "before"], [[1.0, 1.0], "after"]]
    assert SEEN[4:] == [[[2.0, 2.0], "before"], [[3.0, 3.0], "after"]]


def test_in_a_check_nothing_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    SEEN.clear()
    with in_phase("check"):
        step(torch.zeros(2))
    assert capsys.readouterr().out == ""
    assert SEEN == []


def test_the_manifest_holds_names_and_no_functions() -> None:
    graph = capture(step, torch.zeros(2))
    log, before, _ = [emit.asdict() for emit in graph.emits]
    assert log["what"][0] == ["text", "sum {:.2f} of {}"]
    assert log["where"] == [{"names": ["world"], "places": [[0]], "inside": True}]
    assert before["name"] == ["module", "tests.test_logging", "note"]


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda x: ls.log("{:.3f} {}", x.sum()), "the text does not fit its values"),
        (lambda x: ls.log("{:.3f}", x), "the text does not fit its values"),
        (lambda x: ls.log("{}", [x]), "ls.log takes tensors, numbers and text"),
        (lambda x: ls.log("{}", x, rank=7), "ls.log: rank=7"),
        (lambda x: ls.log("{}", x, rank=0, dp=0), "a rank and places on axes"),
        (lambda x: ls.on_rank(0, NO_FUNCTION, x), "ls.on_rank takes a function"),
        (lambda x: ls.on_rank(0, note, {"x": x}), "ls.on_rank takes tensors, numbers and text"),
    ],
)
def test_what_cannot_be_meant_is_refused_at_its_line(call: Any, told: str) -> None:
    with pytest.raises(ls.LockstepError, match=told) as caught:
        call(torch.zeros(2))
    assert caught.value.where is not None
    assert caught.value.where.endswith(f":{call.__code__.co_firstlineno}")


def test_a_callback_without_a_name_is_refused() -> None:
    def odd(x: Tensor) -> Tensor:
        ls.on_rank(0, functools.partial(note, 1), x)
        return x + 1

    with pytest.raises(ls.LockstepError, match="has no name that another process would find"):
        capture(odd, torch.zeros(2))


def test_what_a_callback_changes_is_no_part_of_the_program() -> None:
    kept: list[float] = []

    def keeps(x: Tensor) -> Tensor:
        ls.on_rank(0, kept.append, x.sum())
        return x + 1

    run = compiled(keeps)
    for i in range(3):
        run(torch.full((2,), float(i)))
    assert [float(value) for value in kept] == [0.0, 2.0, 4.0]
    assert len(run._variants) == 1  # type: ignore[attr-defined]


def test_a_branch_whose_sides_differ_names_both() -> None:
    def parts(x: Tensor) -> Tensor:
        if torch.distributed.get_rank() == 0:
            x = x * 2
            print(x.sum().item())
        return x + 1

    with simulated_rank(1, {"dp": 2}), pytest.raises(ls.LockstepError) as caught:
        capture(parts, torch.zeros(2))
    line = parts.__code__.co_firstlineno
    assert caught.value.got == (
        f"if torch.distributed.get_rank() == 0:\n"
        f"dp 0: aten.mul.Tensor at tests/test_logging.py:{line + 2}\n"
        f"dp 1: aten.add.Tensor at tests/test_logging.py:{line + 4}"
    )


def test_a_branch_that_only_tells_is_mended_by_a_line_to_paste() -> None:
    def draws(x: Tensor) -> Tensor:
        if torch.distributed.get_rank() == 0:
            print(torch.rand(1).item())
        return x + 1

    with simulated_rank(0, {"dp": 2}), pytest.raises(ls.LockstepError) as caught:
        capture(draws, torch.zeros(2))
    assert caught.value.fixes[0].startswith('ls.log("loss {:.3f}", loss, rank=0)')


def test_effects_of_the_other_side_are_computed_in_the_one_graph() -> None:
    def other(x: Tensor) -> Tensor:
        if torch.distributed.get_rank() == 1:
            print(f"{x.norm().item():.3f}")
        return x + 1

    graphs = []
    for rank in (0, 1):
        with simulated_rank(rank, {"dp": 2}):
            graphs.append(capture(other, torch.zeros(2)))
    one, two = graphs
    assert one.gm.code == two.gm.code
    assert "linalg_vector_norm" in one.gm.code
    assert [emit.where for emit in one.emits] == [(Where(("dp",), ((1,),)),)]


def test_ranks_are_where_the_axes_of_their_mesh_say() -> None:
    names = {"tp": 2, "world": 4, "tp@1": 4}
    with simulated_rank(2, {"dp": 2, "tp": 2}):
        real, few = places_of(names, 100), places_of(names, 3)
    assert few is None
    assert real is not None
    assert [tuple(place.values()) for place in real] == [
        (0, 0, 1), (0, 2, 3), (1, 1, 1), (1, 3, 3)
    ]  # fmt: skip
    with simulated_rank(0, {"dp": 1}):  # a second place is taken to be there, as in a larger world
        assert places_of({"dp": 2}, 100) == [{"dp": 0}, {"dp": 1}]


def test_values_are_made_as_they_were_written_down() -> None:
    outputs = [torch.tensor(2.5), torch.tensor([1, 2])]
    assert value(["text", "a ", ["shown", ["mul", ["item", 0], ["value", 2]], ".1f"]], outputs) == (
        "a 5.0"
    )
    assert value(["percent", ["item", 0], "%06.2f"], outputs) == "002.50"
    assert value(["shown", ["tensor", 1], None], outputs) == "tensor([1, 2])"
    assert value(
        ["dict", [["value", "k"], ["list", ["round", ["item", 0], ["value", 0]]]]], outputs
    ) == {"k": [2.0]}


def test_numbers_put_in_by_percent_are_found_again() -> None:
    percents = Percents(samples=False)
    frame = _Asking(percents)
    text = "a %8.3f, %d %% and %s" % (frame, frame, "b")  # noqa: UP031
    pieces = percents.split(f"- {text}\n")
    assert [p if isinstance(p, str) else p[1] for p in pieces if p] == [
        "- ", "a ", "%8.3f", ", ", "%d", " % and ", "b\n"
    ]  # fmt: skip
    assert percents.split("a 1.000, 2 % and b") == ["a 1.000, 2 % and b"]


class _Asking:
    def __init__(self, percents: Percents) -> None:
        self._percents = percents

    def __float__(self) -> float:
        import sys

        return float(self._percents.number("float", sys._getframe(1), whole=False) or 0)

    def __int__(self) -> int:
        import sys

        return int(self._percents.number("int", sys._getframe(1), whole=True) or 0)
