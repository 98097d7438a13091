"""The child of `lockstep check --capture`: runs the script, writes what its captures gave, leaves.

python -m lockstep.report.capture_script capture|two-batches RESULT WORLD CALLS SCRIPT [ARGS]
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from dataclasses import asdict
from pathlib import Path

from lockstep.report.capture_check import CaptureCheck, Enough
from lockstep.report.two_batches import TwoBatches
from lockstep.run.modes import calls_go_to
from lockstep.run.script import run_script


def main(what: str, result: str, world: str, calls: str, script: str, *arguments: str) -> None:
    """Run the script and write a JSON object to `result`; see `report.check.Checked`."""
    check = {"capture": CaptureCheck, "two-batches": TwoBatches}[what](int(calls))
    failed = None
    try:
        with calls_go_to(check):
            run_script(Path(script), arguments, int(world))
    except Enough:
        pass
    except SystemExit as left:
        failed = None if left.code in (None, 0) else f"SystemExit: {left.code}"
    except BaseException as error:
        failed = "".join(traceback.format_exception(own_part(error, script)))
    found = {
        "steps": [asdict(step) for step in check.captured.values()],
        "not_called": check.not_called(),
        "failed": failed,
    }
    Path(result).write_text(json.dumps(found))


def own_part(error: BaseException, script: str) -> BaseException:
    """The error with the traceback from the script on: what is before it says nothing."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != script:
        trace = trace.tb_next
    return error.with_traceback(trace or error.__traceback__)


if __name__ == "__main__":
    main(*sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # whatever the script has started need not end in order: it was left in the middle
