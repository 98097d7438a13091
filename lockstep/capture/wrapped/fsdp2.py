"""FSDP2 in a step: where it is found, what it asks for, and its trace."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lockstep import _compat
from lockstep import _compat_fsdp as fsdp
from lockstep.capture.hooks import swapped
from lockstep.capture.origin import user_line
from lockstep.capture.refusal import refuse
from lockstep.capture.wrapped.shards import Group, Parameter
from lockstep.errors import CaptureError, UnreducedError


@dataclass(frozen=True)
class Sharded:
    """A module in `fully_shard` that a step reaches.

    Args:
        name: of the module.
        state: what `fully_shard` keeps for it.
    """

    name: str
    state: Any
    kind = "FSDP2"
    final = True  # its groups do not change as it runs

    @property
    def switches(self) -> tuple[Any, ...]:
        """All that decides on its program and that the user may set at any time."""
        return fsdp.switches_of(self.state), fsdp.told(self.state)

    def switch(self, switched: dict[str, Any]) -> None:
        """Set what a step has set; see `sharding`."""
        if self.name in switched:
            fsdp.switch(self.state, switched[self.name])

    def settle(self) -> None:
        """Nothing is open."""

    def words(self, names: dict[int, str]) -> dict[str, Any]:
        """All that a program depends on, the same on every rank.

        Args:
            names: id of a parameter -> its name.
        """
        return {
            "switches": [list(told) for told in fsdp.switches_of(self.state)],
            "told": [list(told) for told in fsdp.told(self.state)],
            "precision": fsdp.precision(self.state),
            "groups": [
                [names[id(places[0][0][places[0][1]])] for places in fsdp.places(group)]
                for group in fsdp.groups(self.state)
            ],
        }


def sharded_of(name: str, module: torch.nn.Module) -> list[Sharded]:
    """The module itself where `fully_shard` was called with it.

    Raises:
        CaptureError: with an option under which it does what no graph has.
    """
    state = fsdp.state_of(module)
    if state is None:
        return []
    fsdp.ready(state)
    _refuse_unusual(name, state)
    return [Sharded(name, state)]


@contextlib.contextmanager
def sharding(
    found: Sequence[Sharded],
    stand_ins: dict[int, torch.Tensor],
    names: dict[int, str],
    switched: dict[str, Any],
) -> Iterator[Callable[[], None]]:
    """Let every module in `fully_shard` do on stand-ins, while a step is traced, what its hooks do.

    Args:
        found: of the step.
        stand_ins: id of a real tensor -> its stand-in; the modules hold these.
        names: id of a real parameter -> its name.
        switched: module -> what the step has set of its switches; filled.

    Yields:
        What is to be called once the step has returned: it refuses gradients that are left.

    Raises:
        CaptureError: in the trace, from a module that the step hides.
    """
    if not fsdp.is_there():
        yield lambda: None
        return
    named = {id(stand_ins[key]): name for key, name in names.items()}
    before = {one.name: fsdp.switches_of(one.state) for one in found}
    run = _Run()
    run.traced = {id(one.state): _Traced(one, run, named) for one in found}
    first, last = fsdp.around_forward()
    gather, cut = fsdp.by_hand()
    swaps: dict[Any, Any] = {first: run.before, last: run.after, gather: run.gather, cut: run.cut}
    try:
        with swapped(swaps):
            yield run.finish
        now = {one.name: fsdp.switches_of(one.state) for one in found}
        switched.update({name: told for name, told in now.items() if told != before[name]})
    finally:
        run.stop()
        for one in found:
            fsdp.switch(one.state, before[one.name])


class _Run:
    """All modules of a trace; `root` is the one whose forward runs and is in no other's."""

    def __init__(self) -> None:
        self.traced: dict[int, _Traced] = {}
        self.root: _Traced | None = None
        self._queued = False

    def before(self, original: Any, args: Any, kwargs: Any) -> Any:
        state, _, inputs, named = args
        return self._of(state).before(inputs, named)

    def after(self, original: Any, args: Any, kwargs: Any) -> Any:
        state, _, _, output = args
        return self._of(state).after(output)

    def gather(self, original: Any, args: Any, kwargs: Any) -> Any:
        """`unshard()`: all of it is done at once, and there is nothing to wait for."""
        for group in self._of(fsdp.state_of(args[0])).groups:
            group.gather()
        return _Done() if args[1:] == (True,) or kwargs.get("async_op") else None

    def cut(self, original: Any, args: Any, kwargs: Any) -> None:
        """`reshard()`."""
        for group in self._of(fsdp.state_of(args[0])).groups:
            group.cut()

    def queue(self) -> None:
        """Have groups whose inputs need no gradient reduce at the end of the backward."""
        if not self._queued:
            self._queued = True
            _compat.after_backward(self._backward_ends)

    def finish(self) -> None:
        """Put all shards back, and refuse gradients that no program would hand to the next call."""
        groups = [group for traced in self.traced.values() for group in traced.groups]
        left = [name for group in groups for name in group.left()]
        whole = [group.name for group in groups if group.stays_whole]
        for group in groups:
            group.cut()
        if left:
            refuse(_left(left))
        if whole:
            refuse(_whole(whole))

    def stop(self) -> None:
        """Let nothing stay around that a trace without an end has begun."""
        for traced in self.traced.values():
            for group in traced.groups:
                group.saving.end()

    def _backward_ends(self) -> None:
        self._queued, self.root = False, None
        for traced in self.traced.values():
            for group in reversed(traced.groups):
                if not group.passed:
                    group.after_backward()
                group.passed = False
            traced.in_forward = traced.in_backward = False

    def _of(self, state: Any) -> _Traced:
        found = self.traced.get(id(state))
        if found is None:
            raise _hidden(state)
        return found


class _Traced:
    """One module in `fully_shard`, or several that are gathered together, while it is traced."""

    def __init__(self, one: Sharded, run: _Run, named: dict[int, str]) -> None:
        self.name, self.state, self._run = one.name, one.state, run
        _refuse_unusual(one.name, one.state)  # it may have been set since it was found
        self.groups = [self._group(told, named) for told in fsdp.groups(one.state)]
        self.in_forward = self.in_backward = False

    def _group(self, told: Any, named: dict[int, str]) -> Group:
        if fsdp.kept(told):
            raise _kept(self.name)
        parameters = []
        dtypes, _, _ = fsdp.dtypes(told)
        for places, dtype in zip(fsdp.places(told), dtypes, strict=True):
            mapping, key = places[0]
            shard = mapping[key]
            parameters.append(Parameter(named[id(shard)], shard, places, dtype))
        return Group(self.name, told, parameters)

    def before(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        if self.in_backward:  # a checkpoint runs the forward again
            for group in self.groups:
                group.gather()
            return fsdp.cast_inputs(self.state, args, kwargs)
        if not self.in_forward and self._run.root is None:
            self._run.root = self
        self.in_forward = True
        args, kwargs = fsdp.cast_inputs(self.state, args, kwargs)
        for group in self.groups:
            args, kwargs = group.before_forward(args, kwargs)
        return args, kwargs

    def after(self, output: Any) -> Any:
        if not self.in_backward:
            for group in self.groups:
                group.after_forward()
            if torch.is_grad_enabled():
                for tensor in fsdp.grad_tensors(output):
                    tensor.register_hook(self._backward_begins)
            self.in_forward = False
            if self._run.root is self:
                self._refuse_unfinished()
                self._run.root = None
        return fsdp.cast_output(self.state, output)

    def _backward_begins(self, grad: torch.Tensor) -> torch.Tensor:
        self._run.queue()
        if not self.in_backward:
            self.in_backward = True
            for group in self.groups:
                group.before_backward()
        return grad

    def _refuse_unfinished(self) -> None:
        for traced in self._run.traced.values():
            if traced is not self and fsdp.unfinished(traced.state):
                raise CaptureError(
                    f"{traced.name} is in one fully_shard with modules that have not run when the "
                    f"forward of {self.name} ends",
                    where=user_line() or None,
                    want="every module of a fully_shard([...]) to run in that forward",
                    fix="a fully_shard(module) for each of them",
                )


class _Done:
    """What `unshard(async_op=True)` returns."""

    def wait(self) -> None:
        """It is done."""


# -- what is refused


def _refuse_unusual(name: str, state: Any) -> None:
    unusual = fsdp.unusual(state)
    if unusual:
        raise CaptureError(
            f"{name} is wrapped by fully_shard with what no graph holds",
            where=user_line() or None,
            got=", ".join(unusual),
            want="shards of dimension 0 that torch gathers and reduces by itself",
            why="the collectives are taken into the graph as FSDP2 does them by itself",
            fix=[
                "leave it out",
                'pass the plain model, sharded by lockstep.parallel.fully_shard(model, "fsdp")',
            ],
        )


def _hidden(state: Any) -> CaptureError:
    kinds = ", ".join(type(module).__name__ for module in fsdp.modules(state))
    return CaptureError(
        "the step calls a model in fully_shard that is none of its inputs",
        where=user_line() or None,
        got=kinds,
        why="whether and how it reduces gradients would be frozen into the program of every rank",
        fix="pass the wrapped model itself: train_step(model, ...)",
    )


def _kept(name: str) -> CaptureError:
    return CaptureError(
        f"{name} holds gradients from before the step that FSDP2 has not reduced",
        where=user_line() or None,
        why="they lie whole, outside of .grad, and no program sees them",
        fix="run the backwards without gradient sync in the same step as the one that reduces",
    )


def _left(names: list[str]) -> UnreducedError:
    shown = "\n".join(names[:8] + [f"and {len(names) - 8} more"] * (len(names) > 8))
    return UnreducedError(
        "gradients are not reduced when the step ends",
        where=user_line() or None,
        got=shown,
        want="one backward after set_requires_gradient_sync(True), in the same step",
        why="FSDP2 keeps them apart from .grad: no optimizer has read them, and no program "
        "hands them to its next call",
        fix="model.set_requires_gradient_sync(True) before the last backward of the step",
    )


def _whole(names: list[str]) -> CaptureError:
    return CaptureError(
        f"the parameters of {names[0]} stay whole when the step ends",
        where=user_line() or None,
        got=f"set_reshard_after_backward(False) for {', '.join(names[:8])}",
        why="the next forward would compute with them as they are now, whatever the optimizer does",
        fix="model.set_reshard_after_backward(True) before the last backward of the step",
    )
