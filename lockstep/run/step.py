"""`ls.compile`: a step becomes a table of variants; an unknown call is a vote of all ranks."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from lockstep import _compat
from lockstep.build.fingerprint import Fields, differences, fingerprint
from lockstep.build.toolchain import toolchain
from lockstep.capture.binding import Call, Step
from lockstep.capture.marks import said_of_parameters
from lockstep.capture.refusal import refuse
from lockstep.errors import ContractError, UsageError
from lockstep.fleet.scope import Scope
from lockstep.run.admit import Build, load, short, tell_unchecked
from lockstep.run.asking import Asking
from lockstep.run.audit import audit
from lockstep.run.call_guard import CallGuard, guard_of, name_of_call
from lockstep.run.dynamic import Dynamic, Loose
from lockstep.run.first import FirstCalls
from lockstep.run.key import Bound, contract
from lockstep.run.modes import ON, instead, mode
from lockstep.run.options import Options, options
from lockstep.run.replicas import Replicas
from lockstep.run.roles import Meeting, refuse_unanswered, scope_of
from lockstep.run.session import Session, session
from lockstep.run.trial import Trial
from lockstep.run.variant import Variant
from lockstep.spmd.affine import place_here
from lockstep.spmd.mesh import register

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

P = ParamSpec("P")
T = TypeVar("T")
MOST_VARIANTS, MOST_OBJECTS = 64, 512
_names: dict[str, int] = {}


class CompiledStep:
    """A step that runs as the identical program on every rank; made by `ls.compile`.

    Call it as the function it was made from. The first call of each variant is collective: one rank
    builds the program, or all load it from the store; later calls just run it.
    """

    def __init__(self, function: Callable[..., Any], options: Options) -> None:
        functools.update_wrapper(self, function)
        if options.mesh is not None:
            register(options.mesh)  # now, since the eager way back needs the axes' names too
        self.step = Step(function)
        self.step.known = options.roles
        self.options, self.mesh, self.data = options, options.mesh, options.data
        self._variants: dict[Any, Variant] = {}
        self._contracts: dict[str, Fields] = {}
        self._asked: list[Fields] = []  # of each variant what it is about the arguments alone
        self._bound: list[Bound] = []
        self._calls = self._votes = 0
        self.dynamic = Dynamic(self.step.name, options.dynamic, options.outside == "build")
        self._eager: Callable[..., Any] | None = None
        # The n-th step of a name is the n-th on every rank, for the keys that ranks meet under.
        count = _names[self.step.name] = _names.get(self.step.name, 0) + 1
        self.name = self.step.name if count == 1 else f"{self.step.name}#{count}"
        self._first = FirstCalls(self.name)

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        """As a method: the object it is called on is its first argument."""
        return self if owner is None else functools.partial(self, owner)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._eager is not None:
            return self._eager(*args, **kwargs)
        other = instead()
        if other is not None:
            return other(self)(*args, **kwargs)
        if mode() != ON:
            from lockstep.run.torch_way import other_way

            self._eager = other_way(self.name, self.step.function)
            return self._eager(*args, **kwargs)
        refuse_nested(self)
        call = self.step.call(args, kwargs)
        bound = self.bind(call)
        self._calls += 1
        here = session()
        if bound.state.wrappers and self._first.wait(call, bound):
            as_it_is = functools.partial(self.step.function, *args, **kwargs)
            return self._first.run(here, as_it_is, call, bound, self._replicas)
        variant = self._variant(here, call, bound)
        # Lone votes are judged by it.
        here.fleet.call(self.name, variant.name, self._calls, self.scope)
        # Guarded at every call: a rank that a fault finds stuck in here is ended by its deadman.
        with here.fleet.guard(f"running {self.name}, call {self._calls}"):
            if self.options.guard:
                self._enter(here, variant.name)
            if self._calls <= 3:
                return self._first_runs(here, variant, call, bound)
            return variant.run(call, bound)

    @functools.cached_property
    def scope(self) -> Scope | None:
        """The ranks that share this rank's program; None: all of them."""
        return scope_of(self.mesh, self.options.roles) if self.options.roles else None

    @functools.cached_property
    def _guard(self) -> CallGuard:
        here = session()
        return guard_of(self.mesh, here.world, here.fleet.state.timing.build)

    def _enter(self, here: Session, variant: str) -> None:
        """Return where all ranks enter this very call."""
        own, name = self.options.guard, "" if self.options.roles else self.name
        told = name_of_call(name, variant, self._calls, own if callable(own) else None)
        self._guard.enter(here.fleet, told)

    def _variant(self, here: Session, call: Call, bound: Bound) -> Variant:
        """The program for a call: a known one, or one that all ranks vote on now."""
        if not self.dynamic.sizes:
            return self._found(here, call, bound)
        with here.fleet.guard(f"looking at the sizes of {self.name}, call {self._calls}"):
            loose = self.dynamic.loose(call)
        variant = self._found(here, call, bound, loose)
        broken = variant.guards.broken(call)
        if broken is None:
            return variant
        with here.fleet.guard(f"looking at the sizes of {self.name}, call {self._calls}"):
            self.dynamic.refuse_broken(broken, call)
        return self._found(here, call, bound)

    def _found(
        self, here: Session, call: Call, bound: Bound, loose: Loose | None = None
    ) -> Variant:
        quick = bound.quick_key(call, loose)
        variant: Variant | None = bound.known.get(quick)
        if variant is None:
            key = bound.key(call, loose)
            variant = self._variants.get(key) or self._admit(here, key, call, bound, loose)
            bound.known[quick] = variant
        return variant

    def _first_runs(self, here: Session, variant: Variant, call: Call, bound: Bound) -> Any:
        begin = time.monotonic()
        result = variant.run(call, bound)
        here.journal.event(
            "ran", step=self.name, variant=variant.name, call=self._calls,
            seconds=round(time.monotonic() - begin, 4),
        )  # fmt: skip
        return result

    def bind(self, call: Call) -> Bound:
        """The state below a call's roots: found anew, or as it was at an earlier call."""
        for bound in self._bound:
            if bound.holds(call):
                return bound
        bound = Bound(self.step, call)
        self._bound.insert(0, bound)
        del self._bound[8:]
        return bound

    # -- a new variant

    def _admit(
        self, here: Session, key: Any, call: Call, bound: Bound, loose: Loose | None
    ) -> Variant:
        """Vote with all ranks on a variant that none has met, and load it."""
        with here.fleet.guard(f"preparing {self.name}, call {self._calls}"):
            words = contract(call, bound, loose)
            asked = {name: words[name] for name in (*call.names, "argument tree")}
            self._refuse_new(asked, words)
            wanted = self.fingerprint(call, bound, words)
            replicas = None
            if not self._votes:
                replicas = self._first.replicas or self._replicas(bound)
        meeting, tools = self._meeting(here), toolchain(self.options.backend)
        if meeting is not None:
            meeting.begin(wanted, tools)
        self._votes += 1
        name, sizes = f"v{self._votes - 1}", self.dynamic.sizes if loose else ()
        if not self._variants:
            tell_unchecked(self.name, self.options, here)
        store, place = here.store(self.options.store), self.place()
        build = Build(
            self.step, call, bound, wanted, self.options, here, replicas, sizes, store=store
        )
        trial = Trial(here, f"{self.name}/{name}", self._calls, tools, self.scope)
        asking = Asking(build, store, place, trial)
        first = asking.first()
        obtained = here.fleet.obtain(
            f"{self.name}/{name}",
            first.contract,
            first.name,
            store,
            first.build,
            call=self._calls,
            verify=first.verify,
            replicas=replicas,
            second=first.second,
            place=place,
            settle=asking.again,
            line_of=asking.line_of,
            toolchain=tools,
            rehearse=first.rehearse,
            scope=self.scope,
        )
        speaks = here.rank == (self.scope or here.fleet.everyone).ranks[0]
        with here.fleet.guard(f"loading {self.name}"):
            variant = load(obtained, self.name, name, here, self.scope)
            for told in variant.guards.left_out() if speaks else ():
                here.say(f"{self.name} {name}: {told}")
            variant.verify(call, bound)
        with here.fleet.guard(f"auditing {self.name}"):
            if speaks:
                audit(obtained, build, store, here)
        if replicas is not None:
            with here.fleet.guard(f"comparing the parameters of {self.name}"):
                replicas.judge(self.name, variant.checked, here)
                replicas.refuse_changed(self.name, variant.checked, obtained.path)
        self._variants[key] = variant
        self._contracts[name] = words
        self._asked.append(asked)
        if meeting is not None:
            meeting.end(self.name, self.mesh, variant.messages)
        elif not self.options.roles:
            refuse_unanswered(variant.messages, self.mesh)
        return variant

    def _meeting(self, here: Session) -> Meeting | None:
        """Where all roles meet at the step's first variant; later ones are a role's own matter."""
        if self._votes or not self.options.roles:
            return None
        return Meeting(here.fleet, self.options.roles, here.fleet.state.timing.build)

    def place(self) -> dict[str, int]:
        """This rank's coordinates along the axes of the mesh that its program may differ along."""
        axes = register(self.mesh).values() if self.mesh is not None else ()
        return place_here([axis for axis in axes if axis.name not in self.options.roles])

    def _replicas(self, bound: Bound) -> Replicas | None:
        """What this rank's parameters are, where there are others to compare them with."""
        found = Replicas.of(bound.state, self.options)
        return found if found.axes else None

    def _refuse_new(self, asked: Fields, words: Fields) -> None:
        if self._asked and self.options.on_new_shape == "error" and asked not in self._asked:
            raise ContractError(
                f"{self.name} has no variant for this call, and on_new_shape is 'error'",
                got=_rows(self._asked[-1], asked, 2),
                want=_rows(self._asked[-1], asked, 1),
                fix=["pad the batch to a known shape", 'ls.compile(on_new_shape="build")'],
            )
        programs = len({variant.digest for variant in self._variants.values()})
        sets = len(self._variants)
        if sets >= MOST_OBJECTS:
            raise ContractError(
                f"{self.name} was given {sets} sets of objects for {programs} programs",
                why="an object that is made anew at each call has to be looked through each time",
                fix="pass the same object again, or the tensors and numbers in it",
            )
        if programs >= MOST_VARIANTS:
            known = list(self._contracts.values())[-1]
            raise ContractError(
                f"{self.name} would need more than {MOST_VARIANTS} variants",
                got=_rows(known, words, 2),
                why="what changes at every call is a new program at every call",
                fix="pass what changes as a tensor or a float",
            )

    def fingerprint(self, call: Call, bound: Bound, words: Fields) -> Fields:
        """The program that a call wants, said without tracing; `words` are its contract."""
        axes = register(self.mesh) if self.mesh is not None else {}
        return fingerprint(
            self.step,
            call,
            bound.state,
            bound.reach,
            contract=words,
            mesh={name: axis.size for name, axis in axes.items()},
            backend=self.options.backend,
            options={
                "data": list(self.options.data),
                "pending": dict(self.options.pending),
                "said": said_of_parameters(bound.state, self.mesh),
                **({"passes": dict(self.options.passes)} if self.options.passes else {}),
                **({"role": self.scope.name} if self.scope is not None else {}),
            },
        )


def steps_made() -> list[str]:
    """The names of the compiled steps that were made in this process so far."""
    numbered = [(name, i) for name, count in _names.items() for i in range(1, count + 1)]
    return [name if i == 1 else f"{name}#{i}" for name, i in numbered]


def refuse_nested(step: CompiledStep) -> None:
    """Refuse a compiled step that is called while another one is captured.

    Raises:
        UsageError: it is.
    """
    if _compat.is_tracing():
        refuse(
            UsageError(
                f"{step.name} is compiled, and is called inside another compiled step",
                why="one program would hold another",
                fix=f"call the plain function inside, {step.name}.step.function",
            )
        )


def _rows(known: Fields, words: Fields, side: int) -> str:
    rows = differences(known, words)
    return "\n".join(f"{row[0]}: {short(row[side])}" for row in rows[:8])


@overload
def compile(function: Callable[P, T]) -> Callable[P, T]: ...
@overload
def compile(
    function: None = None,
    *,
    mesh: DeviceMesh | None = None,
    data: str | tuple[str, ...] | None = None,
    store: str | os.PathLike[str] | None = None,
    backend: str = "inductor",
    on_new_shape: str | None = None,
    dynamic: Mapping[str, Mapping[int, tuple[int, int]]] | None = None,
    check: str = "types",
    eager_check: str = "off",
    pending: Mapping[str, str] | None = None,
    roles: str | tuple[str, ...] | None = None,
    guard: bool | Callable[[], int | str] = False,
    passes: Mapping[str, bool | int] | None = None,
) -> Callable[[Callable[P, T]], Callable[P, T]]: ...


def compile(
    function: Callable[..., Any] | None = None,
    *,
    mesh: DeviceMesh | None = None,
    data: str | tuple[str, ...] | None = None,
    store: str | os.PathLike[str] | None = None,
    backend: str = "inductor",
    on_new_shape: str | None = None,
    dynamic: Mapping[str, Mapping[int, tuple[int, int]]] | None = None,
    check: str = "types",
    eager_check: str = "off",
    pending: Mapping[str, str] | None = None,
    roles: str | tuple[str, ...] | None = None,
    guard: bool | Callable[[], int | str] = False,
    passes: Mapping[str, bool | int] | None = None,
) -> Any:
    """Make a step that one rank compiles and every rank runs.

    The step is an ordinary function: forward, loss, `backward()`, collectives on mesh axes, the
    optimizer if it likes; or an evaluation without `backward()`. It may be a method.

    Args:
        function: the step; left out where options are given.
        mesh: names the axes that the step's collectives use; None: only the world's group.
        data: the axis or axes over which the ranks' batches differ.
        store: where artifacts are kept: a directory, a URL as s3://bucket/prefix, or one
            artifact's file, which is then the only one admitted. By default `$LOCKSTEP_STORE`,
            else `~/.cache/lockstep`.
        backend: "inductor" (compiled), or "graph" (the graph as captured, bitwise as eager).
        on_new_shape: what a call that no variant covers does: "build" one, by a vote of all ranks,
            or "error". By default "build", but "error" for a size outside of `dynamic`.
        dynamic: argument -> dimension -> its smallest and its largest size, from 2 on:
            {"tokens": {0: (2, 64)}, "batch['x']": {1: (16, 512)}}. One artifact serves every size
            in the range. A step that compares sizes, as `if x.shape[0] > 8`, gets the side that
            the first call takes, and that is asked again at each call; one that fixes a size, as
            `len(x)` or a loop over it, is refused at its line.
        check: what is asked of the gradients before an artifact is made, at a build alone. "types":
            what types are sure of refuses it, on every rank and with nothing stored; what they do
            not know never does: `lockstep check SCRIPT` tells that. "full": all witnesses of
            `ls.check` but the twin, on simulated ranks with this call's arguments; for small models
            whose mesh has data axes alone. "off": nothing, which is told at start. It stands in
            the manifest, and an artifact that was checked less than asked for is built again.
        eager_check: "on": before a program is built, all ranks run the step once as it is and its
            captured graph once, on this call's arguments, and compare: collectives by axis, and all
            that either leaves, bit by bit. What differs by more than rounding explains refuses the
            program on every rank; what rounding explains is told, and kept in the manifest. What
            the call may change, and random streams, are put back; what it prints is left out.
            "off", the default: it is not compared, which the manifest says.
        pending: axis -> "ddp mean", "ddp sum", "mean" or "sum": what something after the step does
            to the gradients, as DDP's hook, or the last of several accumulation steps.
        roles: the axis or axes along which ranks run other programs, as the stages of a pipeline.
            Ranks that are equal on them share a program, built by one of theirs; the coordinate
            along them is a plain number in the step. Nothing is checked between roles.
        guard: True: the ranks compare before every call that it is the same one, by a small
            all-reduce in a group of its own; where it is not, StepMismatch is raised on all of
            them. Calls are told apart by step, variant and count; a function that gives the loop's
            own number, as `lambda: state.step`, sees a rank that has left out a batch, too.
        passes: pass over the captured graph -> False, True, or the bytes that it may use. "bucket":
            collectives of one axis go together; "overlap": they start early and are waited for
            late. These two keep every bit, and "inductor" has them by itself. "bucket_wide": sums
            over more than two ranks go together, too, whose bits may then be others. "share": what
            is computed twice is computed once, which a compiler does by itself.

    Returns:
        A callable like the step. Its first call of each variant is collective over all ranks.

    Raises:
        UsageError: an unknown option. Of the first call: CheckError, where the check finds a fault;
            EagerMismatch, where the graph is not the step.

    Example:
        >>> @ls.compile(mesh=mesh, data="dp")                                # doctest: +SKIP
        ... def train_step(model, tokens, labels): ...
    """
    told = options(
        function,
        mesh=mesh,
        data=data,
        store=store,
        backend=backend,
        on_new_shape=on_new_shape,
        dynamic=dynamic,
        check=check,
        eager_check=eager_check,
        pending=pending,
        roles=roles,
        guard=guard,
        passes=passes,
    )

    def wrap(step: Callable[..., Any]) -> CompiledStep:
        return CompiledStep(step, told)

    return wrap if function is None else wrap(function)
