"""Private names of DistributedDataParallel: what its reducer in C++ was told, and has made.

Read in torch 2.14.1.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from lockstep._compat import without_modes


def around_forward() -> tuple[Any, Any]:
    """What DDP does before and after its module's forward; `replicate` calls it from hooks."""
    kind = torch.nn.parallel.DistributedDataParallel
    return kind._pre_forward, kind._post_forward


def of_replicate(module: Any) -> Any:
    """What `replicate` keeps for a module, with a DDP in it after a forward; None: it did not."""
    there = sys.modules.get("torch.distributed._composable.replicate")
    if there is None or not isinstance(module, there.DDP):
        return None
    return there.replicate.state(module)


def wrapped(keeper: Any) -> Any:
    """The DDP itself, which `replicate` makes in the first forward: None before that."""
    kind = torch.nn.parallel.DistributedDataParallel
    return keeper if isinstance(keeper, kind) else getattr(keeper, "_ddp", None)


def switches(keeper: Any) -> tuple[bool, bool]:
    """Whether the next forward's gradients are reduced, and whether it begins with buffers sent."""
    ddp = wrapped(keeper)
    reduces = ddp.require_backward_grad_sync if keeper is ddp else not keeper._no_sync
    return reduces, ddp is None or ddp.require_forward_param_sync


def buckets(ddp: Any) -> list[list[Any]]:
    """The parameters in each bucket that is reduced as a whole, in order, as they lie in it."""
    with without_modes():  # the way to them makes zeros, which are no part of a trace
        return [list(b.parameters()) for b in ddp.reducer._get_zeros_like_grad_buckets()]


def final(ddp: Any, ask: bool = False) -> bool:
    """Whether its buckets stay what they are: they are made anew once, as gradients came.

    Args:
        ask: make them anew now, if that is due, as the next forward would. Collective.
    """
    if ask and not ddp._has_rebuilt_buckets and ddp.reducer._rebuild_buckets():
        ddp._has_rebuilt_buckets = True
    fixed = ddp.find_unused_parameters and not ddp.static_graph
    return bool(ddp._has_rebuilt_buckets or fixed or ddp._use_python_reducer)


def reducer_in_python(ddp: Any) -> bool:
    """Whether its reductions are hooks of its parameters, which any trace sees."""
    return bool(ddp._use_python_reducer)


def hooks(ddp: Any) -> list[tuple[Any, Any]]:
    """What was registered to communicate in place of an all-reduce, each with its state."""
    built_in = ddp._get_ddp_logging_data().get("comm_hook")
    return [*ddp._comm_hooks] or ([(built_in, None)] if built_in else [])


def unusual(ddp: Any) -> list[str]:
    """Options of DDP under which its reducer does something else, as they are written."""
    found = {
        "mixed_precision=": ddp.mixed_precision,
        "delay_all_reduce_named_params=": ddp._delay_all_reduce_params,
        "join()": ddp._join_config.enable,
        "a hook for its buffers": hasattr(ddp, "buffer_hook"),
        "an optimizer in its backward": any(
            hasattr(p, "_in_backward_optimizers") for p in ddp.module.parameters()
        ),
    }
    return [name for name, value in found.items() if value]
