"""What the hardware gave: tokens a second, the share of its peak, the memory in use."""

from __future__ import annotations

import resource
import sys

import torch

from lockstep.models import llama

# Dense bf16 operations a second, from the makers' data sheets; others are not known.
PEAKS = {"A100": 312e12, "H100": 989e12, "H200": 989e12, "B200": 2250e12}


def operations(config: llama.Config, sequence: int) -> float:
    """Return the operations that training on one token takes.

    Six a weight that multiplies, and attention over the whole sequence, as is usual; recomputation
    does not count, so that it lowers the share of the peak.

    Example:
        >>> operations(llama.config("8b"), 8192) / 1e9
        57.9...
    """
    heads = config.head_dim * (config.heads + config.kv_heads)
    block = 2 * config.dim * heads + 3 * config.dim * config.ffn
    weights = config.layers * block + config.dim * config.vocab
    return 6 * weights + 12 * config.layers * config.dim * sequence


def peak(device_type: str) -> float | None:
    """Return this rank's peak in operations a second, where it is known."""
    if device_type != "cuda":
        return None
    name = torch.cuda.get_device_name()
    return next((value for known, value in PEAKS.items() if known in name), None)


def memory(device_type: str) -> int:
    """Return the most bytes this rank has held: of its device, or of the process on a CPU."""
    if device_type == "cpu":
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most * (1 if sys.platform == "darwin" else 1024)
    return torch.accelerator.max_memory_allocated()
