"""The `lockstep` command: one function a verb, whose signature is its flags.

Exit codes, of every verb: 0 all is well, 1 what was asked about is not (a finding, a damaged
artifact, a run that failed), 2 it could not be asked (a wrong flag, a missing file).
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Sequence

from lockstep.cli.check import check
from lockstep.cli.compare import compare
from lockstep.cli.explain import explain
from lockstep.cli.show import show
from lockstep.errors import LockstepError, UsageError

OK, FOUND, MISUSED, INTERRUPTED = 0, 1, 2, 130

VERBS: dict[str, Callable[..., int]] = {
    "show": show,
    "check": check,
    "explain": explain,
    "compare": compare,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb.

    Args:
        argv: the words after `lockstep`; by default those of this process.

    Returns:
        The exit code. A wrong flag leaves by `SystemExit(2)`, as argparse does.
    """
    import tyro

    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `lockstep show FILE | head` ends in silence
    try:
        return tyro.extras.subcommand_cli_from_dict(
            VERBS,
            prog="lockstep",
            description="One rank compiles a training step, every rank runs it.",
            args=sys.argv[1:] if argv is None else argv,
            config=(tyro.conf.FlagCreatePairsOff,),
        )
    except UsageError as error:
        print(error, file=sys.stderr)
        return MISUSED
    except LockstepError as error:
        print(error, file=sys.stderr)
        return FOUND
    except KeyboardInterrupt:
        return INTERRUPTED
