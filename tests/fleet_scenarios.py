"""What the ranks of the fleet's test jobs do; each function runs on every rank of one job."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from dataclasses import asdict
from typing import Any

from lockstep.fleet import ArtifactStore
from lockstep.fleet.scope import Scope
from tests.fleet_jobs import Rank

CONTRACT = {"inputs": {"tokens": "i64[8, 16]"}, "mesh": "dp=2", "source": "a3f9"}


def _obtain(me: Rank, build: Any = None, contract: Any = None, **more: Any) -> Any:
    kept = ArtifactStore(me.folder / me.options.get("store", "store"), rank=me.rank)

    def default(stage: Any) -> bytes:
        stage("capture")
        stage("lower")
        return b"the artifact" * me.options.get("times", 1)

    topic = more.pop("topic", "train_step/v0")
    name = more.pop("name", "step.lockstep")
    return me.fleet.obtain(topic, contract or CONTRACT, name, kept, build or default, **more)


def _leave(me: Rank, got: Any) -> None:
    me.result({**asdict(got), "data": len(got.data)})


def plain(me: Rank) -> None:
    """All is well."""
    _leave(me, _obtain(me))


def own_stores(me: Rank) -> None:
    """Each node has a directory of its own."""
    me.options["store"] = f"store{me.fleet.node}"
    _leave(me, _obtain(me))


def lost_by_its_url(me: Rank) -> None:
    """Each process has a memory of its own: what one puts below the URL, no other one finds."""
    os.environ["LOCKSTEP_COPIES"] = str(me.folder / f"copies{me.fleet.node}")
    kept = ArtifactStore("memory://bucket", rank=me.rank)
    _leave(me, me.fleet.obtain("step/v0", {}, "a.lockstep", kept, lambda stage: b"bytes" * 1000))


def odd_contract(me: Rank) -> None:
    """The last rank brings another batch."""
    contract = {**CONTRACT, "inputs": {"tokens": "i64[5, 16]"}}
    _obtain(me, contract=contract if me.rank == me.world - 1 else None)


def builder_raises(me: Rank) -> None:
    """The user's code fails in the builder."""

    def build(stage: Any) -> bytes:
        stage("capture")
        me.strike()
        raise ValueError("no such layer: 7")

    _obtain(me, build)


def builder_struck(me: Rank) -> None:
    """Rank 0 is killed or stopped while it builds; another may build."""

    def build(stage: Any) -> bytes:
        stage("lower")
        if me.rank == 0:
            me.strike()
            os.kill(os.getpid(), getattr(signal, me.options["signal"]))
        return b"the artifact"

    _leave(me, _obtain(me, build))


def builder_wakes(me: Rank) -> None:
    """Rank 0 is stopped while it builds, loses the build, and wakes after another has built."""
    pid = me.folder / "builder"

    def build(stage: Any) -> bytes:
        stage("lower")
        if me.rank == 0:
            pid.write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGSTOP)
            while not me.fleet._main.has("vote/1/done"):
                time.sleep(0.02)
            return b"too late"
        threading.Timer(0.3, os.kill, [int(pid.read_text()), signal.SIGCONT]).start()
        return b"the artifact"

    _leave(me, _obtain(me, build))


def builder_hangs(me: Rank) -> None:
    """Rank 0's compiler hangs while its heart beats; the waiters' limit ends it."""

    def build(stage: Any) -> bytes:
        stage("lower")
        me.strike()
        time.sleep(60)
        return b""

    _obtain(me, build)


def takeover_is_slow(me: Rank) -> None:
    """Rank 0 is stopped, and whoever takes over builds on after rank 0 is told to be dead."""

    def build(stage: Any) -> bytes:
        stage("capture")
        if me.rank == 0:
            me.strike()
            os.kill(os.getpid(), signal.SIGSTOP)
        me.fleet.state.faulted.wait(20)
        time.sleep(me.options["more"])
        stage("lower")
        return b"the artifact"

    _leave(me, _obtain(me, build))


def store_stops(me: Rank) -> None:
    """The store's host is stopped; then the job is done, or rank 1 fails, with nobody waiting."""
    _obtain(me)
    (me.folder / f"has{me.rank}").touch()
    while not all((me.folder / f"has{rank}").exists() for rank in range(me.world)):
        time.sleep(0.02)
    time.sleep(0.5)
    if me.rank == 0:
        me.strike()
        os.kill(me.server, signal.SIGSTOP)
    time.sleep(0.5)
    if me.options.get("fails") and me.rank == 1:
        raise ValueError("bad batch")


def toolchains(me: Rank) -> None:
    """Ranks would build with other compilers, and bring other batches; one has no compiler."""
    compilers = me.options["compilers"]
    contract = {**CONTRACT, "inputs": {"tokens": f"i64[{me.options['rows'][me.rank]}, 16]"}}
    _leave(me, _obtain(me, contract=contract, toolchain={"compiler": compilers[me.rank]}))


def roles(me: Rank) -> None:
    """Two roles of two ranks build two programs at the same time; role 1 votes once more."""
    at = me.rank // 2
    scope = Scope(f"pp={at}", (2 * at, 2 * at + 1))

    def build(stage: Any) -> bytes:
        stage("lower")
        if me.options.get("fails") and at == 1:
            me.strike()
            raise ValueError("no such stage")
        return b"program %d" % at

    contract = {**CONTRACT, "role": at, "rank": me.rank if me.options.get("odd") else 0}
    same = {"contract": contract, "scope": scope}
    got = _obtain(me, build, topic=f"stage{at}/v0", name=f"{at}.lockstep", **same)
    for number in range(1, 4):
        me.fleet.call(f"stage{at}", "v0", number, scope)
    if at == 1:
        _obtain(me, build, topic="stage1/v1", name="1b.lockstep", **same)
    time.sleep(0.5)  # the watchers compare the calls
    me.fleet.state.raise_fault()
    _leave(me, got)


def builder_full(me: Rank) -> None:
    """Rank 0's machine cannot build; or no machine can."""

    def build(stage: Any) -> bytes:
        stage(me.options.get("stage", "lower"))
        if me.rank == 0 or me.options.get("all"):
            raise OSError(28, "No space left on device")
        return b"the artifact"

    _leave(me, _obtain(me, build))


def swallows(me: Rank) -> None:
    """Rank 1 catches its own exception and sleeps, the others are in a collective."""
    _group(me)
    _obtain(me)
    with contextlib.suppress(ValueError), me.fleet.guard("running train_step"):
        if me.rank == 1:
            me.strike()
            raise ValueError("bad batch")
        _all_reduce()
    time.sleep(60)


def lone_vote(me: Rank) -> None:
    """Rank 1 alone meets another batch shape at call 3."""
    _group(me)
    _obtain(me)
    for number in range(1, 6):
        if me.rank == 1 and number == 3:
            me.strike()
            contract = {**CONTRACT, "inputs": {"tokens": "i64[3, 16]"}}
            _obtain(me, contract=contract, topic="train_step/v1", call=3)
        me.fleet.call("train_step", "v0", number)
        with me.fleet.guard("running train_step"):
            _all_reduce()


def known_alone(me: Rank) -> None:
    """All but rank 0 meet another batch shape at call 2."""
    _obtain(me)
    me.fleet.call("train_step", "v0", 1)
    if me.rank == 0:
        me.fleet.call("train_step", "v0", 2)
        with me.fleet.guard("running train_step"):
            me.fleet.state.faulted.wait(20)
        me.fleet.state.raise_fault()
    contract = {**CONTRACT, "inputs": {"tokens": "i64[3, 16]"}}
    _obtain(me, contract=contract, topic="train_step/v1", call=2)


def different_steps(me: Rank) -> None:
    """Rank 1 calls another step first."""
    _obtain(me, topic="train_step/v0" if me.rank != 1 else "eval_step/v0")


def different_calls(me: Rank) -> None:
    """Both steps are known; rank 1 calls another one than the rest."""
    _obtain(me)
    _obtain(me, topic="eval_step/v0", name="eval.lockstep")
    me.fleet.call("eval_step" if me.rank == 1 else "train_step", "v0", 1)
    with me.fleet.guard("running it"):
        me.fleet.state.faulted.wait(20)
    me.fleet.state.raise_fault()


def store_struck(me: Rank) -> None:
    """The store's host is stopped or killed while ranks wait for the builder."""

    def build(stage: Any) -> bytes:
        stage("lower")
        me.strike()
        os.kill(me.server, getattr(signal, me.options["signal"]))
        time.sleep(0.5)
        return b""

    _obtain(me, build)


def leaves_early(me: Rank) -> None:
    """Rank 1 ends in peace while the others still vote."""
    if me.rank != 1:
        _obtain(me)


def closes_store_first(me: Rank) -> None:
    """The store goes away after the work is done: no fault."""
    _leave(me, _obtain(me))
    if me.rank == 0:
        while not (me.folder / "result1").exists():
            time.sleep(0.02)
        os.kill(me.server, signal.SIGKILL)
    time.sleep(0.5)  # the watchers find out


def uncaught(me: Rank) -> None:
    """Rank 1 fails outside of any guarded region; rank 0 waits in a vote."""
    if me.rank == 1:
        me.strike()
        raise KeyError("learning_rate")
    _obtain(me)


def peer_killed(me: Rank) -> None:
    """Rank 1 is killed in a collective: the broken connection is the consequence."""
    _group(me)
    _obtain(me)
    if me.rank == 1:
        me.strike()
        os.kill(os.getpid(), signal.SIGKILL)
    with me.fleet.guard("running train_step"):
        _all_reduce()


def silent_rank(me: Rank) -> None:
    """The last rank is stopped before it votes."""
    if me.rank == me.world - 1:
        me.strike()
        os.kill(os.getpid(), signal.SIGSTOP)
    _obtain(me)


def damaged(me: Rank) -> None:
    """The store's bytes do not verify on one rank."""

    def verify(data: bytes) -> None:
        if me.rank == 1:
            raise ValueError(f"{len(data)} bytes are not an artifact")

    _obtain(me, verify=verify)


def required(me: Rank) -> None:
    """A store that must keep the artifact cannot."""
    _obtain(me, required=True)


def never_votes(me: Rank) -> None:
    """Rank 1 lives, and does something else."""
    if me.rank == 1:
        time.sleep(60)
    _obtain(me)


def watcher_breaks(me: Rank) -> None:
    """A bug in one rank's watcher is told as that rank's fault."""
    if me.rank == 1:
        me.fleet._watcher._look_at_next = lambda: 1 / 0
        time.sleep(5)
    _obtain(me)


def _group(me: Rank) -> None:
    import torch.distributed as dist

    store = dist.PrefixStore(f"{me.prefix}/group", me.store)
    dist.init_process_group("gloo", store=store, rank=me.rank, world_size=me.world)


def _all_reduce() -> None:
    import torch
    import torch.distributed as dist

    dist.all_reduce(torch.ones(4))


def tree(me: Rank) -> None:
    """Rank 0 holds an artifact and the others take it; rank 1 may spoil it for those below it."""
    from lockstep.fleet import wire
    from lockstep.fleet.client import Client
    from lockstep.fleet.peers import Artifact, Peers

    wire.CHUNK = 1 << 16
    data = bytes(range(256)) * 1024
    client, what = Client(me.store, me.prefix), Artifact(wire.digest_of(data), len(data))
    peers = Peers(client, "t", what, me.rank, me.rank, timing=me.fleet.state.timing)
    how = me.options.get("how", "")
    if me.rank == 1 and how:
        _spoil(how)
    if me.rank == 0:
        peers.offer(data)
    else:
        came = peers.fetch()
        assert came.data == data
        me.result(came.event())
        peers.offer(came.data)
    client.put(f"done/{me.rank}", True)
    for rank in range(me.world):
        while rank != 1 and not client.has(f"done/{rank}"):
            time.sleep(0.01)
    peers.close()


def _spoil(how: str) -> None:
    """Let this rank serve badly: be killed in the middle, flip a byte, send other bytes."""
    from lockstep.fleet import wire

    send = wire.Server._send

    def spoilt(self: Any, peer: Any, first: int) -> None:
        good = self._data
        if how == "kill":
            self._data = good[: 2 * wire.CHUNK]
            send(self, peer, first)
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "flip":  # on its way: what is sent before a chunk is the right one's digest
            for index in range(4):
                self._chunk(index)
        bad = bytearray(good)
        bad[3 * wire.CHUNK] ^= 1
        self._data = memoryview(bytes(bad))
        try:
            send(self, peer, first)
        finally:
            self._data = good  # who asks again gets the same

    wire.Server._send = spoilt  # type: ignore[method-assign]
