"""DistributedDataParallel in a step: where it is found, what it asks for, and its trace."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from lockstep import _compat_ddp
from lockstep.capture.collectives import name_axis
from lockstep.capture.hooks import swapped
from lockstep.capture.origin import user_line
from lockstep.capture.wrapped.reducer import Reducer, Send, divided, mean
from lockstep.errors import CaptureError


@dataclass(frozen=True)
class Wrapper:
    """A DDP that a step reaches.

    Args:
        name: of the module that the user has wrapped.
        keeper: the DDP itself, or what `replicate` keeps it in.
    """

    name: str
    keeper: Any
    kind = "DDP"

    @property
    def ddp(self) -> Any:
        """None where `replicate` has not made it yet: that is for the first forward."""
        return _compat_ddp.wrapped(self.keeper)

    @property
    def final(self) -> bool:
        """Whether its buckets stay what they are."""
        return self.ddp is not None and _compat_ddp.final(self.ddp)

    @property
    def switches(self) -> tuple[bool, bool]:
        """What `no_sync()` and earlier forwards have set for the next: whether its gradients are
        reduced, and whether it begins with the buffers of the first rank."""
        return _compat_ddp.switches(self.keeper)

    def switch(self, sends: dict[str, Any]) -> None:
        """Set what a step of its forwards has left; see `reducing`."""
        if self.name in sends:
            self.ddp.require_forward_param_sync = sends[self.name]

    def settle(self) -> None:
        """Make the last buckets, if that is due. Collective."""
        if self.ddp is not None:
            _compat_ddp.final(self.ddp, ask=True)

    def words(self, names: dict[int, str]) -> dict[str, Any]:
        """All that a program depends on, the same on every rank.

        Args:
            names: id of a parameter -> its name.
        """
        found: dict[str, Any] = {"switches": list(self.switches)}
        if self.ddp is None or _compat_ddp.reducer_in_python(self.ddp):
            return found
        found["hook"] = _hook_name(self.ddp)
        found["buckets"] = [[names[id(p)] for p in b] for b in _compat_ddp.buckets(self.ddp)]
        return found


def wrappers_of(name: str, module: torch.nn.Module) -> list[Wrapper]:
    """The DDP that a module is, or that `replicate` keeps for it.

    Raises:
        CaptureError: one with an option under which it does what no graph has.
    """
    wraps = isinstance(module, torch.nn.parallel.DistributedDataParallel)
    keeper = module if wraps else _compat_ddp.of_replicate(module)
    if keeper is None:
        return []
    found = Wrapper(name, keeper)
    if found.ddp is not None:
        _refuse_unusual(name, found.ddp)
    return [found]


@contextlib.contextmanager
def reducing(
    wrappers: Sequence[Wrapper],
    stand_ins: dict[int, torch.Tensor],
    names: dict[int, str],
    switched: dict[str, Any],
) -> Iterator[None]:
    """Let every DDP do on stand-ins, while a step is traced, what its reducer does on real ones.

    Args:
        wrappers: of the step.
        stand_ins: id of a real tensor -> its stand-in.
        names: id of a real parameter -> its name.
        switched: wrapper -> whether the forward after the step begins with sent buffers; filled.

    Raises:
        CaptureError: in the trace, from a DDP that the step hides.
    """
    known = {id(one.ddp): one for one in wrappers if one.ddp is not None}
    reducers = {key: _reducer(one, stand_ins, names) for key, one in known.items()}
    sends = {key: one.switches[1] for key, one in known.items()}

    def before(original: Any, args: Any, kwargs: Any) -> Any:
        ddp, *inputs = args
        if id(ddp) not in known:
            raise _hidden(ddp)
        if ddp.forward_sync_buffers and sends[id(ddp)] and not _compat_ddp.reducer_in_python(ddp):
            reducers[id(ddp)].share_buffers()
        return tuple(inputs), kwargs

    def after(original: Any, args: Any, kwargs: Any) -> Any:
        ddp, output = args
        if not _compat_ddp.reducer_in_python(ddp):
            sends[id(ddp)] = torch.is_grad_enabled() and ddp.require_backward_grad_sync
            reducers[id(ddp)].arm(sends[id(ddp)])
        return output

    first, last = _compat_ddp.around_forward()
    with swapped({first: before, last: after}):
        yield
    switched.update({one.name: sends[key] for key, one in known.items()})


def _reducer(
    wrapper: Wrapper, stand_ins: dict[int, torch.Tensor], names: dict[int, str]
) -> Reducer:
    ddp, name = wrapper.ddp, wrapper.name
    _refuse_unusual(name, ddp)  # one of `replicate` was not there before its first forward
    axis = name_axis(ddp.process_group, f"{name}, wrapped by DDP,")
    layout = [[stand_ins[id(p)] for p in bucket] for bucket in _compat_ddp.buckets(ddp)]
    named = {id(stand_ins[key]): name for key, name in names.items()}
    send = _SENDS[_hook_name(ddp)]
    if send is mean and ddp.batched_grad_copy:  # the bucket is divided once all are in it
        send = divided
    return Reducer(name, ddp, axis, layout, send, named)


# -- what is communicated


def _as(dtype: torch.dtype) -> Send:
    return lambda flat, ranks: flat.to(dtype) / ranks


_SENDS: dict[str, Send] = {
    "": mean,
    "allreduce_hook": divided,
    "fp16_compress_hook": _as(torch.float16),
    "bf16_compress_hook": _as(torch.bfloat16),
}


def _hook_name(ddp: Any) -> str:
    """The hook's name among torch's own; "" where none is registered, and "?" for any other."""
    hooks = _compat_ddp.hooks(ddp)
    if not hooks:
        return ""
    hook, group = hooks[0]
    name = getattr(hook, "__name__", "?")
    own = getattr(default_hooks, name, None) is hook and group in (None, ddp.process_group)
    return name if own and name in _SENDS else "?"


# -- what is refused


def _refuse_unusual(name: str, ddp: Any) -> None:
    unusual = _compat_ddp.unusual(ddp)
    if _hook_name(ddp) == "?":
        hook = _compat_ddp.hooks(ddp)[0][0]
        unusual.append(f"the communication hook {getattr(hook, '__qualname__', hook)}")
    if not unusual:
        return
    raise CaptureError(
        f"{name} is wrapped by DistributedDataParallel with what no graph holds",
        where=user_line() or None,
        got=", ".join(unusual),
        want=f"no hook, or one of default_hooks: {', '.join(n for n in _SENDS if n)}",
        why="the reductions are taken into the graph as its reducer does them by itself",
        fix=[
            "leave it out",
            'pass the plain model and call ls.reduce_grads(model, dp="mean") after backward()',
        ],
    )


def _hidden(ddp: Any) -> CaptureError:
    return CaptureError(
        "the step calls a model in a DistributedDataParallel that is none of its inputs",
        where=user_line() or None,
        got=f"DistributedDataParallel around {type(ddp.module).__name__}",
        why="whether and how it reduces gradients would be frozen into the program of every rank",
        fix="pass the wrapped model itself: train_step(model, ...)",
    )
