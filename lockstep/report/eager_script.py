"""One rank of `lockstep check --eager`: runs the script, compares its steps, writes it, leaves.

python -m lockstep.report.eager_script FOLDER CALLS SCRIPT [ARGS], under torchrun.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lockstep import _compat
from lockstep.errors import LockstepError
from lockstep.report.capture_check import Enough
from lockstep.report.capture_script import own_part
from lockstep.report.world_script import leave_together
from lockstep.run.compared import compare
from lockstep.run.modes import calls_go_to
from lockstep.run.script import run_rank
from lockstep.run.step import CompiledStep, refuse_nested, steps_made


class EagerCheck:
    """Stands in for compiled steps while a script runs; see `modes.calls_go_to`.

    A step is compared at its first call, and runs eagerly: the script goes on as it would.

    Args:
        calls: after so many calls of steps the script is left, whatever was not called yet.
    """

    def __init__(self, calls: int) -> None:
        self.steps: dict[str, dict[str, Any]] = {}
        self.refused: dict[str, str] = {}
        self._left, self._inside, self._running = calls, set[str](), False

    def __call__(self, step: CompiledStep) -> Callable[..., Any]:
        """What runs in place of a step."""

        def run(*args: Any, **kwargs: Any) -> Any:
            if self._running or _compat.is_tracing():
                self._inside.add(step.name)
                refuse_nested(step)
                return step.step.function(*args, **kwargs)
            self._running = True
            try:
                if step.name not in self.steps:
                    self._compare(step, args, kwargs)
                self._left -= 1
                if self._left <= 0 or not self.not_called():
                    raise Enough
                return step.step.function(*args, **kwargs)
            finally:
                self._running = False

        return run

    def not_called(self) -> list[str]:
        """The names of the steps that exist and were not called yet."""
        called = {*self.steps, *self.refused, *self._inside}
        return [name for name in steps_made() if name not in called]

    def _compare(self, step: CompiledStep, args: Any, kwargs: Any) -> None:
        """Compare a step; a refusal ends the job, since every rank has heard of it as a fault."""
        try:
            self.steps[step.name] = compare(step, step.step.call(args, kwargs))
        except LockstepError as error:
            self.refused[step.name] = str(error)
            raise Enough from error


def main(folder: str, calls: str, script: str, *arguments: str) -> int:
    """Run the script and write a JSON object to FOLDER; see `report.eager.Compared`.

    Returns:
        The exit code: 1 ends the other ranks too.
    """
    rank, check, failed = int(os.environ["RANK"]), EagerCheck(int(calls)), ""
    try:
        with calls_go_to(check):
            run_rank(Path(script), arguments)
    except Enough:
        pass
    except SystemExit as left:
        failed = "" if left.code in (None, 0) else f"SystemExit: {left.code}"
    except BaseException as error:
        failed = "".join(traceback.format_exception(own_part(error, script)))
    found = {"steps": check.steps, "refused": check.refused, "failed": failed}
    text = json.dumps({**found, "not_called": check.not_called()})
    (Path(folder) / f"{rank}.json").write_text(text)
    if failed:
        return 1
    leave_together(rank)
    return 0


if __name__ == "__main__":
    code = main(*sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # whatever the script has started need not end in order: it was left midway
