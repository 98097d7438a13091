"""Stands in for compiled steps while a script runs: makes each at its first call, runs none."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lockstep import _compat
from lockstep.ahead.line import Line
from lockstep.ahead.results import not_run
from lockstep.build.backends import code_of
from lockstep.build.fingerprint import file_of
from lockstep.build.likeness import failed, packed, rows_of
from lockstep.capture.binding import Call
from lockstep.capture.capture import capture_call
from lockstep.capture.graph import StepGraph
from lockstep.errors import LockstepError, ToolchainError, UsageError
from lockstep.fleet.store import ArtifactStore, named_store
from lockstep.journal import Journal
from lockstep.run.admit import Build, noting
from lockstep.run.asking import with_formulas
from lockstep.run.dynamic import Loose
from lockstep.run.key import Bound, contract
from lockstep.run.passing import passed
from lockstep.run.step import CompiledStep, refuse_nested, steps_made
from lockstep.run.variant import Variant
from lockstep.spmd.affine import read_affine

BUILDS, SECONDS, TRACES = "builds", "seconds", "traces"


class Enough(BaseException):
    """Every step was reached: leaves the user's script, past its own `except Exception`."""


class Refused(BaseException):
    """A step cannot be built: leaves the script likewise.

    Args:
        error: why; a step that one program cannot be, or a machine that cannot make it.
    """

    def __init__(self, error: LockstepError) -> None:
        super().__init__(str(error))
        self.machines = isinstance(error, (UsageError, ToolchainError))


class Broken(BaseException):
    """The step raised an error of its own; it is the cause."""


@dataclass(frozen=True)
class Task:
    """One rank's part.

    Args:
        role: "builds": it makes the artifacts; "seconds": it generates their code as well, to be
            compared; "traces": its graphs are compared alone.
        steps: those that are made; none: all.
        calls: of steps, after which the script is left.
        real: the set-up runs truly, not below fake tensors.
        formulas: by step, those that take the place of a tracing rank's own numbers.
        folder: for what the others read.
        store: where the artifacts go; None: where the job itself looks for them.
    """

    rank: int
    world: int
    role: str
    folder: Path
    steps: tuple[str, ...] = ()
    calls: int = 1000
    real: bool = False
    formulas: dict[str, Any] = field(default_factory=dict)
    store: str | None = None


@dataclass
class Place:
    """Where steps are built: a rank of a job that is not there."""

    rank: int
    world: int
    line: Line
    journal: Journal = field(default_factory=lambda: Journal(None, 0))

    def say(self, text: str) -> None:
        """Tell the user, from the building rank alone."""
        self.line.tell("note", text=text)


class Maker:
    """See `modes.calls_go_to`.

    Args:
        line: to the process that compares the ranks.
    """

    def __init__(self, task: Task, line: Line) -> None:
        self._task, self._line = task, line
        self._here = Place(task.rank, task.world, line)
        self._known: dict[tuple[str, Any], Variant] = {}
        self._inside: set[str] = set()
        self._calls, self._begin = 0, time.monotonic()
        self.made: list[str] = []

    @property
    def stepped(self) -> bool:
        """Whether a step was called yet."""
        return self._calls > 0

    def __call__(self, step: CompiledStep) -> Callable[..., Any]:
        """What runs in place of a step."""

        def run(*args: Any, **kwargs: Any) -> Any:
            if _compat.is_tracing():
                self._inside.add(step.name)
                refuse_nested(step)
            if self._calls and (self._calls >= self._task.calls or not self.not_reached()):
                raise Enough
            with _compat.without_modes():
                call = step.step.call(args, kwargs)
                bound = step.bind(call)
                variant = self._variant(step, call, bound)
            self._calls += 1
            return variant.run(call, bound)

        return run

    def not_reached(self) -> list[str]:
        """The names of the steps that are to be made and were not called yet."""
        wanted = self._task.steps or [s for s in steps_made() if s not in self._inside]
        return [name for name in wanted if name not in self.made]

    def _variant(self, step: CompiledStep, call: Call, bound: Bound) -> Variant:
        loose = step.dynamic.loose(call) if step.dynamic.sizes else None
        key = (step.name, bound.key(call, loose))
        known = self._known.get(key)
        if known is None:
            with _refusing():
                graph = self._captured(step, call, bound, loose)
            known = self._known[key] = not_run(graph, step.name)
        return known

    def _captured(
        self, step: CompiledStep, call: Call, bound: Bound, loose: Loose | None
    ) -> StepGraph:
        wanted = not self._task.steps or step.name in self._task.steps
        sizes = step.dynamic.sizes if loose else ()
        if step.name in self.made or not wanted:  # called for what it hands back alone
            return capture_call(step.step, call, bound.state, None, sizes)
        words = contract(call, bound, loose)
        table = step.fingerprint(call, bound, words)
        store = ArtifactStore(named_store(self._task.store or step.options.store))
        build = Build(
            step.step, call, bound, table, step.options, self._here, None, sizes, store=store
        )
        making = Making(self._task, self._line, step, build, time.monotonic() - self._begin)
        graph = making.run(self.made)
        self._begin = time.monotonic()
        return graph


@dataclass
class Making:
    """One step, from its first call to its artifact."""

    task: Task
    line: Line
    step: CompiledStep
    build: Build
    set_up_s: float

    def __post_init__(self) -> None:
        self.seconds = {"set-up": round(self.set_up_s, 3)}
        self.name = self.step.name

    def run(self, made: list[str]) -> StepGraph:
        """Make it; `made` gets its name."""
        build = self._settled()
        # Notes leave gaps in a graph's names: both of those whose code is compared take them.
        checking = noting(build.options) if self.task.role != TRACES else None
        try:
            with self._stage("capture"):
                graph = build.captured(checking)
        except Exception as error:
            if self.task.role == BUILDS:
                raise
            self.line.tell("captured", step=self.name, view=failed(self.task.rank, error))
            raise
        made.append(self.name)
        rows = rows_of(graph)
        view = packed(self.task.rank, rows)
        if self.task.role == BUILDS:
            view["rows"] = self._kept("rows", json.dumps(rows))
        if self.task.role == TRACES:
            self.line.tell("captured", step=self.name, view=view)
            return graph
        if self.task.role == SECONDS:
            self.line.ask("captured", step=self.name, view=view)
            after = passed(build, graph, checking)
            whole = _whole(*code_of(after.graph, build.options.backend))
            self.line.tell("lowered", step=self.name, code=self._kept("code", whole))
            return graph
        with self._stage("check"):
            undecided = graph.symbols.undecided() if graph.symbols else contextlib.nullcontext()
            with undecided:
                checked = build.checked(checking)
        with self._stage("second coordinate"):
            self.line.ask("captured", step=self.name, view=view)
        with self._stage("lower"):
            after = passed(build, graph, checking)
            program = build.lowered(after.graph)
        with self._stage("second coordinate"):
            code = self._kept("code", _whole(program.text, program.sources))
            answer = self.line.ask("lowered", step=self.name, code=code)
        with self._stage("pack"):
            likeness = answer.get("likeness")
            cost = {name: self.seconds[name] for name in ("capture", "check", "lower")}
            data = build.packed(graph, program, checked, likeness, cost, after)
            file = file_of(build.wanted)
            (self.task.folder / file).write_bytes(data)
        store = self.step.options.store
        self.line.ask(
            "packed", step=self.name, file=file, seconds=self.seconds,
            store=None if store is None else str(store),
        )  # fmt: skip
        return graph

    def _settled(self) -> Build:
        """The build with the formulas that all ranks' numbers follow."""
        options = self.step.options
        asked = {"step": self.name, "table": self.build.wanted, "place": self.step.place()}
        asked |= {"sizes": options.sizes, "roles": list(options.roles)}
        if self.task.role == TRACES:
            self.line.tell("asked", **asked)
            found = self.task.formulas.get(self.name, [])
        else:
            with self._stage("second coordinate"):
                found = self.line.ask("asked", **asked)["formulas"]
        read = [(path, read_affine(record)) for path, record in found]
        return with_formulas(self.build, [(path, a) for path, a in read if a is not None])

    def _kept(self, what: str, text: str) -> str:
        """The file that holds what is to be compared."""
        file = self.task.folder / f"{what}-{self.task.rank}-{file_of(self.build.wanted)}"
        file.write_text(text)
        return str(file)

    @contextlib.contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        if self.task.role == BUILDS:
            self.line.tell("stage", step=self.name, stage=name, seconds=self.seconds)
        begin = time.monotonic()
        yield
        spent = self.seconds.get(name, 0.0) + time.monotonic() - begin
        self.seconds[name] = round(spent, 3)


def _whole(text: str, sources: dict[str, str]) -> str:
    """All generated code as one text."""
    return "\n".join([text, *(f"# kernel {name}\n{sources[name]}" for name in sorted(sources))])


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    """What refuses a step leaves the script: nothing that it may catch."""
    try:
        yield
    except LockstepError as error:
        raise Refused(error) from error
    except Exception as error:
        raise Broken from error
