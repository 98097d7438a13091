"""`ls.compile`: a step becomes a table of variants; an unknown call is a vote of all ranks."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from lockstep import _compat
from lockstep.build.artifact import Artifact, pack
from lockstep.build.backends import lower
from lockstep.build.fingerprint import Fields, differences, digest, fingerprint
from lockstep.capture.binding import Call, Step
from lockstep.capture.capture import capture_call
from lockstep.capture.refusal import refuse
from lockstep.errors import ArtifactError, ContractError, UsageError
from lockstep.fleet.obtain import Obtained
from lockstep.run.key import Bound, contract
from lockstep.run.loader import load_program
from lockstep.run.modes import ON, instead, mode
from lockstep.run.session import Session, session
from lockstep.run.variant import Variant
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

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        mesh: DeviceMesh | None,
        data: str | tuple[str, ...] | None,
        store: str | os.PathLike[str] | None,
        backend: str,
        on_new_shape: str,
    ) -> None:
        functools.update_wrapper(self, function)
        if mesh is not None:
            register(mesh)  # now, since the eager way back needs the axes' names too
        self.step = Step(function)
        self.backend, self.on_new_shape = backend, on_new_shape
        self._mesh, self._data, self._store = mesh, data, store
        self._variants: dict[Any, Variant] = {}
        self._contracts: dict[str, Fields] = {}
        self._asked: list[Fields] = []  # of each variant what it is about the arguments alone
        self._bound: list[Bound] = []
        self._calls = self._votes = 0
        self._eager: Callable[..., Any] | None = None
        # The n-th step of a name is the n-th on every rank, for the keys that ranks meet under.
        count = _names[self.step.name] = _names.get(self.step.name, 0) + 1
        self.name = self.step.name if count == 1 else f"{self.step.name}#{count}"

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
        bound = self._bind(call)
        key = bound.key(call)
        self._calls += 1
        variant = self._variants.get(key)
        here = session()
        if variant is None:
            variant = self._admit(here, key, call, bound)
        here.fleet.call(self.name, variant.name, self._calls)  # lone votes are judged by it
        # Guarded at every call: a rank that a fault finds stuck in here is ended by its deadman.
        with here.fleet.guard(f"running {self.name}, call {self._calls}"):
            if self._calls <= 3:
                return self._first_runs(here, variant, call, bound)
            return variant.run(call, bound)

    def _first_runs(self, here: Session, variant: Variant, call: Call, bound: Bound) -> Any:
        begin = time.monotonic()
        result = variant.run(call, bound)
        here.journal.event(
            "ran", step=self.name, variant=variant.name, call=self._calls,
            seconds=round(time.monotonic() - begin, 4),
        )  # fmt: skip
        return result

    def _bind(self, call: Call) -> Bound:
        for bound in self._bound:
            if bound.holds(call):
                return bound
        bound = Bound(self.step, call)
        self._bound.insert(0, bound)
        del self._bound[8:]
        return bound

    # -- a new variant

    def _admit(self, here: Session, key: Any, call: Call, bound: Bound) -> Variant:
        """Vote with all ranks on a variant that none has met, and load it."""
        with here.fleet.guard(f"preparing {self.name}, call {self._calls}"):
            words = contract(call, bound)
            asked = {name: words[name] for name in (*call.names, "argument tree")}
            self._refuse_new(asked, words)
            wanted = self._fingerprint(call, bound, words)
        self._votes += 1
        name, file = f"v{self._votes - 1}", f"{digest(wanted)[:32]}.lockstep"
        store = here.store(self._store)
        obtained = here.fleet.obtain(
            f"{self.name}/{name}",
            wanted,
            file,
            store,
            lambda stage: self._build(here, call, bound, wanted, stage),
            call=self._calls,
            verify=lambda data: _verify(data, wanted, str(store.path_of(file))),
        )
        with here.fleet.guard(f"loading {self.name}"):
            variant = self._load(here, obtained, name, call, bound)
        self._variants[key] = variant
        self._contracts[name] = words
        self._asked.append(asked)
        return variant

    def _refuse_new(self, asked: Fields, words: Fields) -> None:
        if self._asked and self.on_new_shape == "error" and asked not in self._asked:
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

    def _fingerprint(self, call: Call, bound: Bound, words: Fields) -> Fields:
        axes = register(self._mesh) if self._mesh is not None else {}
        return fingerprint(
            self.step,
            call,
            bound.state,
            bound.reach,
            contract=words,
            mesh={name: axis.size for name, axis in axes.items()},
            backend=self.backend,
            options={"data": self._data},
        )

    def _build(
        self, here: Session, call: Call, bound: Bound, wanted: Fields, stage: Callable[[str], None]
    ) -> bytes:
        seconds: dict[str, float] = {}
        begin = time.monotonic()
        stage("capture")
        graph = capture_call(self.step, call, bound.state)
        seconds["capture"] = time.monotonic() - begin
        stage("lower")
        begin = time.monotonic()
        program = lower(graph, self.backend)
        seconds["lower"] = time.monotonic() - begin
        stage("pack")
        manifest = {
            "step": self.step.name,
            "fingerprint": wanted,
            "contract": graph.contract(),
            "schedule": graph.schedule,
            "nodes": len(graph.gm.graph.nodes),
            "built": {
                "time": round(time.time()),
                "rank": here.rank,
                "world": here.world,
                "seconds": {k: round(v, 3) for k, v in seconds.items()},
            },
        }
        import json

        source_map = json.dumps(graph.source_map(), indent=0).encode()
        return pack(manifest, program, {"source_map.json": source_map}).to_bytes()

    def _load(
        self, here: Session, obtained: Obtained, name: str, call: Call, bound: Bound
    ) -> Variant:
        begin = time.monotonic()
        artifact = Artifact.from_bytes(obtained.data, obtained.path or self.name)
        variant = Variant(artifact, load_program(artifact), name)
        variant.verify(call, bound)
        seconds = {**obtained.seconds, "load": time.monotonic() - begin}
        built = artifact.manifest["built"]
        here.journal.event(
            "ready",
            role=obtained.role,
            step=self.name,
            variant=name,
            path=obtained.path,
            digest=obtained.digest,
            by=obtained.by,
            backend=self.backend,
            bytes=len(obtained.data),
            nodes=artifact.manifest["nodes"],
            built=built,
            mesh=_mesh_sizes(artifact.manifest["fingerprint"]),
            seconds={k: round(v, 4) for k, v in seconds.items()},
        )
        if here.rank == 0:
            here.say(_told(self.name, name, obtained, built, seconds["load"], here.world))
        return variant


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


def _verify(data: bytes, wanted: Fields, where: str) -> None:
    """Refuse bytes that are damaged, or that hold another program than the wanted one."""
    artifact = Artifact.from_bytes(data, where)
    rows = differences(wanted, artifact.manifest.get("fingerprint", {}))
    if rows:
        shown = [f"{name}: {_short(got)}" for name, _, got in rows[:8]]
        raise ArtifactError(
            f"the artifact is not the one this job wants: {len(rows)} field(s) differ",
            where=where,
            got="\n".join(shown),
            want="\n".join(f"{name}: {_short(want)}" for name, want, _ in rows[:8]),
            fix="delete it, or unset LOCKSTEP_STORE, and the next start builds the right one",
        )


def _mesh_sizes(wanted: Fields) -> dict[str, int]:
    return {k.removeprefix("mesh "): v for k, v in wanted.items() if k.startswith("mesh ")}


def _rows(known: Fields, words: Fields, side: int) -> str:
    rows = differences(known, words)
    return "\n".join(f"{row[0]}: {_short(row[side])}" for row in rows[:8])


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 100 else text[:97] + "..."


def _told(
    name: str, variant: str, obtained: Obtained, built: Fields, load: float, world: int
) -> str:
    """The one line at start: loaded or built, by whom, how old, in what time, what it saved."""
    cost = sum(built["seconds"].values())
    where = f" -> {obtained.path}" if obtained.path else " (kept in no store)"
    head = f"{name} {variant} [{obtained.digest[:12]}]"
    if obtained.role == "built" or obtained.by is not None:
        saved = f"; {world - 1} x {cost:.1f} s saved" if world > 1 else ""
        return (
            f"{head}: built by rank {obtained.by} in {cost:.1f} s, loaded by {world} rank(s) in "
            f"{load:.2f} s{saved}{where}"
        )
    age = _age(time.time() - built["time"])
    return (
        f"{head}: loaded by {world} rank(s) in {load:.2f} s, built {age} ago by rank "
        f"{built['rank']} of {built['world']} in {cost:.1f} s; {world} x {cost:.1f} s saved{where}"
    )


def _age(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


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
    on_new_shape: str = "build",
) -> Callable[[Callable[P, T]], Callable[P, T]]: ...


def compile(
    function: Callable[..., Any] | None = None,
    *,
    mesh: DeviceMesh | None = None,
    data: str | tuple[str, ...] | None = None,
    store: str | os.PathLike[str] | None = None,
    backend: str = "inductor",
    on_new_shape: str = "build",
) -> Any:
    """Make a step that one rank compiles and every rank runs.

    The step is an ordinary function: forward, loss, `backward()`, collectives on mesh axes, the
    optimizer if it likes; or an evaluation without `backward()`. It may be a method.

    Args:
        function: the step; left out where options are given.
        mesh: names the axes that the step's collectives use; None: only the world's group.
        data: the axis or axes over which the ranks' batches differ.
        store: where artifacts are kept: a directory, or one artifact's file, which is then the
            only one admitted. By default `$LOCKSTEP_STORE`, else `~/.cache/lockstep`.
        backend: "inductor" (compiled), or "graph" (the graph as captured, bitwise as eager).
        on_new_shape: what a call that no variant covers does: "build" one, by a vote of all ranks,
            or "error".

    Returns:
        A callable like the step. Its first call of each variant is collective over all ranks.

    Raises:
        UsageError: an unknown option.

    Example:
        >>> @ls.compile(mesh=mesh, data="dp")                                # doctest: +SKIP
        ... def train_step(model, tokens, labels): ...
    """
    for name, value, known in (
        ("backend", backend, ("graph", "inductor")),
        ("on_new_shape", on_new_shape, ("build", "error")),
    ):
        if value not in known:
            raise UsageError(f"{name}={value!r}", want=f"one of {', '.join(known)}")

    def wrap(step: Callable[..., Any]) -> CompiledStep:
        return CompiledStep(
            step, mesh=mesh, data=data, store=store, backend=backend, on_new_shape=on_new_shape
        )

    return wrap if function is None else wrap(function)
