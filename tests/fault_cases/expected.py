"""What a check should say of each wrong program: a line, by what it contains, and the axis.

Several texts where several lines are as right: a gradient that nobody reduced is told where its
parameter is read, of any of those parameters.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Expected:
    """The axis of a fault, and texts of which its line holds one; no texts where it has no line."""

    axis: str
    texts: tuple[str, ...] = ()


def at(axis: str, *texts: str) -> Expected:
    """Return what is expected on an axis."""
    return Expected(axis, texts)


EXPECTED: dict[str, Expected] = {
    "no copy into attention": at("tp", "hidden @ self.wq"),
    "no copy into mlp": at("tp", "hidden @ self.up"),
    "no copy into head": at("tp", "x @ weight.t()"),
    "no copy into tied head": at("tp", "x @ weight.t()"),
    "no reduce out of mlp": at("tp", "self.out_of_mlp(out)"),
    "no reduce out of attention": at("tp", "self.out_of_attention(out)"),
    "reduced twice after mlp": at("tp", "ReduceBothWays.apply"),
    "reduced twice after attention": at("tp", "ReduceBothWays.apply"),
    "no copy of query norm": at("tp", ".rsqrt() * scale"),
    "bias before reduce": at("tp", "out = out + self.down_bias"),
    "one norm not synced": at("tp", "self.norm2, self.norm2_bias"),
    "no norm synced": at("tp", "self.norm1,", "self.norm2,", "self.last_norm,", "_bias"),
    "gather drops gradients": at("tp", "GatherRowsOwnGradient.apply"),
    "label on every rank": at("tp", "self.start, self.group, True)"),
    "no mask in lookup": at("tp", "unmasked = F.embedding"),
    "head detached": at("tp", "self.head.detach()", "x @ weight.t()"),
    "scaled and averaged": at("dp", "scaled = loss /"),
    "summed, not averaged": at("dp"),
    "loss reduced, summed": at("dp", "functional.all_reduce(loss"),
    "exchange one way": at("ep", "ExchangeOneWay.apply"),
    "expert not scaled": at("ep", "received @ self.expert"),
    "experts reduced": at("ep", "dist.all_reduce(model.expert.grad"),
}

PAIRS: dict[str, Expected] = {
    "unequal counts": at("dp", "loss = errors.sum() / total"),
    "auxiliary loss not divided": at("dp", "share = Shared.apply"),
    "clipped before reduction": at("dp", "weight.grad /= norm", "torch.stack(squares)"),
    "summed after each backward": at("dp", "dist.all_reduce(weight.grad, group=model.group)"),
    "spread weight, own gradient": at("dp", "weight = function.apply(model.rows"),
    "fused weight split as one": at("tp", "@ self.qkv).chunk(3, -1)"),
    "few keys not copied": at("tp", "k, v = x @ wk, x @ wv"),
    "norm of own columns": at("tp", "square = (wide**2)", "wide * torch.rsqrt(square"),
    "scattered along the batch": at("tp", "self.leave.apply(wide"),
    "split without its gather": at("tp", "own = self.split.apply"),
    "rows drop the same elements": at("tp", "F.dropout(own, 0.5)"),
    "labels shifted within a rank": at("cp", "F.cross_entropy(", "words.roll(-1)"),
    "router not reduced": at("ep", "hidden @ self.router"),
    "another rank's rows updated": at("dp", "weight.chunk(model.ranks)"),
    "updated by the own gradient": at("dp", "weight -= 0.1 * weight.grad"),
}
