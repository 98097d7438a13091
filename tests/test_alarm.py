"""The alarm rings for a trace, a compiler's import and a process, in this thread alone."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading

import pytest
import torch

from lockstep.errors import AlarmError
from lockstep.run.alarm import alarm


def test_quiet_work_is_left_alone() -> None:
    with alarm("adding"):
        assert int(torch.ones(3).sum()) == 3
        exec(compile("x = 1", "<quiet>", "exec"), {})
    subprocess.run([sys.executable, "-c", ""], check=True)


@pytest.mark.parametrize(
    "start", [lambda: subprocess.run(["true"], check=True), lambda: os.system("true")]
)
def test_a_process_rings(start: object) -> None:
    with pytest.raises(AlarmError) as caught, alarm("loading step.lockstep"):
        start()  # type: ignore[operator]
    first, second, *_ = str(caught.value).splitlines()
    assert first == "LS220: loading step.lockstep: something was traced or compiled"
    assert second.startswith("  got  start of a process: ")


def test_an_import_of_a_compiler_rings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch._inductor", raising=False)
    with pytest.raises(AlarmError, match=r"got  import of torch\._inductor"), alarm("loading"):
        import torch._inductor  # noqa: F401


def test_a_trace_rings() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    make_fx(lambda x: x + 1)(torch.ones(1))  # imports what it needs, which would ring first
    with pytest.raises(AlarmError, match="a traced graph's code"), alarm("loading"):
        make_fx(lambda x: x + 1)(torch.ones(1))


def test_a_swallowed_ring_is_told_at_the_end() -> None:
    with pytest.raises(AlarmError, match="start of a process"), alarm("loading"):
        with contextlib.suppress(AlarmError):
            os.system("true")


def test_the_block_s_own_error_wins_and_the_alarm_goes_off_again() -> None:
    with pytest.raises(KeyError), alarm("loading"):
        raise KeyError
    os.system("true")
    with alarm("outer"):
        with pytest.raises(AlarmError, match="inner"), alarm("inner"):
            os.system("true")


def test_other_threads_are_left_alone() -> None:
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(os.system("true")))
    with alarm("loading"):
        thread.start()
        thread.join(10)
    assert codes == [0]
