"""Messages between neighbours on a mesh axis, as operators of a graph.

A place is relative, so that the program names no rank: the peer is computed from this rank's
coordinate as the operator runs. Beyond the last place comes the first. Each operator takes what the
message before it gave, and so no back end can change their order. Import this module to register
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from lockstep.errors import UsageError
from lockstep.spmd import ops
from lockstep.spmd.mesh import axis as axis_named

_MOST = 1 << 16  # messages of one kind in a step: the rest of a tag says between which places
_under_way: list[tuple[Any, torch.Tensor]] = []  # sent, and not known to have left


def peer(axis: str, place: int) -> int:
    """The coordinate at a relative place: 1 is the next rank, -1 the one before."""
    size = axis_named(axis).size
    if place % size == 0:
        raise UsageError(f"a message along {axis}, where this rank is alone", got="1 rank")
    return (ops.coordinate(axis) + place) % size


def tag_of(axis: str, to: int, number: int) -> int:
    """What sender and receiver call a message alike: how far it goes, and which of those it is."""
    if number >= _MOST:
        raise UsageError(f"more than {_MOST} messages to one place in a step")
    return (axis_named(axis).size + to) * _MOST + number


def send(x: torch.Tensor, after: torch.Tensor | None, axis: str, to: int, number: int) -> Any:
    """Start to send a tensor; the next message is `after` what is returned, which is empty."""
    group, held = axis_named(axis).group, x.detach().clone(memory_format=torch.contiguous_format)
    work = group.send([held], peer(axis, to), tag_of(axis, to, number))
    _under_way.append((work, held))
    return x.new_empty(0)


def recv(
    like: torch.Tensor, after: torch.Tensor | None, axis: str, from_: int, number: int
) -> torch.Tensor:
    """Wait for a tensor of the form of `like`."""
    out = torch.empty_like(like, memory_format=torch.contiguous_format, requires_grad=False)
    group = axis_named(axis).group
    group.recv([out], peer(axis, from_), tag_of(axis, -from_, number)).wait()
    return out


def settle(x: torch.Tensor, after: torch.Tensor | None) -> torch.Tensor:
    """Wait until all that was sent has left; a copy of `x`."""
    while _under_way:
        work, _ = _under_way.pop(0)
        work.wait()
    return x.detach().clone()


def behind(x: torch.Tensor, after: Sequence[torch.Tensor]) -> torch.Tensor:
    """A copy of `x` that no compiler can make before `after` is there."""
    return x.clone()


_MESSAGE = "Tensor x, Tensor? after, str axis, int place, int number"
_SCHEMAS = {
    send: f"send({_MESSAGE}) -> Tensor",
    recv: f"recv({_MESSAGE}) -> Tensor",
    settle: "settle(Tensor x, Tensor? after) -> Tensor",
    behind: "behind(Tensor x, Tensor[] after) -> Tensor",
}
_FAKES = {
    send: lambda x, *_: x.new_empty(0),
    recv: lambda x, *_: torch.empty_like(x, memory_format=torch.contiguous_format),
    settle: lambda x, *_: x.clone(),
    behind: lambda x, *_: x.clone(),
}
_library = torch.library.Library(ops.NAMESPACE, "FRAGMENT")
for _run, _schema in _SCHEMAS.items():
    _library.define(_schema)
    _library.impl(_run.__name__, _run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{ops.NAMESPACE}::{_run.__name__}", _FAKES[_run], lib=_library)

_namespace = getattr(torch.ops, ops.NAMESPACE)
SEND, RECV = _namespace.send.default, _namespace.recv.default
SETTLE, BEHIND = _namespace.settle.default, _namespace.behind.default
