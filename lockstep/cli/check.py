"""`lockstep check`: what stands between a script's steps and one program for all ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from lockstep.cli.files import readable
from lockstep.errors import UsageError


def check(
    script: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="SCRIPT")],
    arguments: Annotated[
        tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="-- ARGS")
    ] = (),
    /,
    capture: bool = False,
    world_size: int = 1,
    calls: int = 50,
    timeout: float = 600.0,
) -> int:
    """List what keeps a script's steps from being captured, each at its line.

    Runs the script in one process, with nothing compiled, until each step was called once.

    Args:
        script: the training script.
        arguments: its own arguments, after --.
        capture: look at the capture alone; needed, since it is all that is checked yet.
        world_size: ranks that the script sees; the others need not be there.
        calls: calls of steps after which the script is left at the latest.
        timeout: seconds after which it is stopped.
    """
    path = readable(script, "a training script")
    if not capture:
        raise UsageError(
            "lockstep check needs --capture", want="--capture: it is all that is checked yet"
        )
    if world_size < 1 or calls < 1 or timeout <= 0:
        raise UsageError(
            f"--world-size {world_size} --calls {calls} --timeout {timeout:g}",
            want="1 rank, 1 call, 1 s, or more",
        )
    from lockstep.report.check import check_capture, lines

    checked = check_capture(path, arguments, world=world_size, calls=calls, limit_s=timeout)
    for line in lines(checked):
        print(line)
    return 1 if checked.obstacles else 0
