"""Ranks on this machine under torchrun's agent; a signal is passed on to them once."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from lockstep.report.job import children
from lockstep.trainer.codes import DIVERGED, DONE, FAILED, LEFT, MISUSED

_OWN = (MISUSED, DIVERGED, LEFT)
_ENDED_BY_AGENT = (-signal.SIGTERM, -signal.SIGKILL)
_ASKING = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


def launch(words: Sequence[str], ranks: int) -> int:
    """Run `lockstep train` on so many ranks, and return the command's exit code.

    Args:
        words: those after `lockstep train`.
        ranks: how many processes.
    """
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    os.environ.setdefault("OMP_NUM_THREADS", "1" if ranks > 1 else str(os.cpu_count() or 1))
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=ranks,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",
        max_restarts=0,
        signals_to_handle="SIGHUP,SIGQUIT",
    )
    with _passing_signals_on():
        try:
            elastic_launch(config, sys.executable)("-m", "lockstep", "train", *words)
        except ChildFailedError as error:
            return _code(error.failures)
    return DONE


def _code(failures: dict[int, Any]) -> int:
    """The command's exit code, by those of the ranks that failed first."""
    codes = {rank: failure.exitcode for rank, failure in failures.items()}
    own = [code for code in codes.values() if code in _OWN]
    if own and all(code in (*_OWN, *_ENDED_BY_AGENT) for code in codes.values()):
        return own[0]
    first = {rank: code for rank, code in codes.items() if code != -signal.SIGTERM} or codes
    for rank, code in sorted(first.items()):
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"failed, exit {code}"
        print(f"lockstep train: rank {rank} {how}; its journal tells more", file=sys.stderr)
    return FAILED


@contextlib.contextmanager
def _passing_signals_on() -> Iterator[None]:
    """While inside, the first signal asks the ranks to save and leave; a second one ends them."""
    heard: list[int] = []
    owner = os.getpid()

    def pass_on(number: int, _frame: object) -> None:
        heard.append(number)
        kind = signal.SIGTERM if len(heard) == 1 else signal.SIGKILL
        if len(heard) == 1:
            # What the agent says of ranks that leave as they were asked to would alarm for nothing.
            logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
        for pid in children(owner):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, kind)

    before = {number: signal.signal(number, pass_on) for number in _ASKING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
