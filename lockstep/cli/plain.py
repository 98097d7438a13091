"""The command's door, and the verbs that need no package: the standard library alone runs them.

So a file can be looked at and verified where there is no torch. All other verbs are in
`lockstep.cli.app`, which is imported for them alone.
"""

from __future__ import annotations

import argparse
import inspect
import os
import re
import select
import sys
from collections.abc import Callable, Sequence

from lockstep.cli.diff import diff
from lockstep.cli.keygen import keygen
from lockstep.cli.show import show
from lockstep.cli.verify import verify
from lockstep.errors import LockstepError, UsageError

OK, FOUND, MISUSED, INTERRUPTED, UNREAD = 0, 1, 2, 130, 141
STDOUT = 1

PLAIN: dict[str, Callable[..., int]] = {
    "show": show,
    "diff": diff,
    "verify": verify,
    "keygen": keygen,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb.

    Args:
        argv: the words after `lockstep`; by default those of this process.

    Returns:
        The exit code. A wrong flag leaves by `SystemExit(2)`, as argparse does.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if words and words[0] in PLAIN:
        verb = words[0]
        return outcome(lambda: _called(verb, PLAIN[verb], words[1:]))
    from lockstep.cli.app import run

    return outcome(lambda: run(words))


def outcome(call: Callable[[], int]) -> int:
    """Return a verb's exit code; what is wrong is told on stderr, without a traceback."""
    try:
        code = call()
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        if not _unread():  # of a socket, say
            raise
        return UNREAD
    except UsageError as error:
        print(error, file=sys.stderr)
        return MISUSED
    except LockstepError as error:
        print(error, file=sys.stderr)
        return FOUND
    except KeyboardInterrupt:
        return INTERRUPTED


def _unread() -> bool:
    """Whether nobody reads this process' output any more, as of `lockstep show FILE | head`.

    Python would say so once more as it ends, so what is left goes nowhere.
    """
    poll = select.poll()
    poll.register(STDOUT, 0)
    gone = any(event & select.POLLERR for _, event in poll.poll(0))
    if gone:
        os.dup2(os.open(os.devnull, os.O_WRONLY), STDOUT)
    return gone


def _called(verb: str, function: Callable[..., int], words: list[str]) -> int:
    """Call a verb with what its words say: files without a flag, all else by name."""
    parser = argparse.ArgumentParser(
        prog=f"lockstep {verb}",
        description=inspect.cleandoc(function.__doc__ or "").partition("\n\nArgs:")[0],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    told = dict(re.findall(r"^        (\w+): (.*(?:\n {12}.*)*)", function.__doc__ or "", re.M))
    parameters = inspect.signature(function, eval_str=True).parameters
    for name, parameter in parameters.items():
        text = re.sub(r"\s+", " ", told.get(name, ""))
        if parameter.kind is parameter.POSITIONAL_ONLY:
            parser.add_argument(name, metavar=name.upper(), type=parameter.annotation, help=text)
        else:
            flags, default = ["--" + name.replace("_", "-")], parameter.default
            if default is False:
                parser.add_argument(*flags, dest=name, action="store_true", help=text)
                continue
            flags += ["-o"] if name == "out" else []
            parser.add_argument(
                *flags, dest=name, type=type(default), default=default, metavar="", help=text
            )
    given = vars(parser.parse_args(words))
    files = [given.pop(n) for n, p in parameters.items() if p.kind is p.POSITIONAL_ONLY]
    return function(*files, **given)
