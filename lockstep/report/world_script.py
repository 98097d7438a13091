"""One rank of `lockstep check`: runs the script, writes what it captured, leaves.

python -m lockstep.report.world_script FOLDER CALLS SCRIPT [ARGS], under torchrun.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

from lockstep import _compat
from lockstep.report.capture_check import Enough
from lockstep.report.capture_script import own_part
from lockstep.report.world_check import LIVE, Live, WorldCheck
from lockstep.run.edited import texts_from
from lockstep.run.modes import calls_go_to
from lockstep.run.script import run_rank

_TOGETHER_S = 30.0  # for the others to come as far, before this rank's connections are closed


def main(folder: str, calls: str, script: str, *arguments: str) -> int:
    """Run the script and write a JSON object to FOLDER; see `report.check_world`.

    Returns:
        The exit code: 1 ends the other ranks too.
    """
    rank = int(os.environ["RANK"])
    live = Path(folder) / LIVE
    told = json.loads(live.read_text()) if live.exists() else {}
    check = WorldCheck(Path(folder), rank, int(calls), Live(**told))
    failed = None
    try:
        with calls_go_to(check):
            run_rank(Path(script), arguments, texts_from(os.environ))
    except Enough:
        pass
    except SystemExit as left:
        failed = None if left.code in (None, 0) else f"SystemExit: {left.code}"
    except BaseException as error:
        failed = "".join(traceback.format_exception(own_part(error, script)))
    found = {
        "shipped": [asdict(part) for part in check.shipped.values()],
        "not_called": check.not_called(),
        "failed": failed,
    }
    (Path(folder) / f"{rank}.json").write_text(json.dumps(found))
    if failed is None:
        leave_together(rank)
    return 0 if failed is None else 1


def leave_together(rank: int) -> None:
    """Wait, for some seconds at most, until every rank has come to its end."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return
    store = _compat.default_store()
    store.set(f"lockstep check left {rank}", "")
    names = [f"lockstep check left {other}" for other in range(dist.get_world_size())]
    with contextlib.suppress(dist.DistError):  # another rank failed, and says so itself
        store.wait(names, timedelta(seconds=_TOGETHER_S))


if __name__ == "__main__":
    code = main(*sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # whatever the script has started need not end in order: it was left midway
