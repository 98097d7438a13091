"""One rank of a job that is not there: runs the user's script until its steps are made."""

from __future__ import annotations

import contextlib
import os
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lockstep.ahead.files import Written
from lockstep.ahead.line import Line
from lockstep.ahead.maker import BUILDS, Broken, Enough, Maker, Refused, Task
from lockstep.ahead.unvalued import Values, objects_alone, unvalued
from lockstep.build.sources import own_folder
from lockstep.capture.origin import is_user_file, line_of
from lockstep.errors import LockstepError
from lockstep.report.capture_script import own_part
from lockstep.run.modes import calls_go_to
from lockstep.run.script import run_script
from lockstep.spmd.claims import in_phase

_CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")  # else below the temporary folder


def play(script: Path, arguments: Sequence[str], task: Task, line: Line) -> None:
    """Run the script, and tell how it ended.

    The last event is "ended": which steps were not reached, and "failed", the traceback of a
    script that failed before it came to all of them; or "refused", why a step cannot be built.
    """
    maker = Maker(task, line)
    values: Values | None = None
    ended: dict[str, Any] = {"failed": "", "refused": ""}
    try:
        with _world(task, maker, line) as values, calls_go_to(maker), in_phase("build"):
            run_script(script, arguments, task.world, task.rank)
    except Enough:
        pass
    except Refused as error:
        ended |= {"refused": str(error), "machines": error.machines}
    except SystemExit as left:
        if left.code not in (None, 0):
            ended["failed"] = f"SystemExit: {left.code}"
    except LockstepError as error:
        ended |= {"failed": str(error), "own": True}
    except BaseException as raised:
        cause = raised.__cause__ if isinstance(raised, Broken) else None
        ended |= {"failed": _told(cause or raised, script), "where": _line(cause or raised)}
    if task.role == BUILDS and values is not None and values.read_at:
        lines = ", ".join(list(values.read_at)[:4])
        line.tell("note", text=f"values that no step has computed were read as nan or 0: {lines}")
    line.tell("ended", not_reached=maker.not_reached(), made=maker.made, **ended)


@contextlib.contextmanager
def _world(task: Task, maker: Maker, line: Line) -> Iterator[Values | None]:
    def tell(text: str) -> None:
        if task.role == BUILDS:
            line.tell("note", text=text)

    def writes(path: str) -> None:
        tell(f"warning: the script writes {path}")

    caches = [os.environ[name] for name in _CACHES if name in os.environ]
    written = Written(writes, [task.folder, own_folder(), *caches])
    try:
        with objects_alone(), contextlib.ExitStack() as stack:
            values = None
            if not task.real:
                values = stack.enter_context(unvalued(lambda: maker.stepped, tell))
            yield values
    finally:
        written.on = False


def _told(error: BaseException, script: Path) -> str:
    return "".join(traceback.format_exception(own_part(error, str(script))))


def _line(error: BaseException) -> str:
    """The innermost line of the user's that the error came through."""
    trace, found = error.__traceback__, ""
    while trace is not None:
        if is_user_file(trace.tb_frame.f_code.co_filename):
            found = f"{line_of(trace.tb_frame).rpartition(':')[0]}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found
