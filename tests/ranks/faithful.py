"""Cases of tests.faithful, and the same where a capture loses what they hang on."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

import lockstep as ls
from lockstep import _compat
from lockstep.capture import capture, standin
from tests.faithful.ranks import judge
from tests.ranks.launch import Here

BUFFER, REDUCED = "an attribute of a buffer decides", "gradients are reduced by MIN"
CACHED, NODE = "a function's cache keeps a tensor", "a hook on the node that accumulates a gradient"


def bare(fake: Any, real: Any) -> None:
    """A stand-in with nothing of the original's."""
    fake.grad = None


def main() -> None:
    here = Here()
    dist.init_process_group("gloo")
    mesh = ls.mesh("cpu", dp=-1)
    rows = [
        judge(name, mesh)[:2] for name in (BUFFER, "gradients are reduced by MAX", REDUCED, CACHED)
    ]
    standin.dress = capture.dress = bare
    rows.append(["lost", judge("an attribute of an argument decides", mesh)[1]])
    _compat.hooks_where_it_accumulates = lambda parameter: []
    rows.append(["hidden", judge(NODE, mesh)[1]])
    here.result(rows)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
