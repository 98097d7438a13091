"""`lockstep train`: a config is checked, then trained on the ranks of this machine, or as one."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import tyro

from lockstep.errors import UsageError


def train(
    config: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="CONFIG")],
    /,
    nproc_per_node: int = 1,
    check: bool = False,
) -> int:
    """Train a model by a config: a function that returns a TrainConfig, such as llama3:debug.

    The config is checked, then the ranks are started; under torchrun the command is a rank itself.
    Every value of a config is a flag, such as --optimizer.lr 3e-4: lockstep train CONFIG --help
    lists them. Exit codes: 0 done, 1 failed, 2 the config cannot be meant, 3 the loss went wrong,
    75 left after a signal, saved.

    Args:
        config: module:function; a module without a dot is one of lockstep.configs first.
        nproc_per_node: ranks that are started on this machine.
        check: judge the gradients first, on a shrunken twin of the config.
    """
    return train_by([config, "--nproc-per-node", str(nproc_per_node), *["--check"] * check])


def train_by(words: Sequence[str]) -> int:
    """Do what the words after `lockstep train` say, the config's name first."""
    world, rank = int(os.environ.get("WORLD_SIZE", "0")), int(os.environ.get("RANK", "0"))
    from lockstep.configs import find
    from lockstep.trainer.codes import FAILED, MISUSED
    from lockstep.trainer.validate import validated
    from lockstep.trainer.words import parsed

    try:
        asked = parsed(words[0], find(words[0]), words[1:])
        ranks = world or asked.nproc_per_node
        if ranks < 1:
            raise UsageError(f"--nproc-per-node {ranks} is less than 1")
        resume = validated(asked.config, ranks)
    except UsageError:
        if rank == 0:
            raise
        return MISUSED  # rank 0 says why
    if world:
        from lockstep.trainer.loop import train

        try:
            return train(asked.config, resume, world)
        except UsageError as error:  # of what it met on its way: ranks had been started
            print(error, file=sys.stderr)
            return FAILED
    if asked.check:
        from lockstep.trainer.twin import check_twin

        report = check_twin(asked.config, asked.config.mesh.sizes(ranks))
        print(report, file=sys.stderr)
        if not report.ok:
            return FAILED
    from lockstep.trainer.launch import launch

    return launch(words, ranks)
