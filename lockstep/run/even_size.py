"""The one form that batches are given: which tensors, of what size, and how one is filled up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from lockstep._compat import pytree
from lockstep.errors import UsageError

Even: TypeAlias = tuple[Any, torch.Tensor]  # a batch and its weights


@dataclass(frozen=True)
class Form:
    """One tensor of a batch, but for its number of samples."""

    rest: tuple[int, ...]
    dtype: torch.dtype
    device: str

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Form:
        return cls(tuple(tensor.shape[1:]), tensor.dtype, tensor.device.type)

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}{['n', *self.rest]} on {self.device}"


@dataclass(frozen=True)
class Declared:
    """What every batch looks like.

    Args:
        size: samples in it.
        leaves: of the batch's tree; a Form where a tensor is, else the value itself.
        weights: the form of its weights.
    """

    size: int
    leaves: tuple[Any, ...]
    tree: pytree.TreeSpec
    weights: Form

    def padded(self, batch: Any, weights: torch.Tensor) -> Even:
        """The batch in this size, filled up with its last sample, and zeros for their weights.

        Raises:
            UsageError: it is larger, or of another form.
        """
        own = declared_of(batch, weights, None)
        if own.size > self.size:
            raise UsageError(
                f"ls.even_batches: a batch of {own.size} samples",
                want=f"at most {self.size}, as all batches have",
                fix=f"ls.even_batches(..., size={own.size}), which pads all to that",
            )
        differ = differences(self, own)
        if differ:
            raise UsageError(
                "ls.even_batches: a batch of another form than the first",
                got=f"{differ[0]}: {differ[2]}",
                want=f"{differ[0]}: {differ[1]}",
                why="another form is another program",
            )
        missing = self.size - own.size
        if not missing:
            return batch, weights

        def filled(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor) or leaf.dim() == 0:
                return leaf
            return torch.cat([leaf, leaf[-1:].expand(missing, *leaf.shape[1:])])

        zeros = weights.new_zeros(missing, *weights.shape[1:])
        return pytree.tree_map(filled, batch), torch.cat([weights, zeros])

    def empty(self) -> Even:
        """A batch for a rank that never had one: zeros, with weights of zero."""

        def zeros(form: Any) -> Any:
            if not isinstance(form, Form):
                return form
            return torch.zeros(self.size, *form.rest, dtype=form.dtype, device=form.device)

        leaves = [zeros(leaf) for leaf in self.leaves]
        return pytree.tree_unflatten(leaves, self.tree), zeros(self.weights)


def size_of(batch: Any) -> tuple[int, torch.device]:
    """The number of samples in a batch, and where its tensors are.

    Raises:
        UsageError: it holds no tensor with samples, or they disagree.
    """
    leaves = pytree.tree_flatten_with_path(batch)[0]
    found = {
        pytree.keystr(path): leaf
        for path, leaf in leaves
        if isinstance(leaf, torch.Tensor) and leaf.dim()
    }
    if not found:
        raise UsageError(
            "ls.even_batches: a batch without a tensor of samples", got=f"a {type(batch).__name__}"
        )
    sizes = {len(leaf) for leaf in found.values()}
    if len(sizes) > 1:
        rows = [f"batch{name}: {list(leaf.shape)}" for name, leaf in found.items()]
        raise UsageError(
            "ls.even_batches: the tensors of a batch hold different numbers of samples",
            got="\n".join(rows[:8]),
            want="the samples along the first dimension of every tensor",
        )
    return sizes.pop(), next(iter(found.values())).device


def declared_of(batch: Any, weights: torch.Tensor, size: int | None) -> Declared:
    """What a batch says of all batches; `size` in place of its own."""
    leaves, tree = pytree.tree_flatten(batch)
    own, _ = size_of(batch)
    forms = [Form.of(x) if isinstance(x, torch.Tensor) and x.dim() else x for x in leaves]
    return Declared(size or own, tuple(forms), tree, Form.of(weights))


def differences(known: Declared, other: Declared) -> tuple[str, Any, Any] | None:
    """The first thing in which two differ beyond their size: its name and both sides."""
    if known.tree != other.tree:
        return "batch", known.tree, other.tree
    names = [pytree.keystr(path) for path, _ in _paths(known)]
    pairs = [*zip(names, known.leaves, other.leaves, strict=True)]
    for name, a, b in [*pairs, (None, known.weights, other.weights)]:
        if (isinstance(a, Form) or isinstance(b, Form)) and a != b:
            return "weights" if name is None else f"batch{name}", a, b
    return None


def _paths(known: Declared) -> Any:
    return pytree.tree_flatten_with_path(pytree.tree_unflatten(known.leaves, known.tree))[0]


def agreed(by_rank: Sequence[Declared | None]) -> Declared | None:
    """What all ranks' first batches come to: the largest size; None where no rank has any.

    Raises:
        UsageError: two ranks' differ in more than the size; names them.
    """
    have = [(rank, known) for rank, known in enumerate(by_rank) if known is not None]
    if not have:
        return None
    first, known = have[0]
    for rank, other in have[1:]:
        differ = differences(known, other)
        if differ:
            raise UsageError(
                f"ls.even_batches: the batches of ranks {first} and {rank} differ",
                got=f"{differ[0]} on rank {rank}: {differ[2]}",
                want=f"{differ[0]} on rank {first}: {differ[1]}",
                why="one program for all ranks takes batches of one form",
            )
    size = max(declared.size for _, declared in have)
    return Declared(size, known.leaves, known.tree, known.weights)
