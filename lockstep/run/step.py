"""`ls.compile`: a step becomes a table of variants; an unknown call is a vote of all ranks."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from lockstep import _compat
from lockstep.build.fingerprint import Fields, differences, digest, fingerprint
from lockstep.capture.binding import Call, Step
from lockstep.capture.refusal import refuse
from lockstep.errors import ContractError, UsageError
from lockstep.run.admit import build, load, short, verify
from lockstep.run.key import Bound, contract
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
        self.mesh, self.data, self._store = mesh, data, store
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
            lambda stage: build(self.step, call, bound, wanted, self.backend, here, stage),
            call=self._calls,
            verify=lambda data: verify(data, wanted, str(store.path_of(file))),
        )
        with here.fleet.guard(f"loading {self.name}"):
            variant = load(obtained, self.name, name, here)
            variant.verify(call, bound)
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
        axes = register(self.mesh) if self.mesh is not None else {}
        return fingerprint(
            self.step,
            call,
            bound.state,
            bound.reach,
            contract=words,
            mesh={name: axis.size for name, axis in axes.items()},
            backend=self.backend,
            options={"data": self.data},
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


def _check_options(function: Any, mesh: Any, data: Any) -> None:
    """Refuse what cannot be a step, a mesh, or one of its axes."""
    if function is not None and not isinstance(function, (FunctionType, MethodType)):
        raise UsageError(
            "ls.compile takes a function or a method",
            got=f"a {type(function).__name__}",
            fix="def step(model, ...): return model(...)   and compile that",
        )
    if mesh is not None and not hasattr(mesh, "mesh_dim_names"):
        raise UsageError(f"mesh={mesh!r}", want="a DeviceMesh", fix="mesh=ls.mesh(dp=-1)")
    axes = (mesh.mesh_dim_names or ()) if mesh is not None else None
    for axis in (data,) if isinstance(data, str) else data or ():
        if not isinstance(axis, str) or (axes is not None and axis not in axes):
            raise UsageError(
                f"data={data!r} names no axis of the mesh",
                want=f"one of {list(axes)}" if axes is not None else "the name of an axis",
            )


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
    _check_options(function, mesh, data)
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
