"""What DDP's reducer does, as nodes of a graph: the same buckets, in the same order, the same bits.

The reducer in C++ hangs on the real parameters, where no trace meets it. Here the same is done on
their stand-ins.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch

from lockstep import _compat
from lockstep.capture.origin import user_line
from lockstep.errors import CaptureError
from lockstep.spmd import collectives
from lockstep.spmd.mesh import Axis

Send = Callable[[torch.Tensor, int], torch.Tensor]


def mean(flat: torch.Tensor, ranks: int) -> torch.Tensor:
    """What the reducer makes of gradients while it copies them: no division."""
    return flat * (1.0 / ranks)


def divided(flat: torch.Tensor, ranks: int) -> torch.Tensor:
    """What it makes of a bucket in its place."""
    return flat / ranks


class Bucket:
    """Gradients that are reduced as one flat tensor.

    Args:
        parameters: stand-ins, as their gradients lie in it.
        send: what of the flat gradients is all-reduced, by the number of ranks.
        views: ids of gradients that lie in the bucket already.
    """

    def __init__(
        self, parameters: list[torch.Tensor], axis: Axis, send: Send, views: Collection[int]
    ) -> None:
        self.parameters, self._axis, self._send, self._views = parameters, axis, send, views
        self._ready: dict[int, torch.Tensor] = {}
        self._started: torch.Tensor | None = None

    @property
    def whole(self) -> bool:
        """Whether all its gradients are there."""
        return len(self._ready) == len(self.parameters)

    @property
    def started(self) -> bool:
        """Whether its all-reduce was started."""
        return self._started is not None

    def note(self, parameter: torch.Tensor) -> bool:
        """Note that a gradient is there; whether it is the first time."""
        before = len(self._ready)
        self._ready[id(parameter)] = parameter
        return len(self._ready) > before

    def missing(self) -> list[torch.Tensor]:
        """The parameters that the backward gave no gradient."""
        return [p for p in self.parameters if id(p) not in self._ready]

    def start(self) -> None:
        """Start its all-reduce, once; what got no gradient counts as zeros."""
        if self.started:
            return
        with torch.no_grad():
            sent = self._sent([self._flat(p) for p in self.parameters])
            self._started = collectives.all_reduce(sent, "sum", self._axis.name)

    def finish(self) -> None:
        """Wait for it, and write what came into the gradients that went."""
        assert self._started is not None
        with torch.no_grad():
            whole = collectives.wait(self._started)
            pieces = whole.split([p.numel() for p in self.parameters])
            for parameter, piece in zip(self.parameters, pieces, strict=True):
                if id(parameter) in self._ready and parameter.grad is not None:
                    parameter.grad.copy_(_shaped(piece, parameter))

    def _sent(self, flat: list[torch.Tensor]) -> torch.Tensor:
        inside = [id(p.grad) in self._views for p in self.parameters]
        ranks = self._axis.size
        if not any(inside):
            return self._send(torch.cat(flat), ranks)
        return torch.cat(
            [(divided if i else self._send)(x, ranks) for i, x in zip(inside, flat, strict=True)]
        )

    def _flat(self, parameter: torch.Tensor) -> torch.Tensor:
        grad = parameter.grad if id(parameter) in self._ready else None
        if grad is None:
            return torch.zeros(parameter.numel(), dtype=parameter.dtype, device=parameter.device)
        dims = _as_it_lies(parameter)
        return (grad if dims is None else grad.permute(dims)).reshape(-1)


def _as_it_lies(tensor: torch.Tensor) -> list[int] | None:
    """The dimensions in the order of memory, which a bucket keeps; None: their own order."""
    dims = sorted(range(tensor.dim()), key=lambda dim: -tensor.stride(dim))
    if tensor.is_contiguous() or not tensor.permute(dims).is_contiguous():
        return None
    return dims


def _shaped(piece: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    dims = _as_it_lies(like)
    if dims is None:
        return piece.view(like.shape)
    turned = piece.view([like.shape[dim] for dim in dims])
    return turned.permute([dims.index(dim) for dim in range(like.dim())])


class Reducer:
    """The reductions of one DDP while a step is traced.

    Args:
        name: what messages call it.
        layout: the stand-ins in each bucket, in the order in which they are reduced.
        send: what is communicated of a bucket.
        names: id of a stand-in -> the parameter's name.
    """

    def __init__(
        self,
        name: str,
        ddp: Any,
        axis: Axis,
        layout: list[list[torch.Tensor]],
        send: Send,
        names: dict[int, str],
    ) -> None:
        self.name, self.ddp, self._axis, self._send = name, ddp, axis, send
        self._layout, self._names = layout, names
        self._buckets: list[Bucket] = []
        self._hooked = self._armed = self._queued = False
        self._given = [p.grad for bucket in layout for p in bucket if p.grad is not None]
        self._views: dict[int, torch.Tensor] = {}  # gradients that the wrapper has in its buckets

    def share_buffers(self) -> None:
        """Give all ranks the first one's buffers, as before a forward."""
        left_out = self.ddp.parameters_to_ignore
        found = [b for name, b in self.ddp.module.named_buffers() if name not in left_out]
        with torch.no_grad():
            for dtype in dict.fromkeys(buffer.dtype for buffer in found):
                _share([b for b in found if b.dtype == dtype], self._axis.name)

    def arm(self, syncs: bool) -> None:
        """Reduce what the next backward leaves, or not: a forward has decided."""
        self._armed = syncs
        if not syncs:
            return
        self._buckets = [Bucket(b, self._axis, self._send, self._views) for b in self._layout]
        if not self._hooked:
            self._hooked = True
            for parameter in (p for bucket in self._layout for p in bucket):
                parameter.register_post_accumulate_grad_hook(self._ready)

    # -- in a backward

    def _ready(self, parameter: torch.Tensor) -> None:
        if not self._armed:
            return
        if not self._queued:
            self._queued = True
            _compat.after_backward(self._finish)
        bucket = next(b for b in self._buckets if any(p is parameter for p in b.parameters))
        first = bucket.note(parameter)
        self._refuse_given(parameter)
        if self.ddp.static_graph:  # a gradient may come several times: only the last is whole
            return
        if not first:
            raise self._twice(parameter)
        for bucket in self._buckets:  # all ranks have to start them in their order
            if not bucket.started and not bucket.whole:
                return
            bucket.start()

    def _finish(self) -> None:
        self._armed = self._queued = False
        missing = [p for bucket in self._buckets for p in bucket.missing()]
        if missing and not (self.ddp.find_unused_parameters or self.ddp.static_graph):
            raise self._unused(missing)
        for bucket in self._buckets:
            bucket.start()
        for bucket in self._buckets:
            bucket.finish()
        if self._in_place:
            grads = [p.grad for bucket in self._layout for p in bucket if p.grad is not None]
            self._views = {id(grad): grad for grad in grads}

    @property
    def _in_place(self) -> bool:
        """Whether it is told by its bits where a gradient lay before."""
        exact = self._axis.size & (self._axis.size - 1) == 0  # 1 / ranks has no rounding
        return self.ddp.gradient_as_bucket_view and self._send is mean and not exact

    # -- what is refused

    def _refuse_given(self, parameter: torch.Tensor) -> None:
        if not self._in_place or not any(parameter.grad is given for given in self._given):
            return
        raise CaptureError(
            f"{self._names[id(parameter)]} has a gradient from before the step, and "
            f"{self.name} gradient_as_bucket_view=True",
            where=user_line() or None,
            got=f"{self._axis.size} ranks along {self._axis.name}",
            why="whether it lies in a bucket decides how it is rounded, and no program sees that",
            fix=["zero_grad() in the step, before the forward", "gradient_as_bucket_view=False"],
        )

    def _twice(self, parameter: torch.Tensor) -> CaptureError:
        return CaptureError(
            f"{self._names[id(parameter)]} gets its gradient twice in one backward",
            where=user_line() or None,
            got=f"{self.name} without static_graph=True",
            why="its bucket may be on its way after the first",
            fix=[
                "torch.utils.checkpoint.checkpoint(..., use_reentrant=False)",
                "DistributedDataParallel(..., static_graph=True)",
            ],
        )

    def _unused(self, missing: list[torch.Tensor]) -> CaptureError:
        names = [self._names[id(p)] for p in missing]
        shown = "\n".join(names[:8] + [f"and {len(names) - 8} more"] * (len(names) > 8))
        return CaptureError(
            f"{self.name}: the backward leaves parameters without a gradient",
            where=user_line() or None,
            got=shown,
            why="their bucket waits for them: torch ends the next forward with the same",
            fix=[
                "DistributedDataParallel(..., find_unused_parameters=True)",
                "leave them out of the model, or set requires_grad_(False) before it is wrapped",
            ],
        )


def _share(buffers: list[torch.Tensor], axis: str) -> None:
    flat = torch.cat([buffer.reshape(-1) for buffer in buffers])
    whole = collectives.wait(collectives.broadcast(flat, 0, axis))
    pieces = whole.split([buffer.numel() for buffer in buffers])
    for buffer, piece in zip(buffers, pieces, strict=True):
        # What autograd has kept of it counts no write, as in the wrapper.
        buffer.data.copy_(piece.view(buffer.shape))
