"""Forward and backward of a batch in micro-batches, whose gradients add up."""

from __future__ import annotations

from torch import Tensor, nn

from lockstep.errors import UsageError
from lockstep.parallel.layout import layout
from lockstep.parallel.loss import job_loss, token_count, token_mean


def forward_backward(
    model: nn.Module, tokens_BT: Tensor, labels_BT: Tensor, *, micro_batches: int = 1
) -> Tensor:
    """Run a model forward and backward on a batch; gradients are left to be reduced.

    The loss is the mean over all tokens of all ranks and micro-batches, whatever is held where.

    Args:
        model: made parallel by a plan.
        tokens_BT: int64, this rank's batch; the same along axes that are no data axes.
        labels_BT: int64, the token that follows each; a negative one is left out.
        micro_batches: how many parts of the batch run one after the other.

    Returns:
        The job's mean loss: f32[], the same on every rank, without a gradient.

    Raises:
        UsageError: the micro-batches do not divide the batch.
    """
    if micro_batches < 1 or len(tokens_BT) % micro_batches:
        raise UsageError(
            f"{micro_batches} micro-batches do not divide a rank's batch of {len(tokens_BT)}",
            fix="another batch size, or another number of micro-batches",
        )
    how = layout(model)
    tokens_BT, labels_BT = how.own_tokens(tokens_BT), how.own_tokens(labels_BT)
    count = token_count(labels_BT, *how.tokens)
    told = None
    for tokens, labels in zip(
        tokens_BT.chunk(micro_batches), labels_BT.chunk(micro_batches), strict=True
    ):
        losses = how.losses(model(tokens), labels)
        share = token_mean(losses, labels, *how.tokens, count=count)
        share.backward()
        told = share.detach() if told is None else told + share.detach()
    assert told is not None
    return job_loss(told, *how.tokens)
