"""All programs by name: those that are right, and the wrong ones that were made of them."""

from __future__ import annotations

from collections.abc import Callable

from tests.fault_cases import averaging, layouts, rows, spread_updates
from tests.fault_cases import experts as ep
from tests.fault_cases import training as t
from tests.fault_cases import transformer as tp
from tests.fault_cases.training import Program

RIGHT: dict[str, Callable[[], Program]] = {
    "tp": lambda: t.tensor_parallel(),
    "tp x dp": lambda: t.tensor_parallel(dp=2),
    "tp, tied": lambda: t.tensor_parallel(tied=True),
    "sp": lambda: t.sequence_parallel(t.sync_all),
    "sp x dp, tied": lambda: t.sequence_parallel(t.sync_all, dp=2, tied=True),
    "experts": lambda: ep.experts(ep.scale_expert),
    "loss reduced": lambda: t.data_parallel(t.reduced_loss),
}

WRONG: dict[str, Callable[[], Program]] = {
    "no copy into attention": lambda: t.tensor_parallel(block=tp.NoCopyIntoAttention),
    "no copy into mlp": lambda: t.tensor_parallel(block=tp.NoCopyIntoMlp),
    "no copy into head": lambda: t.tensor_parallel(tp.NoCopyIntoHead),
    "no copy into tied head": lambda: t.tensor_parallel(tp.NoCopyIntoHead, tied=True),
    "no reduce out of mlp": lambda: t.tensor_parallel(block=tp.NoReduceOutOfMlp),
    "no reduce out of attention": lambda: t.tensor_parallel(block=tp.NoReduceOutOfAttention),
    "reduced twice after mlp": lambda: t.tensor_parallel(block=tp.TwiceOutOfMlp),
    "reduced twice after attention": lambda: t.tensor_parallel(dp=2, block=tp.TwiceOutOfAttention),
    "no copy of query norm": lambda: t.tensor_parallel(block=tp.NoCopyOfQueryNorm),
    "bias before reduce": lambda: t.tensor_parallel(block=tp.BiasBeforeReduce),
    "one norm not synced": lambda: t.sequence_parallel(t.sync_all_but_norm2),
    "no norm synced": lambda: t.sequence_parallel(t.sync_none),
    "gather drops gradients": lambda: t.sequence_parallel(t.sync_all, tp.OwnGradientIntoMlp),
    "label on every rank": lambda: t.tensor_parallel(tp.LabelOnEveryRank),
    "no mask in lookup": lambda: t.tensor_parallel(tp.NoMaskInLookup),
    "head detached": lambda: t.tensor_parallel(tp.DetachedHead, tied=True),
    "scaled and averaged": lambda: t.data_parallel(t.scaled_and_averaged),
    "summed, not averaged": lambda: t.data_parallel(t.summed_not_averaged),
    "loss reduced, summed": lambda: t.data_parallel(t.reduced_loss_summed),
    "exchange one way": lambda: ep.experts(ep.scale_expert, ep.SendOneWay),
    "expert not scaled": lambda: ep.experts(ep.scale_nothing),
    "experts reduced": lambda: ep.experts(ep.reduce_expert),
}

# Kinds that were written after the checker, each with a right program and a wrong one.
PAIRS: dict[str, Callable[[bool], Program]] = {
    "unequal counts": averaging.unequal_counts,
    "auxiliary loss not divided": averaging.auxiliary_loss,
    "clipped before reduction": averaging.clipped_early,
    "summed after each backward": averaging.reduced_each_time,
    "spread weight, own gradient": averaging.spread_weight,
    "fused weight split as one": layouts.fused_weight,
    "few keys not copied": layouts.few_keys,
    "norm of own columns": layouts.split_norm,
    "scattered along the batch": layouts.scattered_dimension,
    "split without its gather": rows.split_backward,
    "rows drop the same elements": rows.row_draws,
    "labels shifted within a rank": rows.shifted_labels,
    "router not reduced": rows.router_left_out,
    "another rank's rows updated": spread_updates.spread_update,
    "updated by the own gradient": spread_updates.updated_by_hand,
}
