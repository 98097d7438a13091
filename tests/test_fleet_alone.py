"""A world of one: no store, no thread, no waiting; and what the verbs cost in a larger one."""

from __future__ import annotations

import sys
import threading
import time

import pytest

from lockstep.errors import FleetError, StoreError
from lockstep.fleet import ArtifactStore, Fleet, Timing, install_hooks


def obtain(fleet: Fleet, store: ArtifactStore, data: bytes = b"bytes", **more):
    stages: list[str] = []

    def build(stage):
        stage("capture")
        stages.append("capture")
        return data

    return fleet.obtain("step/v0", {"x": 1}, "a.lockstep", store, build, **more), stages


def test_builds_then_loads(tmp_path):
    fleet, store = Fleet(None, 0, 1, "run/0"), ArtifactStore(tmp_path / "store")
    built, stages = obtain(fleet, store)
    assert (built.role, built.by, built.data, stages) == ("built", 0, b"bytes", ["capture"])
    assert built.path == str(tmp_path / "store/a.lockstep")
    assert set(built.seconds) == {"read", "build", "write", "total"}
    loaded, stages = obtain(fleet, store)
    assert (loaded.role, loaded.by, loaded.digest, stages) == ("loaded", None, built.digest, [])
    fleet.close()


def test_starts_no_thread_and_leaves_the_hooks_alone():
    before, hook = threading.active_count(), sys.excepthook
    fleet = Fleet(None, 0, 1, "run/0")
    install_hooks(fleet)
    fleet.call("step", "v0", 1)
    assert threading.active_count() == before and sys.excepthook is hook
    with pytest.raises(ValueError, match="as it was"), fleet.guard("running"):
        raise ValueError("as it was")
    fleet.close()


def test_a_verifier_that_refuses_is_not_caught(tmp_path):
    fleet, store = Fleet(None, 0, 1, "run/0"), ArtifactStore(tmp_path / "store")
    obtain(fleet, store)

    def refuse(data: bytes) -> None:
        raise StoreError(f"{len(data)} bytes are not it")

    with pytest.raises(StoreError, match="5 bytes are not it"):
        obtain(fleet, store, verify=refuse)


def test_a_larger_world_needs_a_store():
    with pytest.raises(FleetError, match="needs a rendezvous store"):
        Fleet(None, 0, 2, "run/0")


def test_the_verbs_of_every_call_cost_microseconds():
    from torch.distributed import HashStore

    fleet = Fleet(HashStore(), 0, 2, "run/0", timing=Timing(beat=0.05))
    try:
        begin = time.perf_counter()
        for number in range(10_000):
            fleet.call("step", "v0", number)
            with fleet.guard("running"):
                pass
        assert (time.perf_counter() - begin) / 10_000 < 50e-6  # 2 us when nothing else runs
    finally:
        fleet.close()
    assert not any(thread.name == "lockstep-watch" for thread in threading.enumerate())
