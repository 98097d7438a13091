"""A graph through the compiler: each repeated body once, or the whole graph where none repeats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from lockstep import _compat
from lockstep.build.graph_backend import graph_text
from lockstep.build.outline.nodes import calls, is_view
from lockstep.build.outline.outline import Outlined, outlined
from lockstep.build.outline.text import program_text
from lockstep.build.outputs import Split
from lockstep.build.parts import Earlier, key_of
from lockstep.build.recompute import recomputed
from lockstep.build.rewrite import Rewritten, rewrite
from lockstep.build.settings import repeats

Repeats = dict[str, Any]


def lower_once(
    split: Split, fakes: list[Any], earlier: Earlier, ready: Callable[[], None]
) -> tuple[list[Rewritten], str, Repeats]:
    """Compile a graph under the options that are set.

    Args:
        split: returns new values alone; its epilogue is appended to the text.
        fakes: of its placeholders.
        earlier: what was compiled before.
        ready: waits for the kernels of parts, and raises where one can't be compiled.

    Returns:
        Its parts, none where there is nothing to compile; the text of all; and what became of
        repeats, as `Program.repeats` has it.
    """
    asked, why = repeats(), "LOCKSTEP_REPEATS=flat"
    gm, count = recomputed(split.gm)
    anew = {"recomputed": count} if count else {}
    try:
        if asked != "flat":
            found = outlined(gm, rounding=asked == "once")
            if isinstance(found, Outlined):
                parts = [_body(body, earlier) for body in found.bodies]
                ready()
                text = program_text([part.text for part in parts], found.driver + split.epilogue)
                return parts, text, found.told() | anew
            why = found
    except Exception as error:  # what the compiler can't hold of a part, it may hold of all
        why = f"a part can't be compiled apart: {type(error).__name__}: {error}"
    told = {"flat": why.splitlines()[0][:200]} | anew
    program = _of_one(gm, fakes, earlier, split.epilogue)
    return ([program], program.text, told) if program is not None else ([], "", told)


def _of_one(gm: Any, fakes: list[Any], earlier: Earlier, epilogue: str = "") -> Rewritten | None:
    key = key_of(gm, epilogue)
    found = earlier(key) if key else None
    if found is not None:
        return found
    try:
        return replace(rewrite(_compat.compile_to_python(gm, fakes), epilogue), key=key)
    except Exception as error:
        if _compat.is_nothing_to_compile(error):  # views and inputs alone: there is no kernel
            return None
        raise


def _body(gm: Any, earlier: Earlier) -> Rewritten:
    """One body; of views alone, as it is: a compiler may return copies of them."""
    plain = Rewritten(graph_text(gm), {}, frozenset())
    if all(map(is_view, calls(gm.graph))):
        return plain
    fakes = [node.meta["val"] for node in gm.graph.find_nodes(op="placeholder")]
    return _of_one(gm, fakes, earlier) or plain
