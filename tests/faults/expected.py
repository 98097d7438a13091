"""Where the docstring of each case of the default folder asks for its error: lines, and the axis.

Two lines where RIGHT allows two: a gradient that nobody reduced is told where the parameter is read
or where the optimizer would read it; a Function's backward anywhere in it or where it is called.
"""

from __future__ import annotations

import re
from typing import Any

LINES: dict[str, tuple[str, tuple[int, ...]]] = {
    "c01_missing_copy_to_tp": ("tp", (22,)),
    "c02_missing_row_reduce": ("tp", (21,)),
    "c03_all_reduce_wrong_backward": ("tp", (21,)),
    "c04_bias_before_reduce": ("tp", (20,)),
    "c06_gelu_on_partial": ("tp", (19,)),
    "c07_reduced_twice": ("tp", (21,)),
    "c08_vocab_embedding_no_mask": ("tp", (20, 23)),
    "c12_sp_norm_weight_invariant_unconverted": ("tp", (18,)),
    "c13_sp_norm_grad_hook_forgotten": ("tp", (16, 22)),
    "c16_dropout_differs_in_invariant_region": ("tp", (16,)),
    "c19_gather_wrong_dim": ("tp", (17,)),
    "c21_dp_mean_of_means": ("dp", (21,)),
    "c22_dp_grad_not_reduced": ("dp", (17, 23)),
    "c26_clip_norm_local_shard": ("tp", (20,)),
    "c29_gqa_kv_invariant_unconverted": ("rep", (21,)),
    "c33_ep_missing_combine_all_to_all": ("ep", (24,)),
    "c36_custom_function_backward_forgot_reduce": ("tp", (17, 18, 19, 20, 21, 32)),
    "c38_collective_order_differs_by_rank": ("tp", (15,)),
}
PEER = {
    "flagged, local": 14 / 43,
    "flagged, either mode": 24 / 43,
    "right programs refused": 9 / 43,
}


def wanted(case: str) -> tuple[str, tuple[int, ...]] | None:
    """Return axis and lines of a case by its file's name; None for cases of another folder."""
    return LINES.get(case)


def peer_said(case: Any) -> str:
    """Return what spmd_types 0.3.1 did, local mode and global mode, by the case's docstring."""
    told = re.search(r"local mode (\S+); global mode (\S+?)\.?\n", case.__doc__ or "")
    return ", ".join(word.lower() for word in told.groups()) if told else "n/a"
