"""What becomes of one way to look at the rank, on the simulated ranks of a mesh dp=2, tp=2."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from lockstep._compat import pytree
from lockstep.build.artifact import pack
from lockstep.build.early import Formulas
from lockstep.build.fingerprint import fingerprint
from lockstep.build.graph_backend import lower_graph
from lockstep.build.likeness import compared, packed, rows_of
from lockstep.capture.binding import Step
from lockstep.capture.capture import capture
from lockstep.capture.graph import StepGraph
from lockstep.capture.origin import short_path
from lockstep.checker.world import simulated_rank
from lockstep.errors import LockstepError
from lockstep.fleet.faults import Fault
from lockstep.fleet.judge import judge_vote
from lockstep.run.admit import Build
from lockstep.run.asking import Asking, with_formulas
from lockstep.run.key import Bound, contract
from lockstep.run.loader import load_program
from lockstep.run.options import Options
from lockstep.run.variant import Variant
from lockstep.spmd.affine import place_here, read_affine
from lockstep.spmd.mesh import axis
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


@dataclass(frozen=True)
class Asked:
    """What one rank asks for at the first call of a step that was made there."""

    asking: Asking
    found: Formulas

    @property
    def build(self) -> Build:
        """The build, with the formulas that the ranks agreed on."""
        return with_formulas(self.asking.build, self.found)


def before_step(
    make: Callable[[Any], before.Made], text: str = "", place: Any = None, bakes: bool = False
) -> Row:
    """Let all ranks vote on a step, capture what they agree on, and run it as each rank.

    Args:
        text, place: part of the refusal, and the function whose marked line it names, if any.
        bakes: capture one rank's numbers for all, as nothing may.
    """
    try:
        found = [] if bakes else _agreed([_asked(make, rank).asking for rank in RANKS])
        captured_on = (RANKS[0], RANKS[0 if bakes else -1])
        graphs = [_captured(make, rank, found) for rank in captured_on]
        compared(RANKS[0], rows_of(graphs[0]), packed(RANKS[-1], rows_of(graphs[1])))
    except LockstepError as error:
        told = str(error)
        line = f"at   {marked(place)}\n" if place is not None else ""
        became = "refused" if text and text in told and line in told else "refused otherwise"
        return Row("before the step", make.__name__, became, told)
    graph = graphs[0]
    artifact = pack({"step": make.__name__, "contract": graph.contract()}, lower_graph(graph))
    odd = [rank for rank in RANKS if not _runs_as_eager(make, artifact, rank)]
    if odd:
        return Row("before the step", make.__name__, f"{BAKED}: wrong on ranks {odd}")
    formulas = sorted({str(formula) for _, formula in found})
    return Row("before the step", make.__name__, "portable", ", ".join(formulas))


def _agreed(asking: Sequence[Asking]) -> Formulas:
    """The formulas that a vote of these ranks finds.

    Raises:
        FleetError: they do not ask for one program.
    """
    vote = {"step": "step", "have": None, "size": 0, "local_rank": 0}
    posted = [{**vote, "contract": one.first().contract, "place": one.place} for one in asking]
    verdict = judge_vote(json.loads(json.dumps(posted)))  # as the ranks' store gives them back
    if "fault" in verdict:
        fault = Fault.read(verdict["fault"])
        raise replace(fault, where=asking[0].line_of(fault.path)).error()
    read = [(path, read_affine(record)) for path, record in verdict.get("early", [])]
    return [(path, formula) for path, formula in read if formula is not None]


def _asked(make: Callable[[Any], before.Made], rank: int, found: Formulas | None = None) -> Asked:
    with simulated_rank(rank, MESH) as mesh:
        return _made(make, mesh, found or [])


def _made(make: Callable[[Any], before.Made], mesh: Any, found: Formulas) -> Asked:
    library.initialize(mesh.get_group("tp"))
    function, args = make(mesh)
    step = Step(function)
    call = step.call(args, {})
    bound = Bound(step, call)
    words = fingerprint(
        step, call, bound.state, bound.reach, contract=contract(call, bound), mesh=MESH,
        backend="graph", options={},
    )  # fmt: skip
    nowhere: Any = None
    build = Build(step, call, bound, words, Options(check="off"), nowhere)
    store: Any = Nowhere()
    return Asked(Asking(build, store, place_here(map(axis, MESH))), found)


class Nowhere:
    """A store that is asked where a file is."""

    def where_of(self, name: str) -> str:
        return name


def _captured(make: Callable[[Any], before.Made], rank: int, found: Formulas) -> StepGraph:
    with simulated_rank(rank, MESH) as mesh:
        return _made(make, mesh, found).build.captured(None)


def _runs_as_eager(make: Callable[[Any], before.Made], artifact: Any, rank: int) -> bool:
    results = []
    for runs in (False, True):
        with simulated_rank(rank, MESH) as mesh:
            build = _made(make, mesh, []).asking.build
            call, function = build.call, build.step.function
            args, kwargs = call.arguments(call.leaves)
            program = Variant(artifact, load_program(artifact), "v0")
            result = program.run(call, build.bound) if runs else function(*args, **kwargs)
            grads = [parameter.grad for parameter in build.bound.parameters]
            results.append([*pytree.tree_leaves(result), *grads])
    eager, got = results
    return len(eager) == len(got) and all(map(same, got, eager))
