"""How often each collective is started along each mesh axis while some code runs.

Below Python: what a reducer in C++ starts by itself, as DDP's does, counts as what a step calls.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist

from lockstep import _compat
from lockstep.spmd.mesh import axis_of

# The operators that communicate, by the word for all that do the same: a step's list of tensors is
# one tensor in its graph.
_VERBS = {
    "allreduce_": "all_reduce",
    "allreduce_coalesced_": "all_reduce",
    "broadcast_": "broadcast",
    "allgather_": "all_gather",
    "_allgather_base_": "all_gather",
    "allgather_coalesced_": "all_gather",
    "allgather_into_tensor_coalesced_": "all_gather",
    "reduce_scatter_": "reduce_scatter",
    "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter",
    "alltoall_": "all_to_all",
    "alltoall_base_": "all_to_all",
    "reduce_": "reduce",
    "gather_": "gather",
    "scatter_": "scatter",
    "send": "send",
    "recv_": "recv",
    "recv_any_source_": "recv",
    "barrier": "barrier",
}


@contextlib.contextmanager
def counting_collectives() -> Iterator[Counter[tuple[str, str]]]:
    """Count, by (op, mesh axis), the collectives that this process starts while inside.

    A reduction that is no sum is an op of its own: "all_reduce max". An axis of one rank counts
    nothing: eager may leave out what has no other side.
    """
    counts: Counter[tuple[str, str]] = Counter()
    lock = threading.Lock()  # an accelerator's backward runs on a thread of its own

    def hear(op: str, group: Any, sent: Any, reduction: str) -> None:
        ranks = dist.get_process_group_ranks(group)
        if len(ranks) > 1:
            found = axis_of(group)
            axis = found.name if found is not None else f"ranks {ranks}"
            verb = f"{_VERBS[op]} {reduction}" if reduction not in ("", "sum") else _VERBS[op]
            with lock:
                counts[verb, axis] += len(sent) if op == "allreduce_coalesced_" else 1

    with _compat.hearing_collectives(tuple(_VERBS), hear):
        yield counts
