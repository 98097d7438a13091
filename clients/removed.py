"""Each right client has no finding; with one collective, conversion or mark removed it has one.

    python -m clients.removed [WORD...]

WORD: those programs alone whose name holds one. Steps are checked on simulated ranks, in one
process. Nothing of a package's files changes: what is removed is replaced while the check runs, and
counts only for programs that call it. Exits with 0 where every right program of the list is silent,
and every removal is found with a line.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from typing import Any
from unittest.mock import patch

import torch.distributed as dist
from rich.console import Console
from rich.table import Table

from clients.needs import INSTALL, missing
from clients.program import Program


@dataclass(frozen=True)
class Removal:
    """Something that is left out.

    Args:
        name: of what is left out.
        place: "module:name" of the function that is replaced, or "" for `change` alone.
        instead: makes what is called in its place, of the original.
        change: the program without it.
    """

    name: str
    place: str = ""
    instead: Callable[[Any], Callable[..., Any]] = lambda original: _nothing
    change: Callable[[Program], Program] = lambda program: program

    @contextlib.contextmanager
    def left_out(self) -> Iterator[threading.Event]:
        """Replace it while inside; the event is set where it was called, on several ranks.

        Not a list that grows: a capture puts Python's containers back.
        """
        called = threading.Event()
        if not self.place:
            called.set()
            yield called
            return
        module, _, name = self.place.partition(":")
        owner: Any = importlib.import_module(module)
        *path, name = name.split(".")
        for part in path:
            owner = getattr(owner, part)
        stand_in = self.instead(getattr(owner, name))

        def call(*args: Any, **words: Any) -> Any:
            __tracebackhide__ = True  # the caller stands for this helper
            if dist.get_world_size() > 1:  # a check runs a step on one rank, too
                called.set()
            return stand_in(*args, **words)

        with patch.object(owner, name, call):
            yield called


def _nothing(*_: Any, **__: Any) -> Any:
    """In place of what works on what it is given."""


def _first(original: Any) -> Callable[..., Any]:
    """In place of what gives its first argument anew."""
    return lambda first, *_, **__: first


class _Done:
    """The handle of a collective that was left out."""

    def wait(self) -> None:
        """Return at once."""


def _sent(original: Any) -> Callable[..., Any]:
    """In place of an all-reduce: its tensor stays."""
    return lambda *_, async_op=False, **__: _Done() if async_op else None


def _own_part(original: Any) -> Callable[..., Any]:
    """In place of torch.distributed.nn's reduce-scatter: a rank's own part, unreduced."""
    return lambda output, parts, *_, group=None, **__: parts[dist.get_rank(group)]


def _own_rows(original: Any) -> Callable[..., Any]:
    """In place of a functional reduce-scatter along rows."""
    return lambda whole, how, dim, group: whole.chunk(group.size(), dim)[dist.get_rank(group)]


def _partial(original: Any) -> Callable[..., Any]:
    """In place of what RowwiseParallel does to its output: its rank's part of a sum."""
    return lambda _layouts, _local, _module, output, _mesh: output.to_local()


# Codes of a step that no program is made of: `python -m clients` has it among the refused ones.
REFUSED = ("LS100", "LS200", "LS537")


# ---- the list ------------------------------------------------------------------------------------


def _unsynced(program: Program) -> Program:
    """Every forward and backward in `no_sync()`."""

    def step(model: Any, *batch: Any) -> Any:
        with model.no_sync():
            return program.step(model, *batch)

    return replace(program, step=step)


def _left_off(program: Program) -> Program:
    """FSDP2 told not to reduce."""

    def model(mesh: Any) -> Any:
        made: Any = program.model(mesh)
        made.set_requires_gradient_sync(False)
        return made

    return replace(program, model=model)


ANYWHERE = [
    Removal("ls.reduce_grads", "lockstep:reduce_grads"),
    Removal("ls.loss", "lockstep:loss", _first),
]
OWN = {
    "raw all_reduce in Functions": [
        Removal("dist.all_reduce", "torch.distributed:all_reduce", _sent)
    ],
    "flat bucket, async": [Removal("dist.all_reduce", "torch.distributed:all_reduce", _sent)],
    "torch.distributed.nn, gather and scatter": [
        Removal("reduce_scatter", "torch.distributed.nn.functional:reduce_scatter", _own_part)
    ],
    "functional collectives": [
        Removal(
            "reduce_scatter_tensor_autograd",
            "torch.distributed._functional_collectives:reduce_scatter_tensor_autograd",
            _own_rows,
        )
    ],
    "DDP": [Removal("the reducer, by no_sync", change=_unsynced)],
    "DDP, python reducer": [Removal("the reducer, by no_sync", change=_unsynced)],
    "FSDP2": [Removal("its reduce-scatter, by set_requires_gradient_sync", change=_left_off)],
    "DTensor styles": [
        Removal(
            "RowwiseParallel's reduction",
            "torch.distributed.tensor.parallel:RowwiseParallel._prepare_output_fn",
            _partial,
        )
    ],
    "Megatron *": [Removal("_reduce", "megatron.core.tensor_parallel.mappings:_reduce", _first)],
    "Megatron *, with sequence parallelism": [
        Removal("reduce_unsharded_grads", "clients.programs.megatron:reduce_unsharded_grads")
    ],
}


def removals(program: Program) -> list[Removal]:
    """What may be left out of a program."""
    own = [one for name, several in OWN.items() if fnmatch(program.name, name) for one in several]
    return [*ANYWHERE, *own]


# ---- the run -------------------------------------------------------------------------------------


def told(program: Program) -> tuple[list[tuple[str, str]], list[str]]:
    """What a check finds in a program, each code with its line, and what it leaves open."""
    from clients.rank import report_of
    from lockstep.errors import LockstepError

    try:
        report = report_of(program)
    except LockstepError as error:
        return [(error.code, error.where or "")], []
    return [(finding.code, finding.line) for finding in report.findings], list(report.undecided)


def missed(found: list[tuple[str, str]]) -> tuple[str, str] | None:
    """The first finding of wrong gradients that names a line; that no program is made is none."""
    of_gradients = [one for one in found if one[0].startswith("LS5") and one[0] not in REFUSED]
    return next((one for one in of_gradients if one[1]), None)


def main(words: list[str]) -> int:
    """Check the programs, right and with each removal; print the table."""
    lacking = missing()
    if lacking:
        print(f"not installed: {', '.join(lacking)}; {INSTALL}")
        return 2
    warnings.filterwarnings("ignore")  # the packages' own, about kernels and devices
    from clients.programs import every

    table = Table("program", "without", "found", "at")
    right = silent = wrong = found = refused = 0
    for _, program in every():
        if words and not any(word in program.name for word in words):
            continue
        said, left_open = told(program)
        if said and said[0][0] in REFUSED:
            print(f"{program.name}: refused, {' '.join(said[0])}", flush=True)
            refused += 1
            continue
        right, silent = right + 1, silent + (not said and not left_open)
        print(program.name, *said, *left_open, flush=True)
        for removal in removals(program):
            with removal.left_out() as called:
                some, _ = told(removal.change(program))
            if called.is_set():
                wrong, seen = wrong + 1, missed(some)
                found += seen is not None
                row = (program.name, removal.name, *(seen or ("NOT", str(some)[:60])))
                table.add_row(*row)
                print("   ", *row[1:], flush=True)
    Console(width=160).print(table)
    print(f"right programs without a finding: {silent} of {right}; {refused} more are refused")
    print(f"removals found with a line: {found} of {wrong}")
    return 0 if right and wrong and (silent, found) == (right, wrong) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
