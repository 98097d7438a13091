"""What becomes of one way to look at the rank, on the simulated ranks of a mesh dp=2, tp=2."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lockstep._compat import pytree
from lockstep.build.artifact import pack
from lockstep.build.fingerprint import differences, fingerprint
from lockstep.build.graph_backend import lower_graph
from lockstep.build.likeness import compared, packed, rows_of
from lockstep.capture.binding import Step
from lockstep.capture.capture import capture, capture_call
from lockstep.capture.graph import StepGraph
from lockstep.capture.origin import short_path
from lockstep.checker.world import simulated_rank
from lockstep.errors import CaptureError, LockstepError
from lockstep.run.key import Bound, contract
from lockstep.run.loader import load_program
from tests.rank_reads import before, library, portable, refused

MESH = {"dp": 2, "tp": 2}
RANKS = range(4)
X = torch.arange(64.0).reshape(16, 4)
BAKED = "baked"


@dataclass(frozen=True)
class Row:
    """One way, and what became of it: "portable", "refused" with its text, or "baked"."""

    kind: str
    name: str
    became: str
    told: str = ""


def in_step() -> list[Row]:
    """Every portable way, by running the program of rank 0 on each rank."""
    with simulated_rank(0, MESH) as mesh:
        library.initialize(mesh.get_group("tp"))
    return [portably(form) for form in PORTABLE]


PORTABLE: list[Callable[..., Any]] = [
    *portable.FORMS, library.its_rank, library.its_shard, library.its_embedding
]  # fmt: skip
REFUSED: list[tuple[Callable[..., Any], str, Any]] = [
    *((form, text, refused.PLACES.get(form, form)) for form, text in refused.FORMS),
    (library.its_decorator, refused.BRANCH, library.on_main),
    (library.its_names, refused.TEXT, library.name_of_shard),
]


def portably(form: Callable[..., Any]) -> Row:
    """Capture a step on rank 0 and run its program as each rank; bitwise equal to eager there?"""
    with simulated_rank(0, MESH) as mesh:
        library.initialize(mesh.get_group("tp"))
        try:
            graph = capture(form, X.clone(), mesh)
        except LockstepError as error:
            return Row("in the step", form.__name__, "refused", str(error))
        artifact = pack({"step": form.__name__}, lower_graph(graph))
    odd = [rank for rank in RANKS if not _equal(form, graph, artifact, rank)]
    if odd:
        return Row("in the step", form.__name__, f"{BAKED}: wrong on ranks {odd}")
    with simulated_rank(RANKS[-1], MESH) as mesh:
        library.initialize(mesh.get_group("tp"))
        other = rows_of(capture(form, X.clone(), mesh))
    compared(RANKS[0], rows_of(graph), packed(RANKS[-1], other))
    return Row("in the step", form.__name__, "portable")


def _equal(form: Callable[..., Any], graph: StepGraph, artifact: Any, rank: int) -> bool:
    with simulated_rank(rank, MESH) as mesh:
        library.initialize(mesh.get_group("tp"))
        torch.manual_seed(0)
        eager = pytree.tree_leaves(form(X.clone(), mesh))
        torch.manual_seed(0)
        outputs = load_program(artifact)([X.clone()])
    got = [outputs[leaf.index] if leaf.kind == "output" else leaf.value for leaf in graph.returns]
    return len(got) == len(eager) and all(map(same, got, eager))


def same(one: Any, other: Any) -> bool:
    """Whether two results are the same, to the bit."""
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    return bool(one == other)


def refusal(form: Callable[..., Any], text: str, place: Any) -> Row:
    """Capture a step that must be refused with a text, at the marked line of a function."""
    with simulated_rank(0, MESH) as mesh:
        library.initialize(mesh.get_group("tp"))
        try:
            graph = capture(form, X.clone(), mesh)
        except Exception as error:
            told = str(error)
            if text in told and f"at   {marked(place)}\n" in told:
                return Row("in the step", form.__name__, "refused", told.splitlines()[0])
            return Row(
                "in the step", form.__name__, "refused otherwise", f"{marked(place)}: {told}"
            )
    return Row("in the step", form.__name__, BAKED, graph.gm.code)


def marked(function: Any) -> str:
    """The place of a function's line that is marked "# the line"."""
    code = function.__code__
    lines = Path(code.co_filename).read_text().splitlines()
    first = code.co_firstlineno
    number = next(i for i in range(first, len(lines) + 1) if "# the line" in lines[i - 1])
    return f"{short_path(code.co_filename)}:{number}"


def before_step(make: Callable[[Any], before.Made]) -> Row:
    """Ask two ranks for what a vote compares, and for the graph that a second rank is asked for."""
    seen = [_asked(make, rank) for rank in (RANKS[0], RANKS[-1])]
    rows = differences(seen[0][0], seen[1][0])
    if rows:
        field, one, other = rows[0]
        told = f"{field}: {one} on rank {RANKS[0]}, {other} on rank {RANKS[-1]}"
        return Row("before the step", make.__name__, "refused", told)
    (_, one), (_, other) = seen
    if isinstance(one, str):
        return Row("before the step", make.__name__, "refused", one)
    try:
        compared(RANKS[0], one, packed(RANKS[-1], other))
    except CaptureError as error:
        return Row("before the step", make.__name__, "refused", f"{error.what}: {error.got}")
    return Row("before the step", make.__name__, BAKED)


def _asked(make: Callable[[Any], before.Made], rank: int) -> tuple[dict[str, Any], Any]:
    with simulated_rank(rank, MESH) as mesh:
        function, args = make(mesh)
        step = Step(function)
        try:
            call = step.call(args, {})
            bound = Bound(step, call)
            words = fingerprint(
                step, call, bound.state, bound.reach, contract=contract(call, bound), mesh=MESH,
                backend="graph", options={},
            )  # fmt: skip
            return words, rows_of(capture_call(step, call, bound.state))
        except LockstepError as error:
            return {}, str(error).splitlines()[0]
