"""The control plane of a job: one rank builds, all run it, no rank waits for a dead one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from lockstep.errors import FleetError
from lockstep.fleet.agree import Agreement, Judge
from lockstep.fleet.calls import note_call
from lockstep.fleet.client import Client, StoreGone
from lockstep.fleet.ending import Deadman
from lockstep.fleet.faults import Fault, is_consequence, is_told
from lockstep.fleet.obtain import Build, Obtained, Obtaining, Settle, Verify, Wanted, obtain_alone
from lockstep.fleet.replicas import Compared
from lockstep.fleet.say import store_text
from lockstep.fleet.scope import Scope
from lockstep.fleet.second import Second
from lockstep.fleet.state import State
from lockstep.fleet.store import ArtifactStore
from lockstep.fleet.timing import Timing
from lockstep.fleet.waiting import Waits
from lockstep.fleet.watcher import BYE, Watcher, ended, silence, silent, store_fault
from lockstep.journal import Journal

if TYPE_CHECKING:
    from torch.distributed import Store


class Fleet:
    """This rank's part in the fleet.

    Everything goes through the rendezvous store, never through a collective that could hang. A
    world of one needs no store and starts no thread.

    Args:
        store: the job's rendezvous store, cloned and never used itself; None in a world of one.
        rank: this process.
        world: number of ranks.
        prefix: of all keys; must hold the run's id and its restart count, since keys outlive a
            restart.
        node: this rank's node, from 0.
        local_rank: this rank's place on its node; 0 fetches for the node.
        nodes: number of nodes.
        journal: where events go.
        timing: all limits; None takes the defaults for this world, with `LOCKSTEP_TIMING`.

    Example:
        >>> import tempfile
        >>> fleet = Fleet(None, 0, 1, "run/0")
        >>> store = ArtifactStore(tempfile.mkdtemp())
        >>> got = fleet.obtain("step/v0", {}, "a.lockstep", store, lambda stage: b"bytes")
        >>> got.role, got.by, fleet.obtain("step/v0", {}, "a.lockstep", store, None).role
        ('built', 0, 'loaded')
        >>> fleet.close()
    """

    def __init__(
        self,
        store: Store | None,
        rank: int,
        world: int,
        prefix: str,
        *,
        node: int = 0,
        local_rank: int = 0,
        nodes: int = 1,
        journal: Journal | None = None,
        timing: Timing | None = None,
    ) -> None:
        self.rank, self.world, self.node, self.nodes = rank, world, node, nodes
        self.everyone = Scope.world(world)
        timing = timing or Timing.for_world(world)
        self.state = State(rank, world, local_rank, timing, journal or Journal(None, rank))
        self._told: BaseException | None = None
        self._closed = False
        self._main: Client | None = None
        if world > 1:
            if store is None:
                raise FleetError("a world of more than one rank needs a rendezvous store")
            self._start(store, f"lockstep/{prefix}")

    def _start(self, store: Store, prefix: str) -> None:
        main, blocked, watching = (Client(store, prefix) for _ in range(3))  # may take seconds
        self.state.store_at = main.at
        main.add(f"alive/{self.rank}", 1)  # before anything is posted: who posted can be missed
        self._main, self._waits = main, Waits(main, blocked, self.state)
        self._watcher = Watcher(watching, self.state)
        self._deadman = Deadman(self.state, main)

    # ---- the main thread's verbs ---------------------------------------------------------------

    def obtain(
        self,
        topic: str,
        contract: dict[str, Any],
        name: str,
        store: ArtifactStore,
        build: Build,
        *,
        call: int = 1,
        verify: Verify | None = None,
        required: bool = False,
        replicas: Compared | None = None,
        second: Second | None = None,
        place: dict[str, int] | None = None,
        settle: Settle | None = None,
        line_of: Callable[[Sequence[Any]], str | None] | None = None,
        toolchain: dict[str, Any] | None = None,
        rehearse: Callable[[], None] | None = None,
        scope: Scope | None = None,
    ) -> Obtained:
        """Return the bytes of the artifact that all ranks want, the same on every rank.

        The ranks agree on the contract, then on whether it is in the store; if not, one builds
        while the others wait and say for what. Every rank must make the same calls of this.

        Args:
            topic: `step/variant`, for messages and to find the contract again.
            contract: what the ranks must agree on: JSON, nested as one likes; differing leaves are
                named by their path.
            name: the artifact's name in the store.
            store: where it is kept.
            build: makes the bytes, on one rank; gets `stage(name)` to tell "capture", "lower", ...
            call: which call of the step this is, from 1; a rank that is alone in meeting something
                new at this call is named.
            verify: raises where the store's bytes are not what they should be; gives False where
                others are to be built in their place.
            required: whether a store that cannot keep the artifact is an error.
            replicas: what the ranks compare beside it; all of them give it, or none.
            second: makes one more rank's view of what is built, which the builder compares.
            place: this rank's coordinates, where `settle` is given.
            settle: is given formulas of what the contracts hold of the ranks' own numbers, and says
                what to ask for in place of `contract`, `name`, `build`, `verify` and `second`.
            line_of: finds the user's line for a path in the contract, where ranks differ in it.
            toolchain: what this rank would build with, by name; None for what it lacks. It is
                agreed on with the contract.
            rehearse: what every rank does, at once, where it is not in the store: before one
                builds it. It may obtain something else. What it raises is told to all.
            scope: the ranks that share the program; None: all.

        Raises:
            FleetError: another rank failed, or the ranks do not agree; the culprit is named.
        """
        step, _, variant = topic.partition("/")
        accept = verify or (lambda data: None)
        wanted = Wanted(
            topic, step, call, contract, name, store, build, accept, required, replicas, second,
            place, settle, line_of, toolchain or {}, rehearse,
        )  # fmt: skip
        scope = scope or self.everyone
        with self.guard(f"obtaining {step}"):
            if self._main is None:
                return obtain_alone(wanted, self.state)
            self.state.contracts[step, variant] = contract
            return Obtaining(self._main, self._waits, self.state, self.node, wanted, scope).run()

    def agree(
        self,
        topic: str,
        value: dict[str, Any],
        judge: Judge,
        about: str,
        *,
        scope: Scope | None = None,
        limit: float | None = None,
    ) -> dict[str, Any]:
        """Post a value, and return the verdict on those of all ranks; see `Agreement.agree`.

        Args:
            topic: used once, and equal on all ranks of the scope.
            scope: the ranks that take part; None: all.
            limit: seconds to wait for the others; None: as long as for a vote.

        Raises:
            FleetError: the verdict holds a fault, or a rank failed or never came.
        """
        scope = scope or self.everyone
        if self._main is None:
            return judge([value], scope.ranks)
        agreement = Agreement(self._main, self._waits, self.state, scope)
        with self.guard(f"waiting for all to {about}"), self.state.needing(f"waits to {about}"):
            try:
                return agreement.agree(scope.key(topic), value, judge, about, limit=limit)
            except StoreGone as error:
                raise store_fault(error).error() from None

    def guard(self, doing: str) -> Guard:
        """Return a context in which an exception is told to all ranks before it leaves.

        Args:
            doing: what happens inside, for messages: "rank 1 failed while <doing>".
        """
        return Guard(self, doing)

    def call(self, step: str, variant: str, number: int, scope: Scope | None = None) -> None:
        """Say that this rank enters a call with a program it has; costs a microsecond.

        Args:
            step, variant: as in the topic.
            number: which call of the step, from 1.
            scope: the ranks that share the program; None: all.

        Raises:
            FleetError: another rank has failed.
        """
        if self._main is None:
            return
        self.state.raise_fault()
        note_call(self.state, step, variant, number, scope or self.everyone)

    def close(self) -> None:
        """Leave in peace: others may then name this rank as ended, never as silent.

        After a fault the limits stay in force until the process has ended.
        """
        if self._main is None or self._closed:
            return
        self._closed = True
        if self.state.fault is None:
            self.state.stop.set()
            self._watcher.thread.join(4 * self.state.timing.beat)
        bye = threading.Thread(target=self._bye, name="lockstep-bye", daemon=True)
        bye.start()
        bye.join(self.state.timing.ack)  # a stopped host must not hold a job that is done

    def _bye(self) -> None:
        try:
            if self._main is not None:
                self._main.add(f"alive/{self.rank}", BYE)
                self._waits.end(self.state.timing.beat)
        except StoreGone:
            self.state.journal.event("store_gone", error="at the end")

    # ---- faults --------------------------------------------------------------------------------

    def tell(self, error: BaseException, doing: str) -> FleetError | None:
        """Tell all ranks of an exception and wait until they have heard, `ack` seconds at most.

        Returns:
            the error to raise instead, where this exception is a consequence of another rank's.
        """
        if self._main is None or error is self._told:
            return None
        self._told = error
        self.state.left.set()
        if isinstance(error, StoreGone):
            return self._remember(store_fault(error).error())
        told = f"tells the others of {type(error).__name__}: {str(error).partition(chr(10))[0]}"
        try:
            with self.state.needing(told):
                fault = self._posted(error, doing)
                if not isinstance(error, KeyboardInterrupt):  # the user pressed it and waits
                    self._wait_until_heard(fault)
        except StoreGone as gone:
            self.state.say(f"{store_text(gone.at)} is gone: the other ranks cannot be told")
            return None
        mine = is_told(error) or (fault.kind == "error" and fault.rank == self.rank)
        return None if mine else self._remember(fault.error())

    def _remember(self, error: FleetError) -> FleetError:
        self._told = error
        return error

    def _posted(self, error: BaseException, doing: str) -> Fault:
        if is_told(error):
            return error.fault  # type: ignore[attr-defined]
        mine = Fault.of(error, self.rank, doing)
        if is_consequence(error):
            mine = self._cause(mine)
        return self.state.fault or self._waits.post(mine)

    def _cause(self, mine: Fault) -> Fault:
        """Give the cause of a broken connection time to be told; else look for who is silent."""
        timing, main = self.state.timing, self._main
        if main is None or self.state.faulted.wait(2 * timing.beat):
            return mine
        beats = timing.polls(timing.cause)
        gone = silent(main, self.state, max(2, beats - 2))
        if gone and self.state.fault is None:
            return silence(gone, beats * timing.beat, self.rank, mine.what)
        left = ended(main, [rank for rank in range(self.world) if rank != self.rank])
        if left:
            also = f"rank {left[0]} had ended" if len(left) == 1 else f"ranks {left} had ended"
            return Fault(**{**mine.record(), "why": also, "gone": tuple(left)})
        return mine

    def _wait_until_heard(self, fault: Fault) -> None:
        """Stay until every watcher has the fault, so that torchrun's SIGTERM does not beat it."""
        if self._main is None or fault.kind == "store":
            return
        need = self.world - len(fault.gone)
        end = time.monotonic() + self.state.timing.ack
        while self._main.add("fault/seen") < need and time.monotonic() < end:
            time.sleep(max(0.05, self.state.timing.beat / 10))


class Guard:
    """The context that `Fleet.guard` returns; may be nested."""

    def __init__(self, fleet: Fleet, doing: str) -> None:
        self._fleet, self._doing = fleet, doing

    def __enter__(self) -> None:
        self._fleet.state.raise_fault()
        self._fleet.state.doing.append(self._doing)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is not None and not isinstance(error, GeneratorExit):
                other = self._fleet.tell(error, self._doing)
                if other is not None:
                    raise other from error
                if is_told(error):
                    raise error.with_traceback(None)  # the way through this folder says nothing
        finally:
            self._fleet.state.doing.pop()
