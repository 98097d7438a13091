"""Uneven data made even: every rank makes the same number of steps, on batches of one size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from lockstep.errors import UsageError
from lockstep.run.even_size import Declared, declared_of, size_of
from lockstep.run.together import Together

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class EvenBatches:
    """What `ls.even_batches` gives; each `for` over it is one pass over the loader."""

    def __init__(
        self,
        loader: Iterable[Any],
        together: Together,
        size: int | None,
        weights: Callable[[Any], torch.Tensor] | None,
    ) -> None:
        self._loader, self._together, self._size, self._weights = loader, together, size, weights
        self._declared: Declared | None = None

    def __iter__(self) -> Iterator[tuple[Any, torch.Tensor]]:
        source = self._read()
        batch = next(source, None)
        if self._declared is None:
            own = None if batch is None else declared_of(*batch, self._size)
            self._declared = self._together.declared(own)
        declared, filler, step = self._declared, None, 0
        going = self._together.anyone(batch is not None, step)
        # One batch is read ahead, and who has it is agreed on while the step before it runs.
        while declared is not None and going():
            if batch is not None:
                with self._together.guard(f"filling up batch {step}"):
                    even = declared.padded(*batch)
                filler = even[0], torch.zeros_like(even[1])
            elif filler is None:
                even = filler = declared.empty()
            else:
                even = filler
            batch = next(source, None)
            step += 1
            going = self._together.anyone(batch is not None, step)
            yield even

    def _read(self) -> Iterator[tuple[Any, torch.Tensor]]:
        """The loader's batches with their weights; those without a sample are left out."""
        batches = iter(self._loader)
        number = 0
        while True:
            with self._together.guard(f"reading batch {number} of its loader"):
                try:
                    batch = next(batches)
                except StopIteration:
                    return
                number += 1
                size, device = size_of(batch)
                if size == 0:
                    continue
                given = self._weights(batch) if self._weights else torch.ones(size, device=device)
                if not isinstance(given, torch.Tensor) or given.dim() == 0 or len(given) != size:
                    raise UsageError(
                        "ls.even_batches: weights= gives no weight for each sample",
                        got=f"shape {list(given.shape)}" if isinstance(given, torch.Tensor) else
                        f"a {type(given).__name__}",
                        want=f"a tensor whose first dimension has the batch's {size} samples",
                    )  # fmt: skip
                if not given.is_floating_point():  # a mask
                    given = given.to(torch.get_default_dtype())
            yield batch, given


def even_batches(
    loader: Iterable[Any],
    mesh: DeviceMesh | None = None,
    *,
    size: int | None = None,
    weights: Callable[[Any], torch.Tensor] | None = None,
    timeout_s: float = 1800.0,
) -> Iterable[tuple[Any, torch.Tensor]]:
    """Make every rank's loader give as many batches, all of one size, with weights.

    A smaller batch is filled up with copies of its own last sample, which weigh 0. A rank whose
    loader has ended goes on with weights of 0, until the last rank's has. So every rank makes the
    same steps with one program, and `ls.weighted_mean` makes loss and gradients those of one
    process over all the data. Layers that mix the samples of a batch, such as BatchNorm, do see
    the copies.

    Every rank of the mesh makes this call and iterates as often; one batch is read ahead, and the
    ranks agree on who has another one while the step runs.

    Args:
        loader: any iterable of batches: a tensor, or tuples, lists and dicts of tensors and other
            values. The first dimension of every tensor is the samples'; numbers of dimension 0 go
            through as they are. Ranks may have different numbers of batches, or none at all.
        mesh: whose ranks agree; None: all ranks.
        size: samples in each batch; by default what the largest first batch of all ranks has.
        weights: gets a batch as the loader gave it and says what counts: a mask or weights by
            sample, or by token: `lambda batch: batch["labels"] != -100`. By default each sample
            weighs 1.
        timeout_s: how long a rank waits for the others at most.

    Returns:
        An iterable of (batch, weights); each pass over it is one over the loader.

    Raises:
        UsageError: while iterating, on every rank: tensors of a batch that disagree on the number
            of samples, a batch over `size`, or ranks whose batches differ in more than that number.
        FleetError: while iterating: a rank did not come within the time.

    Example:
        >>> import lockstep as ls
        >>> mesh = ls.mesh(dp=-1)
        >>> x = torch.arange(5.0)
        >>> for batch, weights in ls.even_batches(x.split(2), mesh):
        ...     loss = ls.weighted_mean(batch**2, weights, "dp")
        ...     print(batch.tolist(), weights.tolist(), loss.item())
        [0.0, 1.0] [1.0, 1.0] 0.5
        [2.0, 3.0] [1.0, 1.0] 6.5
        [4.0, 4.0] [1.0, 0.0] 16.0
    """
    if not isinstance(loader, Iterable):
        raise UsageError("ls.even_batches takes an iterable", got=f"a {type(loader).__name__}")
    if mesh is not None and not hasattr(mesh, "mesh_dim_names"):
        raise UsageError(f"mesh={mesh!r}", want="a DeviceMesh", fix="mesh=ls.mesh(dp=-1)")
    if size is not None and (type(size) is not int or size < 1):
        raise UsageError(f"size={size!r}", want="the number of samples in a batch, 1 or more")
    return EvenBatches(loader, Together(mesh, timeout_s), size, weights)
