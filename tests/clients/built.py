"""Build megatron-core's layers in a job: loss and gradients are eager's to the bit, on every rank.

    python -m tests.clients.built

Its layers read the rank in their constructors and inside the step; nothing of the package is
touched. Needs the packages of `pip install -e '.[dev]'`.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.clients.__main__ import missing
from tests.ranks.launch import Torchrun

RANKS = 2


def main() -> int:
    """Run the programs on real ranks; return the exit code."""
    if missing():
        print(f"not installed: {', '.join(missing())}; pip install -e '.[dev]'")
        return 2
    with Torchrun() as torchrun, tempfile.TemporaryDirectory() as folder:
        ended = torchrun.run(
            "tests.clients.built_ranks", folder=Path(folder), world=RANKS, limit=580
        )
    if ended.code:
        print(ended.report())
        return 1
    right = 0
    for name in ended.results[0]:
        odd = [rank for rank, equal in enumerate(ended.results) if not equal[name]]
        right += not odd
        print(f"{name:<42} {f'differs on ranks {odd}' if odd else 'bitwise as eager'}")
    built = ended.of("built")
    print(
        f"megatron-core in a built step, {RANKS} gloo ranks: {right} of {len(ended.results[0])} "
        f"programs bitwise as eager, {len(built)} artifacts for all ranks"
    )
    return 0 if right == len(ended.results[0]) == len(built) else 1


if __name__ == "__main__":
    sys.exit(main())
