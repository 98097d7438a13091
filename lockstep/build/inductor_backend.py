"""Back end `inductor`: the captured graph compiled once, its libraries shipped with it.

Bitwise equal to compiling the same graph on each rank; not to eager, whose operators it fuses.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from lockstep import _compat
from lockstep.build.backends import Lowerable
from lockstep.build.compiling import Libraries, compiling
from lockstep.build.cpu import kernel_features
from lockstep.build.cubins import Triton, compiled
from lockstep.build.graph_backend import graph_text
from lockstep.build.holdable import check_nodes
from lockstep.build.in_order import tie
from lockstep.build.outline.lowered import Repeats, lower_once
from lockstep.build.outputs import split_outputs
from lockstep.build.parts import Earlier, Made, nothing_earlier
from lockstep.build.program import Program
from lockstep.build.requires import accelerator_kind, basic_requires, kernel_requires
from lockstep.build.rewrite import Kernel, Rewritten
from lockstep.build.scalars import lift_weights
from lockstep.errors import LockstepError, LoweringError, ToolchainError

# Signs in a compiler's text of a machine that can't compile.
_TROUBLE = ("No space left", "Killed", "Disk quota", "cannot execute", "out of memory")
_OPTIONS = {
    "fallback_random": True,  # draw what eager draws for a seed
    "aot_inductor.enable_line_tables": False,  # twice the size, and slower to write
    "freezing": False,  # it would put the building rank's weights into the program
    "cpp_wrapper": False,  # the program is Python text
    "fx_graph_cache": False,  # what torch.compile kept there may have lost an argument (_compat)
    "strict_static_triton_launcher": True,  # an accelerator's kernels are started without Triton
}


def lower_inductor(graph: Lowerable, earlier: Earlier = nothing_earlier) -> Program:
    """Compile the graph and gather what a rank needs to run it without a compiler.

    The user's Inductor configuration and cache folder hold, apart from the options above.

    Args:
        earlier: gives the parts that were compiled before.

    Raises:
        LoweringError: LS200, the graph can't be held; the text names the operation and the way out.
        ToolchainError: LS201, this machine has no working C++ compiler.
    """
    nodes = list(graph.gm.graph.nodes)
    with compiling() as libraries:
        parts, text, repeats = _compiled(graph, {}, earlier, libraries.wait)
        if not parts:
            return Program("inductor", graph_text(graph.gm), {}, basic_requires(nodes))
        kernels = _kernels(parts)
        made = _libraries(kernels, libraries)
    binaries = _binaries(kernels)
    requires = basic_requires(nodes) | kernel_requires(kernel_features() if made else ())
    if binaries:
        requires |= {"accelerator": accelerator_kind()}
    keys = [part.key for part in parts]
    return Program("inductor", text, made, requires, _sources(kernels), binaries, repeats, keys)


def inductor_code(graph: Lowerable) -> tuple[str, dict[str, str]]:
    """Generate the graph's code anew, whatever caches hold, and compile none of it.

    Returns:
        The text and the kernels' sources of the program that `lower_inductor` gives.

    Raises:
        LoweringError: as there.
    """
    with _compat.kernels_uncompiled():
        anew = {"force_disable_caches": True}
        parts, text, _ = _compiled(graph, anew, nothing_earlier, lambda: None)
    return (text, _sources(_kernels(parts))) if parts else (graph_text(graph.gm), {})


def _compiled(
    graph: Lowerable, options: dict[str, Any], earlier: Earlier, ready: Callable[[], None]
) -> tuple[list[Rewritten], str, Repeats]:
    """The rewritten code of a graph, in parts and in one text; as `lower_once` gives it."""
    nodes = list(graph.gm.graph.nodes)
    check_nodes(nodes)
    split = split_outputs(graph.gm)
    lift_weights(split.gm)
    tie(split.gm.graph)
    try:
        with _compat.inductor_options(_OPTIONS | options):
            parts, text, repeats = lower_once(split, graph.fakes, earlier, ready)
    except LockstepError:
        raise
    except Exception as error:
        raise _translated(error) from error
    check_operators(frozenset().union(*(part.operators for part in parts)), nodes)
    return parts, text, repeats


def _kernels(parts: Iterable[Rewritten]) -> dict[str, Any]:
    return {digest: kernel for part in parts for digest, kernel in part.kernels.items()}


def _sources(kernels: dict[str, Any]) -> dict[str, str]:
    return {digest: kernel.source for digest, kernel in kernels.items()}


def check_operators(operators: frozenset[str], nodes: Iterable[Any]) -> None:
    """Refuse operators that the compiler brought in and that a rank without it does not have.

    Args:
        operators: "namespace::name" of what the program calls.
        nodes: of the captured graph; what it calls itself, the user's code registers.

    Raises:
        LoweringError: LS200.
    """
    kind = _compat.op_overload_type()
    own = {node.target.name().split(".")[0] for node in nodes if isinstance(node.target, kind)}
    odd = sorted(name for name in operators - own if name.startswith(_compat.COMPILER_OPS))
    if odd:
        raise LoweringError(
            "the compiled program calls operators that only the compiler registers",
            got=", ".join(odd),
            fix='backend="graph"',
        )


def _libraries(kernels: dict[str, Any], libraries: Libraries) -> dict[str, bytes]:
    """The C++ kernels' libraries: just compiled, or as an artifact had them."""
    try:
        made = {d: libraries.read(d) for d, k in kernels.items() if isinstance(k, Kernel)}
    except Exception as error:
        raise _translated(error) from error
    held = {d: k.files["so"] for d, k in kernels.items() if isinstance(k, Made) and "so" in k.files}
    return made | held


def _binaries(kernels: dict[str, Any]) -> dict[str, bytes]:
    """The accelerator's binaries that this process has just made or an artifact had, and how they
    are started."""
    triton = {d: kernel for d, kernel in kernels.items() if isinstance(kernel, Triton)}
    try:
        with _compat.inductor_options(_OPTIONS):
            made = compiled(triton)
    except LockstepError:
        raise
    except Exception as error:
        raise _translated(error) from error
    held = [(d, kernel.files) for d, kernel in kernels.items() if isinstance(kernel, Made)]
    return made | {f"{d}.{end}": files[end] for d, files in held for end in files if end != "so"}


def _is_machine_trouble(error: BaseException | None) -> bool:
    """Whether an error or its cause is a missing compiler, a full disk, or too little memory."""
    failed, missing = _compat.cpp_compile_errors()
    while error is not None:
        if isinstance(error, (missing, OSError, MemoryError)):
            return True
        if isinstance(error, failed) and any(sign in str(error) for sign in _TROUBLE):
            return True
        error = error.__cause__ or error.__context__
    return False


def _translated(error: Exception) -> LoweringError:
    """Say in our words what the compiler could not do, by the operation where it names one."""
    text = str(error)
    if _is_machine_trouble(error):
        return ToolchainError(
            "this machine can't compile the step",
            got=f"{type(error).__name__}: {_first_line(text)}",
            want="a working C++ compiler, and room for temporary files",
            why="one machine has to compile the step; the others load it",
            fix=["install g++ on this machine, or make room", 'backend="graph"'],
        )
    named = re.search(r"target: (\S+)", text) or re.search(r"\b(\w+::\w+)\(", text)
    return LoweringError(
        f"the compiler can't hold {named.group(1) if named else 'this graph'}",
        got=f"{type(error).__name__}: {_first_line(text)}",
        fix='backend="graph"',
    )


def _first_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0][:300] if lines else "no text"
