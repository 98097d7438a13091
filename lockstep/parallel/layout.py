"""What a step has to know of how its model is laid out over a mesh."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from lockstep.errors import UsageError
from lockstep.parallel.context import own_tokens
from lockstep.parallel.vocab_loss import vocab_cross_entropy


@dataclass(frozen=True)
class Layout:
    """The roles of a mesh's axes, as a plan has assigned them.

    Args:
        data: axes along which batches differ; give them to `ls.compile(data=...)`.
        tensor: the axis that cuts the logits by vocabulary; None where every rank has them whole.
        context: the axis that cuts each batch's tokens within the step.
    """

    data: tuple[str, ...] = ()
    tensor: str | None = None
    context: str | None = None

    @property
    def tokens(self) -> tuple[str, ...]:
        """The axes along which tokens differ within the step, over which a mean of them is."""
        return self.data if self.context is None else (*self.data, self.context)

    def own_tokens(self, x_BT: Tensor) -> Tensor:
        """This rank's part of sequences, where a context axis cuts them; else all of them."""
        return x_BT if self.context is None else own_tokens(x_BT, self.context)

    def losses(self, logits_BTV: Tensor, labels_BT: Tensor) -> Tensor:
        """Each token's cross-entropy in f32 (or f64), [B, T], 0 where the label is negative."""
        if self.tensor is not None:
            return vocab_cross_entropy(logits_BTV, labels_BT, self.tensor)
        wide_BVT = logits_BTV.float() if logits_BTV.dtype.itemsize < 4 else logits_BTV
        losses = F.cross_entropy(wide_BVT.flatten(0, 1), labels_BT.flatten(), reduction="none")
        return losses.view_as(labels_BT)


def layout(model: nn.Module) -> Layout:
    """Return the layout that a plan has given a model.

    Raises:
        UsageError: no plan made it parallel.
    """
    found = getattr(model, "layout", None)
    if not isinstance(found, Layout):
        raise UsageError(
            f"{type(model).__name__} has no layout",
            want="a model that a plan made parallel",
            fix="llama_plan.parallelize(model, mesh)",
        )
    return found
