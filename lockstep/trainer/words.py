"""From the words after `lockstep train CONFIG` to a config, by tyro."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from lockstep.errors import UsageError
from lockstep.trainer.config import TrainConfig, flags

OWN = ("--nproc-per-node", "--check")


@dataclass(frozen=True)
class Asked:
    """What the command line asks for."""

    config: TrainConfig
    nproc_per_node: int
    check: bool


def parsed(name: str, base: TrainConfig, words: Sequence[str]) -> Asked:
    """Read the words after the config's name.

    Args:
        name: of the config, for the help.
        base: the config, whose values the words replace.

    Raises:
        UsageError: a flag that there is not, named with the nearest one that there is.

    Example:
        >>> from lockstep.configs import find
        >>> asked = parsed("x", find("llama3:debug"), ["--optimizer.lr", "3e-4", "--mesh.dp", "2"])
        >>> asked.config.optimizer.lr, asked.config.mesh.dp, asked.check
        (0.0003, 2, False)
    """
    known = [*OWN, *flags(), "--help", "-h"]
    for word in words:
        flag = word.partition("=")[0].replace("_", "-")
        if flag.startswith("--") and flag not in known:
            near = difflib.get_close_matches(flag, known, 1)
            meant = f"; did you mean {near[0]}?" if near else ""
            raise UsageError(f"{name} has no {flag}{meant}")

    def asked(
        nproc_per_node: int = 1,
        check: bool = False,
        *,
        config: Annotated[TrainConfig, tyro.conf.arg(name="")] = base,
    ) -> Asked:
        """Train, as this config says.

        Args:
            nproc_per_node: ranks that are started on this machine.
            check: judge the gradients first, on a shrunken twin of the config.
            config: what is trained, and how.
        """
        return Asked(config, nproc_per_node, check)

    return tyro.cli(
        asked,
        prog=f"lockstep train {name}",
        args=list(words),
        config=(tyro.conf.FlagCreatePairsOff,),
    )
