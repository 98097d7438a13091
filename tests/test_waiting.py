"""A wait's helper thread does not abort a process that ends while it leaves the store."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import os, sys, time
from torch.distributed import TCPStore
from lockstep.fleet.client import Client
from lockstep.fleet.state import State
from lockstep.fleet.timing import Timing
from lockstep.fleet.waiting import Waits
from lockstep.journal import Journal

store = TCPStore("127.0.0.1", 0, 1, is_master=True)
main, blocked, other = (Client(store, "test") for _ in range(3))
waits = Waits(main, blocked, State(0, 2, 0, Timing(), Journal(None, 0)))
waits._block("key")
time.sleep(0.3)
sys.setswitchinterval(1000)
if os.fork() == 0:
    time.sleep(0.2)
    other.put("key", 1)
    os._exit(0)
end = time.monotonic() + 1
while time.monotonic() < end:
    pass  # the helper leaves the store now, and stands before Python's lock
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


def test_one_that_is_not_waited_for_aborts_the_process() -> None:
    aborts = sys.version_info < (3, 14)  # from there on Python holds such a thread itself
    result = ended("does not")
    assert result.returncode == (-6 if aborts else 0)
    assert ("terminate called without an active exception" in result.stderr) is aborts
