"""The `lockstep` command: one function a verb, whose signature is its flags.

Exit codes, of every verb: 0 all is well, 1 what was asked about is not (a finding, a damaged
artifact, a run that failed), 2 it could not be asked (a wrong flag, a missing file).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tyro

from lockstep.cli.build import build
from lockstep.cli.check import check
from lockstep.cli.compare import compare
from lockstep.cli.doctor import doctor
from lockstep.cli.explain import explain
from lockstep.cli.explain_hang import explain_hang
from lockstep.cli.plain import PLAIN
from lockstep.cli.report import report
from lockstep.cli.store import store
from lockstep.cli.train import train, train_by
from lockstep.cli.watch import watch
from lockstep.cli.why_miss import why_miss

VERBS: dict[str, Callable[..., int]] = {
    **PLAIN,
    "check": check,
    "build": build,
    "explain": explain,
    "compare": compare,
    "report": report,
    "watch": watch,
    "explain-hang": explain_hang,
    "why-miss": why_miss,
    "store": store,
    "train": train,
    "doctor": doctor,
}


def run(words: Sequence[str]) -> int:
    """Run one verb, or print what verbs there are.

    Args:
        words: those after `lockstep`.
    """
    if words[0:1] == ["train"] and words[1:] and not words[1].startswith("-"):
        return train_by(words[1:])  # whose further flags are those of the config
    return tyro.extras.subcommand_cli_from_dict(
        VERBS,
        prog="lockstep",
        description="One rank compiles a training step, every rank runs it.",
        args=words,
        config=(tyro.conf.FlagCreatePairsOff,),
    )
