"""From "we want this step" to the same bytes on every rank: vote, build once, ship, confirm."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lockstep.errors import ArtifactError, FleetError, ToolchainError
from lockstep.fleet.agree import Agreement
from lockstep.fleet.client import Client, StoreGone
from lockstep.fleet.judge import judge_digests, judge_vote
from lockstep.fleet.lease import NOBODY, Held, Lease
from lockstep.fleet.replicas import Compared, axes_apart, odd_replicas
from lockstep.fleet.say import waits
from lockstep.fleet.scope import Scope
from lockstep.fleet.second import Second
from lockstep.fleet.ship import Shipping, digest_of
from lockstep.fleet.state import State
from lockstep.fleet.store import ArtifactStore
from lockstep.fleet.turns import pause_of
from lockstep.fleet.waiting import Waits
from lockstep.fleet.watcher import store_fault

Stage = Callable[[str], None]
Build = Callable[[Stage], bytes]
Verify = Callable[[bytes], bool | None]  # False: not what is wanted, build it again
USER_STAGES = ("capture",)  # the user's own code runs here: what it raises is a fault at once


@dataclass(frozen=True)
class Obtained:
    """An artifact's bytes, equal on every rank, and how this rank came by them.

    Args:
        data: the bytes.
        digest: their sha256, confirmed by all ranks.
        role: "built" or "loaded".
        by: the rank that built them in this job; None where the store had them.
        seconds: seconds spent, by phase: read, agree, build or wait, ship, confirm, total.
        path: the file in the store, or its URL; None where it could not be kept.
    """

    data: bytes = field(repr=False)
    digest: str
    role: str
    by: int | None
    seconds: dict[str, float]
    path: str | None


@dataclass(frozen=True)
class Asked:
    """What a rank asks for with formulas in place of its own numbers; as in `Fleet.obtain`."""

    contract: dict[str, Any]
    name: str
    build: Build
    verify: Verify
    second: Second | None = None
    rehearse: Callable[[], None] | None = None


Settle = Callable[[list[Any]], Asked]


@dataclass(frozen=True)
class Wanted:
    """What a rank asks for; see `Fleet.obtain`."""

    topic: str
    step: str
    call: int
    contract: dict[str, Any]
    name: str
    store: ArtifactStore
    build: Build
    verify: Verify
    required: bool
    replicas: Compared | None = None
    second: Second | None = None
    place: dict[str, int] | None = None
    settle: Settle | None = None
    line_of: Callable[[Sequence[Any]], str | None] | None = None
    toolchain: dict[str, Any] = field(default_factory=dict)
    rehearse: Callable[[], None] | None = None


class Clock:
    """Seconds by phase.

    Example:
        >>> clock = Clock()
        >>> clock.lap("read")
        >>> list(clock.done())
        ['read', 'total']
    """

    def __init__(self) -> None:
        self._begin = self._last = time.monotonic()
        self._seconds: dict[str, float] = {}

    def lap(self, phase: str) -> None:
        """Count what passed since the last lap for a phase."""
        now = time.monotonic()
        self._seconds[phase] = self._seconds.get(phase, 0.0) + now - self._last
        self._last = now

    def done(self) -> dict[str, float]:
        """Return all phases and their total."""
        return {**self._seconds, "total": time.monotonic() - self._begin}


def read_verified(wanted: Wanted, fetch: bool = True) -> bytes | None:
    """Return the store's bytes after the caller's `verify`, None where none there serve.

    Args:
        fetch: whether to go beyond this machine for them, which a node's first rank does for all.
    """
    for again in (False, True):
        data = wanted.store.read(wanted.name, fetch=fetch)
        try:
            return None if data is None or wanted.verify(data) is False else data
        except ArtifactError as error:
            if again or not wanted.store.forget(wanted.name, error.what):
                raise
    return None


def built(wanted: Wanted, stage: Stage, job: str, state: State) -> bytes:
    """Build, unless another job that uses the store has built the same meanwhile."""
    store, name = wanted.store, wanted.name
    store.prepare(name)
    try:
        if store.turn(name, job, state.timing, pause_of(state, stage)):
            data = read_verified(wanted)
            if data is not None:
                state.say(f"takes {wanted.step} as another job has built it meanwhile")
                return data
        return wanted.build(stage)
    except BaseException:
        store.leave(name)
        raise


def obtain_alone(wanted: Wanted, state: State) -> Obtained:
    """Load or build in a world of one: no rendezvous store, and no other rank."""
    clock = Clock()
    data = read_verified(wanted)
    clock.lap("read")
    role, by, kept = "loaded", None, True
    if data is None:
        if wanted.rehearse is not None:
            wanted.rehearse()
            clock.lap("rehearse")
        data, role, by = built(wanted, lambda stage: None, "", state), "built", 0
        clock.lap("build")
        kept = wanted.store.write(wanted.name, data, required=wanted.required)
        clock.lap("write")
    return _obtained(wanted, data, digest_of(data), role, by, kept, clock)


class Obtaining:
    """One `obtain` in a world of many.

    Args:
        client: the main thread's connection.
        waits: how to wait.
        state: this rank.
        node: this rank's node.
        wanted: what is asked for.
        scope: the ranks that ask for it together.
    """

    def __init__(
        self, client: Client, waits: Waits, state: State, node: int, wanted: Wanted, scope: Scope
    ) -> None:
        self._client, self._waits, self._state, self._node = client, waits, state, node
        self._wanted, self._scope = wanted, scope
        self._leads = scope.leads(state.rank, state.local_rank)
        self._agreement = Agreement(client, waits, state, scope, wanted.line_of)
        self._clock, self._kept, self._viewed = Clock(), True, False
        self._topic = state.next_vote(scope)

    def run(self) -> Obtained:
        """Return the bytes that all ranks hold.

        Raises:
            FleetError: the ranks do not agree or one of them failed; the message names it.
        """
        state, doing = self._state, f"needs it to obtain {self._wanted.step}"
        try:
            with state.needing(doing):
                return self._run()
        except StoreGone as error:
            raise store_fault(error).error() from None

    def _run(self) -> Obtained:
        clock = self._clock
        have, digest, verdict = self._ask()
        if "early" in verdict:
            self._settle(verdict["early"])
            have, digest, verdict = self._ask()
        wanted = self._wanted
        self._compare(verdict)
        clock.lap("agree")
        done, role = verdict.get("done"), "loaded"
        if done is None:
            self._rehearse()
            done, have, role = self._build_or_wait(verdict["candidates"])
            digest = None if have is None else digest_of(have)
        shipping = Shipping(
            self._client, self._waits, self._state, self._topic, done, self._node, self._leads,
            verdict.get("nodes"),
        )  # fmt: skip
        kept = self._kept
        if digest != done["digest"]:
            have, kept = shipping.fetch(wanted.name, wanted.store)
            digest, role = done["digest"], "loaded"  # verified on its way
        elif have is not None:
            shipping.hold(have)
        clock.lap("ship")
        try:
            self._confirm(digest, done)
        finally:
            shipping.end()
        clock.lap("confirm")
        by = done["by"] if done["built"] else None
        return _obtained(wanted, have or b"", done["digest"], role, by, kept, clock)

    def _ask(self) -> tuple[bytes | None, str | None, dict[str, Any]]:
        """Vote: returns what the store has of it, its digest, and the verdict of all ranks."""
        self._notice()
        have = read_verified(self._wanted, fetch=self._leads)
        digest = None if have is None else digest_of(have)
        self._clock.lap("read")
        return have, digest, self._vote(have, digest)

    def _settle(self, found: list[Any]) -> None:
        """Ask again: all ranks have numbers of their own there, and one formula for them."""
        wanted = self._wanted
        if wanted.settle is None:
            raise FleetError(f"{wanted.step} has no way to ask for what differs between its ranks")
        asked = wanted.settle(found)
        self._wanted = replace(wanted, **vars(asked), place=None, settle=None)
        _, _, variant = wanted.topic.partition("/")
        self._state.contracts[wanted.step, variant] = asked.contract
        self._topic = self._state.next_vote(self._scope)

    def _notice(self) -> None:
        """Tell the watchers of ranks that have entered this call with a program they know."""
        wanted = self._wanted
        notice = {"step": wanted.step, "call": wanted.call, "contract": wanted.contract}
        self._client.create(f"{self._topic}/notice", {**notice, "rank": self._state.rank})

    def _vote(self, have: bytes | None, digest: str | None) -> dict[str, Any]:
        wanted = self._wanted
        value = {
            "step": wanted.step,
            "topic": wanted.topic,
            "contract": wanted.contract,
            "have": digest,
            "size": len(have or b""),
            "node": self._node,
            "local_rank": 0 if self._leads else max(1, self._state.local_rank),
            "toolchain": wanted.toolchain,
            "replicas": wanted.replicas.summary() if wanted.replicas is not None else {},
            "place": wanted.place,
        }

        def judge(posted: Sequence[dict[str, Any]], ranks: Sequence[int]) -> dict[str, Any]:
            return {**judge_vote(posted, ranks), "apart": axes_apart(posted)}

        return self._agreement.agree(self._topic, value, judge, f"call {wanted.step}")

    def _compare(self, verdict: dict[str, Any]) -> None:
        """Find out which parameters differ, where a digest of all of them says that some do."""
        wanted = self._wanted
        if wanted.replicas is None or not verdict["apart"]:
            return
        found = self._agreement.agree(
            f"{self._topic}/replicas",
            wanted.replicas.digests(verdict["apart"]),
            odd_replicas,
            f"compare the parameters of {wanted.step}",
        )
        wanted.replicas.heard(found["odd"])

    def _confirm(self, digest: str | None, done: dict[str, Any]) -> None:
        self._agreement.agree(
            f"{self._topic}/confirm",
            {"digest": digest},
            judge_digests,
            f"confirm the bytes of {self._wanted.step}",
        )
        event = {"topic": self._wanted.topic, "digest": done["digest"]}
        self._state.journal.event("confirmed", **event)

    # ---- building ------------------------------------------------------------------------------

    def _rehearse(self) -> None:
        """Do what all ranks do together before one builds: each of them has read the verdict."""
        if self._wanted.rehearse is not None:
            with self._state.needing(""):
                self._wanted.rehearse()
            self._clock.lap("rehearse")

    def _build_or_wait(self, candidates: list[int]) -> tuple[dict[str, Any], bytes | None, str]:
        """Return what counts, this rank's own bytes if it built, and its role."""
        lease = Lease(self._client, self._state, self._topic, candidates)
        held: Held | None = lease.open()
        if held is not None and held.holder != self._state.rank:
            held = None
        while True:
            if held is None:
                self._view()
                done, held = self._wait(lease)
                self._clock.lap("wait")
                if done is not None:
                    return done, None, "loaded"
            if held is not None:
                data = self._try_to_build(lease, held)
                self._clock.lap("build")
                if data is not None:
                    return self._publish(data), data, "built"
                held = None

    def _wait(self, lease: Lease) -> tuple[dict[str, Any] | None, Held | None]:
        taken: list[Held] = []

        def on_slice() -> bool:
            mine = lease.take_over()
            if mine is not None:
                taken.append(mine)
                self._say_taken(mine)
            return bool(taken)

        def what(seconds: float) -> str:
            held = lease.look()
            stage = self._client.get(f"{self._topic}/stage/{held.attempt}") or "beginning"
            who = "another rank" if held.holder == NOBODY else f"rank {held.holder}"
            at = f"(attempt {held.attempt}, {stage})"
            return waits(seconds, f"{who} to build {self._wanted.step} {at}")

        limit = self._state.timing.build
        done = self._waits.wait_for(f"{self._topic}/done", what, limit, on_slice, at_once=True)
        return done, taken[0] if taken else None

    def _view(self) -> None:
        """Make this rank's view of what another one builds, where that compares with it."""
        second, rank = self._wanted.second, self._state.rank
        if second is None or self._viewed or not self._scope.at_ends(rank):
            return
        self._viewed = True
        view = second.view()
        self._client.put(f"{self._topic}/view/{rank}", view)
        self._state.journal.event("viewed", topic=self._wanted.topic, digest=view.get("digest"))

    def _other_view(self, silent: int | None) -> Any:
        """Wait for the view of the rank that this builder compares with; None: there is none.

        One that is there is taken although another rank has failed: the build may end.

        Args:
            silent: the rank from which the build was taken over, which makes no view any more.
        """
        there = self._scope.far_end(self._state.rank)
        if there == self._state.rank:
            return None
        if there == silent:
            step = self._wanted.step
            self._state.say(f"what it builds for {step} is not compared: rank {there} is silent")
            return None

        def what(seconds: float) -> str:
            return waits(seconds, f"rank {there} to capture {self._wanted.step} as well")

        key, limit = f"{self._topic}/view/{there}", self._state.timing.build
        view = self._client.get(key)
        return view if view is not None else self._waits.wait_for(key, what, limit)

    def _say_taken(self, mine: Held) -> None:
        text = f"rank {self._state.rank} takes over the build of {self._wanted.step}"
        self._state.say(f"{text} (attempt {mine.attempt})")
        self._state.journal.event("takeover", topic=self._wanted.topic, attempt=mine.attempt)

    def _try_to_build(self, lease: Lease, held: Held) -> bytes | None:
        """Return the bytes, or None if this machine cannot build and another rank may."""
        now = "beginning"

        def stage(name: str) -> None:
            nonlocal now
            fault = self._state.fault
            if fault is not None and fault.kind != "silent":
                raise fault.error()
            now = name
            with self._state.needing("tells how far its build is"):
                self._client.put(f"{self._topic}/stage/{held.attempt}", name)
            self._state.journal.event("stage", topic=self._wanted.topic, stage=name)

        self._state.building = True
        if self._wanted.second is not None:
            self._wanted.second.comes_from(lambda: self._other_view(lease.silent))
        try:
            job = self._client.create("job", secrets.token_hex(8))
            with self._state.needing(""):
                return built(self._wanted, stage, job, self._state)
        except Exception as error:
            if now in USER_STAGES or not is_machines(error) or not lease.release(held):
                raise
            self._state.say(f"cannot build here, another rank may: {type(error).__name__}: {error}")
            self._state.journal.event("released", error=str(error))
            return None
        finally:
            self._state.building = False

    def _publish(self, data: bytes) -> dict[str, Any]:
        """Keep the bytes and offer them; return what counts, which may be another builder's."""
        wanted, rank = self._wanted, self._state.rank
        kept = self._kept = wanted.store.write(wanted.name, data, required=wanted.required)
        self._clock.lap("write")
        done = {"digest": digest_of(data), "size": len(data), "by": rank, "node": self._node}
        first = self._client.create(f"{self._topic}/done", {**done, "built": True})
        event = {"topic": wanted.topic, "digest": done["digest"], "kept": kept}
        self._state.journal.event("built" if wanted.store.keeps else "captured", **event)
        return first


def is_machines(error: BaseException) -> bool:
    """Return whether an error is this machine's trouble: its disk, memory or compiler."""
    names = {kind.__name__ for kind in type(error).__mro__}
    machines = (OSError, MemoryError, ToolchainError)
    return isinstance(error, machines) or "InvalidCxxCompiler" in names


def _obtained(
    wanted: Wanted,
    data: bytes,
    digest: str,
    role: str,
    by: int | None,
    kept: bool,
    clock: Clock,
) -> Obtained:
    path = wanted.store.where_of(wanted.name) if kept else None
    return Obtained(data, digest, role, by, clock.done(), path)
