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
