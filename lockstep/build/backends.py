"""The one door to the lowering back ends."""

from __future__ import annotations

from typing import Any, Protocol

from lockstep.build.program import Program
from lockstep.errors import UsageError

NAMES = ("graph", "inductor")


class Lowerable(Protocol):
    """What a back end reads of a captured step; `capture` gives it.

    Args:
        gm: the flat graph; its output is a tuple, in-place operations on placeholders are allowed.
        fakes: one fake tensor a placeholder, in their order.
        fake_mode: the mode that the fakes belong to.
    """

    gm: Any
    fakes: list[Any]
    fake_mode: Any


def lower(graph: Lowerable, backend: str, earlier: Any = None) -> Program:
    """Turn a captured step into a program that any rank can load.

    Args:
        graph: the captured step; it is not changed.
        backend: "graph", bitwise equal to eager, or "inductor", compiled.
        earlier: gives the parts of programs that were compiled before, by their keys, as
            `lockstep.build.parts` has them; None: all is compiled.

    Returns:
        The program. The same graph gives the same text.

    Raises:
        UsageError: LS001, there is no such back end.
        LoweringError: LS200, the back end can't hold the graph; the text names the operation.
    """
    if backend == "graph":
        from lockstep.build.graph_backend import lower_graph

        return lower_graph(graph)
    if backend == "inductor":
        from lockstep.build.inductor_backend import lower_inductor

        return lower_inductor(graph, earlier) if earlier is not None else lower_inductor(graph)
    raise _unknown(backend)


def code_of(graph: Lowerable, backend: str) -> tuple[str, dict[str, str]]:
    """The program's text and its kernels' sources, without compiling those.

    Args:
        graph, backend: as `lower` has them; its program has this text, and these sources.
    """
    if backend == "inductor":
        from lockstep.build.inductor_backend import inductor_code

        return inductor_code(graph)
    program = lower(graph, backend)
    return program.text, program.sources


def _unknown(backend: str) -> UsageError:
    return UsageError(f"no back end is called {backend!r}", want=" or ".join(map(repr, NAMES)))
