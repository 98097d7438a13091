"""What one group of FSDP2 does with its parameters, as nodes of a graph.

Before a forward the shards are gathered, and the whole parameters lie in the modules; once a
backward has passed, what it left in them is reduced, and each shard gets its part. FSDP2 does that
on tensors whose memory it takes and gives back; here each gathering makes tensors of its own.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass, field
from typing import Any

import torch

from lockstep import _compat
from lockstep import _compat_fsdp as fsdp
from lockstep._compat_dtensor import dtensor_around, local_of
from lockstep.capture.collectives import name_axis
from lockstep.capture.origin import user_line
from lockstep.capture.wrapped.saved import Saving
from lockstep.errors import CaptureError
from lockstep.spmd import collectives
from lockstep.spmd.mesh import Axis


@dataclass
class Parameter:
    """One parameter of a group.

    Args:
        shard: the stand-in that the step knows it by.
        places: the entries of modules that hold it.
        dtype: what it is gathered in; None for its own.
        wholes: as it was gathered, the latest last: gradients may come to each of them.
        kept: the gradient that no reduction has taken yet.
    """

    name: str
    shard: Any
    places: list[tuple[MutableMapping[str, Any], str]]
    dtype: torch.dtype | None
    wholes: list[torch.Tensor] = field(default_factory=list)
    kept: torch.Tensor | None = None

    @property
    def local(self) -> torch.Tensor:
        """What this rank holds of it."""
        found: torch.Tensor = local_of(self.shard)
        return found

    def put(self, tensor: Any) -> None:
        """Let the modules hold it as this tensor."""
        for mapping, key in self.places:
            mapping[key] = tensor

    def nothing(self) -> torch.Tensor | None:
        """A gradient of zeros, where it was gathered and has one."""
        whole = self.wholes[-1] if self.wholes else None
        return torch.zeros_like(whole) if whole is not None and whole.requires_grad else None

    def take(self) -> None:
        """Add what a backward has left in it to what is kept."""
        for whole in self.wholes:
            if whole.grad is not None:
                self.kept = whole.grad if self.kept is None else self.kept + whole.grad
                whole.grad = None


class Group:
    """Parameters that are gathered and reduced together.

    Args:
        name: of the module, in messages.
        told: FSDP2's own group: what the user has set is read from it as the step runs.
        parameters: in its order.
    """

    def __init__(self, name: str, told: Any, parameters: list[Parameter]) -> None:
        self.name, self.told, self.parameters = name, told, parameters
        gathers, scatters, copies = fsdp.process_groups(told)
        self._gathers, self._scatters = self._axis(gathers), self._axis(scatters)
        self._copies = self._axis(copies)
        _, self._reduces_in, self._gives = fsdp.dtypes(told)
        self._partial: torch.Tensor | None = None  # HSDP: scattered, and not reduced over copies
        self._whole = False  # whether the modules hold the whole parameters
        self._spent = True  # whether those belong to a backward that has passed
        self._writes: list[int] = []
        self.saving = Saving(parameters)
        self.in_forward = self.passed = False

    def _axis(self, group: Any) -> Axis | None:
        return None if group is None else name_axis(group, f"{self.name}, wrapped by FSDP2,")

    # -- whole parameters

    def gather(self) -> None:
        """Let the modules hold the whole parameters; what was gathered for a backward that is
        still to come is taken again, since gradients of both belong together."""
        if self._whole:
            return
        writes = [fsdp.writes_into(p.local) for p in self.parameters]
        if fsdp.in_backward():
            stale = fsdp.gathers_again(self.told)
        else:
            stale = self._spent or writes != self._writes
        if stale or not self.parameters[0].wholes:
            gathered = _Gathered.apply(self)
            for parameter, whole in zip(self.parameters, gathered, strict=True):
                parameter.wholes.append(fsdp.as_leaf(whole, parameter.shard.requires_grad))
            self._writes, self._spent = writes, False
        for parameter in self.parameters:
            parameter.put(parameter.wholes[-1])
        self._whole = True

    def cut(self) -> None:
        """Let the modules hold the shards."""
        for parameter in self.parameters:
            parameter.put(parameter.shard)
        self._whole = False

    def gathered(self) -> tuple[torch.Tensor, ...]:
        """The whole parameters, in new tensors."""
        own = [p.local.to(p.dtype) if p.dtype is not None else p.local for p in self.parameters]
        ranks = self._gathers.size if self._gathers is not None else 1
        if self._gathers is None or ranks == 1:
            return tuple([local.clone() for local in own])
        pieces: dict[int, torch.Tensor] = {}
        for dtype in dict.fromkeys(local.dtype for local in own):
            some = [at for at, local in enumerate(own) if local.dtype == dtype]
            flat = torch.cat([own[at].reshape(-1) for at in some])
            whole = collectives.wait(collectives.all_gather(flat, ranks, self._gathers.name))
            cut = whole.view(ranks, -1).split([own[at].numel() for at in some], 1)
            pieces.update(zip(some, cut, strict=True))
        shapes = [(ranks * local.shape[0], *local.shape[1:]) for local in own]
        return tuple([pieces[at].reshape(shape) for at, shape in enumerate(shapes)])

    # -- forward and backward

    def before_forward(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Gather; the inputs come back such that the end of their backward is seen."""
        entering, self.in_forward = not self.in_forward, True
        self.gather()
        if torch.is_grad_enabled() and fsdp.gathers_again(self.told):
            self.saving.begin()
        tensors = fsdp.grad_tensors((args, kwargs)) if torch.is_grad_enabled() else ()
        if not entering or not tensors:
            return args, kwargs
        marked = _Passed.apply(self, *tensors)
        found: tuple[Any, Any] = fsdp.with_grad_tensors((args, kwargs), iter(marked))
        return found

    def after_forward(self) -> None:
        """Cut again, where it is asked for."""
        self.saving.end()
        if not fsdp.in_backward() and fsdp.reshards(self.told):
            self.cut()
        self.in_forward = False

    def before_backward(self) -> None:
        """Hold the whole parameters: a checkpoint may run the forward again."""
        self.passed = False
        self.gather()

    def after_backward(self) -> None:
        """Reduce what the backward left, or keep it."""
        self.passed = self._spent = True
        self.in_forward = False
        for parameter in self.parameters:
            parameter.take()
        if self.told.reshard_after_backward:
            self.cut()
        with torch.no_grad():
            if self.told.reduce_grads:
                self._reduce()
            else:
                for parameter in self.parameters:
                    if parameter.kept is not None and self._reduces_in is not None:
                        parameter.kept = parameter.kept.to(self._reduces_in)

    def left(self) -> list[str]:
        """The parameters whose gradient was not reduced."""
        if self._partial is not None:
            return [p.name for p in self.parameters]
        for parameter in self.parameters:
            parameter.take()
        return [p.name for p in self.parameters if p.kept is not None]

    @property
    def stays_whole(self) -> bool:
        """Whether a backward has passed, and the parameters were not cut again."""
        return self._whole and self._spent

    # -- the reductions

    def _reduce(self) -> None:
        given = []
        for parameter in self.parameters:
            grad, parameter.kept = parameter.kept, None
            if grad is None and self.told.reduce_scatter_unused_params:
                grad = parameter.nothing()
            if grad is not None:
                given.append((parameter, grad))
        if not given:
            return
        dtype = self._reduces_in or given[0][1].dtype
        before, after, scatter, copies = fsdp.factors(self.told, dtype)
        out = self._scattered([grad.to(dtype) for _, grad in given], before, scatter)
        if self._copies is not None:
            if self._partial is not None:
                out = out + self._partial
            self._partial = None if self.told.all_reduce_grads else out
            if self._partial is not None:
                return
            name = self._copies.name
            out = collectives.wait(collectives.all_reduce(out, _named(copies), name))
        out = out if after in (None, 1) else out / after
        out = out.to(self._gives) if self._gives is not None else out
        pieces = out.split([parameter.local.numel() for parameter, _ in given])
        for (parameter, _), piece in zip(given, pieces, strict=True):
            _give(parameter.shard, piece.view(parameter.local.shape))

    def _scattered(self, grads: list[torch.Tensor], before: Any, op: Any) -> torch.Tensor:
        """This rank's part of all gradients, one after the other."""
        ranks = self._scatters.size if self._scatters is not None else 1
        flat = torch.cat([grad.reshape(ranks, -1) for grad in grads], 1).reshape(-1)
        flat = flat if before in (None, 1) else flat / before
        if self._scatters is not None and ranks > 1:
            name = self._scatters.name
            started = collectives.reduce_scatter(flat, _named(op), ranks, name)
            return collectives.wait(started)
        factor = self.told.gradient_divide_factor
        return flat if factor is None else flat / factor


def _named(op: Any) -> str:
    name = fsdp.op_named(op)
    if name is None:
        raise CaptureError(
            "FSDP2 reduces by a product with a factor, which has no name in a graph",
            where=user_line() or None,
            got=str(op),
            fix="model.set_force_sum_reduction_for_comms(True)",
        )
    return name


def _give(shard: Any, piece: torch.Tensor) -> None:
    """Add this rank's part of a gradient to that of its shard."""
    if shard.grad is not None:
        local_of(shard.grad).add_(piece)
    else:
        kinds = shard.device_mesh, shard.placements, shard.shape, shard.stride()
        shard.grad = dtensor_around(piece, *kinds)
    for hook in _compat.tensor_hooks(shard)[1]:
        hook(shard)


class _Gathered(torch.autograd.Function):
    """Gathers a group's parameters as a part of the forward, and not of autograd's graph: their
    gradients are taken from them one by one."""

    @staticmethod
    def forward(ctx: Any, group: Group) -> tuple[torch.Tensor, ...]:
        return group.gathered()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> None:
        """None comes: no input needs a gradient."""


class _Passed(torch.autograd.Function):
    """Marks a module's inputs: their gradients come once the module's backward has passed."""

    @staticmethod
    def forward(ctx: Any, group: Group, *inputs: torch.Tensor) -> Any:
        ctx.group = group
        return inputs

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        ctx.group.after_backward()
        return None, *grads
