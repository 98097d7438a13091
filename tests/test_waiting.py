"""A wait's helper thread does not abort a process that ends while it leaves the store."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import sys, threading, time
from torch.distributed import TCPStore
from lockstep.fleet.client import Client
from lockstep.fleet.state import State
from lockstep.fleet.timing import Timing
from lockstep.fleet.waiting import Waits
from lockstep.journal import Journal

store = TCPStore("127.0.0.1", 0, 1, is_master=True)
main, blocked = Client(store, "test"), Client(store, "test")
waits = Waits(main, blocked, State(0, 2, 0, Timing(), Journal(None, 0)))
threading.Timer(0.5, lambda: Client(store, "test").put("key", 1)).start()
assert waits.wait_for("key", str, 30) == 1  # seen by the main thread's own look, or the helper's

sys.setswitchinterval(1000)  # a helper that leaves the store now stands before Python's lock
waits._block("late")
time.sleep(0.3)
main.put("late", 1)
end = time.monotonic() + 0.3
while time.monotonic() < end:
    pass
if sys.argv[1] == "ends":
    waits.end(10)

class Late:
    def __del__(self, sleep=time.sleep):
        sleep(0.3)  # the lock is free once more, while the interpreter ends

late = Late()
"""


def ended(way: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", SCRIPT, way]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_thread_that_leaves_the_store_is_waited_for() -> None:
    result = ended("ends")
    assert result.returncode == 0 and "terminate" not in result.stderr


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="Python holds such a thread itself")
def test_one_that_is_not_waited_for_aborts_the_process() -> None:
    result = ended("does not")
    assert result.returncode == -6
    assert "terminate called without an active exception" in result.stderr
