"""A graph through the compiler: each repeated body once, or the whole graph where none repeats."""

from __future__ import annotations

from typing import Any

from lockstep import _compat
from lockstep.build.graph_backend import graph_text
from lockstep.build.outline.nodes import calls, is_view
from lockstep.build.outline.outline import Outlined, outlined
from lockstep.build.outline.text import program_text
from lockstep.build.outputs import Split
from lockstep.build.recompute import recomputed
from lockstep.build.rewrite import Rewritten, rewrite
from lockstep.build.settings import repeats
from lockstep.build.whole import is_whole

Repeats = dict[str, Any]


def lower_once(split: Split, fakes: list[Any]) -> tuple[Rewritten | None, Repeats]:
    """Compile a graph under the options that are set.

    Args:
        split: returns new values alone; its epilogue is appended to the text.
        fakes: of its placeholders.

    Returns:
        The rewritten code, None where there is nothing to compile; and what became of repeats, as
        `Program.repeats` has it.
    """
    asked, why = repeats(), "LOCKSTEP_REPEATS=flat"
    gm, count = recomputed(split.gm)
    anew = {"recomputed": count} if count else {}
    try:
        if asked != "flat":
            found = outlined(gm, rounding=asked == "once")
            if isinstance(found, Outlined):
                return _of_bodies(found, split.epilogue), found.told() | anew
            why = found
    except Exception as error:  # what the compiler can't hold of a part, it may hold of all
        why = f"a part can't be compiled apart: {type(error).__name__}: {error}"
    program = _of_one(gm, fakes, split.epilogue)
    return program, {"flat": why.splitlines()[0][:200]} | anew


def _of_one(gm: Any, fakes: list[Any], epilogue: str = "") -> Rewritten | None:
    try:
        with _compat.libraries_checked(is_whole):
            return rewrite(_compat.compile_to_python(gm, fakes), epilogue)
    except Exception as error:
        if _compat.is_nothing_to_compile(error):  # views and inputs alone: there is no kernel
            return None
        raise


def _of_bodies(found: Outlined, epilogue: str) -> Rewritten:
    parts = [_body(body) for body in found.bodies]
    text = program_text([part.text for part in parts], found.driver + epilogue)
    kernels = {digest: kernel for part in parts for digest, kernel in part.kernels.items()}
    return Rewritten(text, kernels, frozenset().union(*(part.operators for part in parts)))


def _body(gm: Any) -> Rewritten:
    """One body; of views alone, as it is: a compiler may return copies of them."""
    plain = Rewritten(graph_text(gm), {}, frozenset())
    if all(map(is_view, calls(gm.graph))):
        return plain
    fakes = [node.meta["val"] for node in gm.graph.find_nodes(op="placeholder")]
    return _of_one(gm, fakes) or plain
