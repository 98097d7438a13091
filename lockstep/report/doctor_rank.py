"""One of the two ranks that `lockstep doctor` starts; exit code 0 where they have met."""

from __future__ import annotations

import sys
from datetime import timedelta

import torch
import torch.distributed as dist

LIMIT_S = 30.0


def main() -> int:
    """Form a group and add ones up."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=LIMIT_S))
    ones = torch.ones(1)
    dist.all_reduce(ones)
    dist.destroy_process_group()
    return 0 if ones.item() == 2 else 1


if __name__ == "__main__":
    sys.exit(main())
