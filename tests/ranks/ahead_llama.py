"""One rank of `python -m tests.ahead`: runs a script as torchrun does, and notes what its step is.

python -m tests.ranks.ahead_llama code|losses SCRIPT [ARGS]: the graph and the code that this rank
makes for itself, or the bits of each loss of the job.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lockstep.build.backends import code_of
from lockstep.build.likeness import digest_of, rows_of
from lockstep.capture.capture import capture_call
from lockstep.run.admit import Build, noting
from lockstep.run.modes import calls_go_to
from lockstep.run.passing import passed
from lockstep.run.script import run_rank
from lockstep.run.session import session
from lockstep.run.step import CompiledStep
from tests.ranks.launch import Here


class Left(BaseException):
    """All that is asked for is known."""


def code(here: Here, script: Path, arguments: list[str]) -> None:
    """Capture the first step that is called, on this rank's own tensors, and generate its code."""

    def instead(step: CompiledStep) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            call = step.step.call(args, kwargs)
            state = step.bind(call).state
            checking = noting(step.options)
            graph = capture_call(step.step, call, state, checking)
            build = Build(step.step, call, step.bind(call), {}, step.options, session())
            after = passed(build, graph, checking).graph
            text, sources = code_of(after, step.options.backend)
            here.result({"graph": digest_of(rows_of(graph)), "text": text, "sources": sources})
            raise Left

        return run

    try:
        with calls_go_to(instead):
            run_rank(script, arguments)
    except Left:
        sys.stdout.flush()
        os._exit(0)


def losses(here: Here, script: Path, arguments: list[str]) -> None:
    """Run the script to its end, and keep the bits of what its step returned."""
    seen: list[str] = []
    original = CompiledStep.__call__

    def noted(step: CompiledStep, *args: Any, **kwargs: Any) -> Any:
        loss = original(step, *args, **kwargs)
        seen.append(loss.item().hex())
        return loss

    CompiledStep.__call__ = noted  # type: ignore[method-assign]
    run_rank(script, arguments)
    here.result(seen)


if __name__ == "__main__":
    what, path, *rest = sys.argv[1:]
    {"code": code, "losses": losses}[what](Here(), Path(path), rest)
