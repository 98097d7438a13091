"""Load a program from changed sources, and see its fingerprint and the graph that is captured."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from lockstep.build.fingerprint import fingerprint
from lockstep.build.likeness import rows_of
from lockstep.capture.binding import Step
from lockstep.capture.capture import capture_call
from lockstep.capture.graph import StepGraph
from lockstep.checker.world import simulated_rank
from lockstep.run.key import Bound, contract

HERE = Path(__file__).parent / "programs"
Change = Callable[[Any, tuple[Any, ...]], None]


@dataclass(frozen=True)
class Program:
    """A program of some modules; `main` has `build(mesh) -> (step, arguments)`."""

    main: str
    modules: tuple[str, ...]
    mesh: tuple[tuple[str, int], ...]

    def sources(self) -> dict[str, str]:
        """Each module's text."""
        return {name: (HERE / f"{name}.py").read_text() for name in self.modules}


@dataclass(frozen=True)
class Seen:
    """What a program asks a store for, and what is captured of it: its rows' digest."""

    fields: dict[str, Any]
    graph: str
    rows: tuple[str, ...]


def see(
    program: Program,
    sources: Mapping[str, str],
    change: Change | None = None,
    rank: int = 0,
    mesh: tuple[tuple[str, int], ...] | None = None,
    during: AbstractContextManager[Any] | None = None,
) -> Seen:
    """Load a program from these texts, in a folder of their own, and see what it wants and is.

    Args:
        change: done to what the program built, before it is looked at.
        during: entered while the step is captured.

    Raises:
        Exception: whatever the program raises, or the capture that refuses it.
    """
    sizes = dict(mesh or program.mesh)
    with _loaded(program, sources) as main, simulated_rank(rank, sizes) as made:
        function, arguments = main.build(made)
        if change is not None:
            change(main, arguments)
        step = Step(function)
        call = step.call(arguments, {})
        bound = Bound(step, call)
        fields = fingerprint(
            step, call, bound.state, bound.reach, contract=contract(call, bound), mesh=sizes,
            backend="graph", options={},
        )  # fmt: skip
        with during or contextlib.nullcontext():
            rows = _all_rows(capture_call(step, call, bound.state))
    return Seen(fields, hashlib.sha256("\n".join(rows).encode()).hexdigest(), rows)


def _all_rows(graph: StepGraph) -> tuple[str, ...]:
    """A graph's text and contract, and the values of what tensors it holds."""
    rows = [row[2] for row in rows_of(graph)]
    for node in graph.gm.graph.nodes:
        if node.op == "get_attr":
            value = getattr(graph.gm, str(node.target))
            rows.append(f"{node.target}: {value.tolist() if hasattr(value, 'tolist') else value}")
    return tuple(rows)


@contextlib.contextmanager
def _loaded(program: Program, sources: Mapping[str, str]) -> Iterator[Any]:
    """The program's main module, imported with its others under their own names."""
    before, bytecode = {name: sys.modules.get(name) for name in sources}, sys.dont_write_bytecode
    threads = torch.get_num_threads()
    with tempfile.TemporaryDirectory() as folder:
        for name, text in sources.items():
            Path(folder, f"{name}.py").write_text(text)
            sys.modules.pop(name, None)
        sys.path.insert(0, folder)
        caches = mock.patch.dict(os.environ, XDG_CACHE_HOME=folder)
        caches.start()
        sys.dont_write_bytecode = True
        importlib.invalidate_caches()
        try:
            yield importlib.import_module(program.main)
        finally:
            caches.stop()
            sys.dont_write_bytecode = bytecode
            sys.path.remove(folder)
            torch.set_num_threads(threads)
            for name, module in before.items():
                sys.modules.pop(name, None)
                if module is not None:
                    sys.modules[name] = module
