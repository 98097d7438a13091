"""What wraps the models of a step, of whichever kind: found, and done on stand-ins in a trace."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from lockstep.capture.wrapped.ddp import Wrapper, reducing, wrappers_of
from lockstep.capture.wrapped.fsdp2 import Sharded, sharded_of, sharding

Wrapping = Wrapper | Sharded


def wrappings_of(name: str, module: torch.nn.Module) -> list[Wrapping]:
    """Whatever wraps a module.

    Raises:
        CaptureError: it does what no graph has.
    """
    return [*wrappers_of(name, module), *sharded_of(name, module)]


@contextlib.contextmanager
def wrapping(
    found: Sequence[Wrapping],
    stand_ins: dict[int, torch.Tensor],
    names: dict[int, str],
    switched: dict[str, Any],
) -> Iterator[Callable[[], None]]:
    """Let all of them do on stand-ins what they do on real tensors; see `reducing`, `sharding`.

    Yields:
        What is to be called once the step has returned.
    """
    ddps = [one for one in found if isinstance(one, Wrapper)]
    sharded = [one for one in found if isinstance(one, Sharded)]
    with (
        reducing(ddps, stand_ins, names, switched),
        sharding(sharded, stand_ins, names, switched) as finish,
    ):
        yield finish
