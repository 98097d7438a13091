"""A forgotten seed or broadcast, named: parameters compared over the ranks at a step's first call.

Digests go over the control plane with the vote: no collective, nothing that could hang. Of a large
parameter a strided sample is hashed, with its shape: what another seed drew differs everywhere.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from lockstep.capture.layout import local_of
from lockstep.capture.marks import marks_of
from lockstep.capture.state import State
from lockstep.errors import CheckError, ReplicaError
from lockstep.fleet.replicas import Odd
from lockstep.fleet.say import ranks_text
from lockstep.run.options import Options

if TYPE_CHECKING:
    from lockstep.run.session import Session

SAMPLE = 1 << 12  # elements of a parameter that are hashed


@dataclass
class Replicas:
    """The parameters that may be copies of other ranks', along some axes.

    Args:
        axes: axis -> name -> the parameter.
        beside: axis -> where this rank is on the other axes.
        said: (axis, name) of those that a mark declares to be the same.
    """

    axes: dict[str, dict[str, torch.Tensor]] = field(default_factory=dict)
    beside: dict[str, str] = field(default_factory=dict)
    said: set[tuple[str, str]] = field(default_factory=set)
    odd: Odd = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._digests: dict[str, str] = {}

    @classmethod
    def of(cls, state: State, options: Options) -> Replicas:
        """Choose what to compare: along data axes what no mark calls a shard, along others what a
        mark calls the same on all ranks."""
        found = cls()
        if options.mesh is None:
            return found
        marks = marks_of(state, options.mesh)
        coordinate = options.mesh.get_coordinate()
        for at, (axis, size) in enumerate(options.sizes.items()):
            held: dict[str, torch.Tensor] = {}
            for slot in state.parameters if size > 1 and coordinate is not None else ():
                said = marks.get(slot.name, {}).get(axis)
                if said.kind in "RI" if said is not None else axis in options.data:
                    held[slot.name] = local_of(slot.tensor)
                    found.said |= {(axis, slot.name)} if said is not None else set()
            if held:
                found.axes[axis] = held
                found.beside[axis] = str([c for i, c in enumerate(coordinate) if i != at])
        return found

    def taken(self) -> Replicas:
        """Itself, which from now on means the values of now."""
        self._hash()
        return self

    # -- what the vote asks for

    def summary(self) -> dict[str, Any]:
        """One digest of everything, by axis."""
        self._hash()
        return {
            axis: {"beside": self.beside[axis], "digest": _short(sorted(self._named(axis).items()))}
            for axis in self.axes
        }

    def digests(self, axes: Sequence[str]) -> dict[str, Any]:
        """One digest by parameter, along the axes that were found to differ."""
        return {
            axis: {"beside": self.beside[axis], "names": self._named(axis)}
            for axis in axes
            if axis in self.axes
        }

    def heard(self, odd: Odd) -> None:
        """Take in which parameters differ, and on which ranks."""
        self.odd = odd

    def apart(self) -> dict[str, frozenset[str]]:
        """Parameter -> the axes along which its values are known to differ."""
        found: dict[str, set[str]] = {}
        for axis, names in self.odd.items():
            for name in names:
                found.setdefault(name, set()).add(axis)
        return {name: frozenset(axes) for name, axes in found.items()}

    def _named(self, axis: str) -> dict[str, str]:
        return {name: self._digests[name] for name in self.axes[axis]}

    def _hash(self) -> None:
        if self._digests:
            return
        held = {name: tensor for named in self.axes.values() for name, tensor in named.items()}
        self._digests = digests_of(held)

    # -- what it means

    def refuse_changed(self, step: str, checked: dict[str, Any], path: str | None) -> None:
        """Refuse an artifact whose check let gradients pass because each rank had its own values.

        Raises:
            CheckError: the ranks hold copies now, so that these gradients must be reduced.
        """
        for axis, names in checked.get("own", {}).items():
            equal = [name for name in names if name not in self.odd.get(axis, {})]
            if equal and axis in self.axes:
                raise CheckError(
                    f"{step} was checked when each rank of {axis} had parameters of its own",
                    where=path,
                    got=f"the same {', '.join(equal[:4])} on every rank of {axis}",
                    want="other values on each rank, since nothing reduces their gradients",
                    why="copies that step by their own gradients drift apart",
                    fix="delete the artifact: the next start checks the step anew",
                )

    def judge(self, step: str, checked: dict[str, Any], here: Session) -> None:
        """Tell of parameters that are not the copies that the step takes them for.

        What a mark declares is an error. What is only assumed, since the batches differ along the
        axis and the step reduces the gradient over it, is a warning.

        Args:
            checked: the artifact's "check"; its "replicas" are what the program takes for copies.

        Raises:
            ReplicaError: on every rank.
        """
        for axis, names in self.odd.items():
            said = {n: r for n, r in names.items() if (axis, n) in self.said}
            copies = set(checked.get("replicas", {}).get(axis, ())) - set(said)
            taken = {n: r for n, r in names.items() if n in copies}
            here.journal.event("apart", step=step, axis=axis, names=[*said, *taken])
            if said:
                why = f"they are declared to be the same on every rank of {axis}"
                raise _told(step, axis, said, f"{why}; copies that start apart stay apart")
            if taken:
                why = f"their gradients are reduced over {axis}: copies that start apart stay apart"
                here.say(f"warning: {_told(step, axis, taken, why)}")


def _told(step: str, axis: str, odd: dict[str, list[int]], why: str) -> ReplicaError:
    names = list(odd)
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    ranks = sorted({rank for members in odd.values() for rank in members})
    root = names[0].partition(".")[0]
    verb = "parameters differ" if len(names) > 1 else "parameter differs"
    return ReplicaError(
        f"{len(names)} {verb} between the ranks of {axis} at the first call of {step}",
        where=", ".join(names[:4]) + more,
        got=f"other values on {ranks_text(ranks)}",
        want=f"the same values on every rank of {axis}",
        why=why,
        fix=[
            f"torch.manual_seed(0) on every rank, before {root} is made",
            f"for p in {root}.parameters(): torch.distributed.broadcast(p.data, 0)",
            f"ls.type_parameters({root}, ...) with {axis}=ls.V, where each rank is to have its own",
        ],
    )


def digests_of(tensors: dict[str, torch.Tensor]) -> dict[str, str]:
    """A short digest of each tensor: dtype, shape, and at most `SAMPLE` elements, evenly spaced.

    Each device is read once.

    Example:
        >>> a, b = digests_of({"a": torch.zeros(3), "b": torch.zeros(3)}).values()
        >>> a == b, a == digests_of({"a": torch.ones(3)})["a"]
        (True, False)
    """
    samples = {name: _sample(tensor) for name, tensor in tensors.items()}
    found: dict[str, str] = {}
    for device in dict.fromkeys(sample.device for sample in samples.values()):
        names = [name for name, sample in samples.items() if sample.device == device]
        together = torch.cat([samples[name] for name in names]).cpu()
        data, at = _bytes(together), 0
        for name in names:
            part, at = data[at : at + len(samples[name])], at + len(samples[name])
            head = f"{tensors[name].dtype} {list(tensors[name].shape)} "
            found[name] = hashlib.blake2b(head.encode() + part, digest_size=8).hexdigest()
    return found


def _sample(tensor: torch.Tensor) -> torch.Tensor:
    """Some of a tensor's elements as bytes, on its device; the first and the last among them."""
    flat = tensor.detach().reshape(-1)
    step = -(-flat.numel() // SAMPLE) or 1
    picked = torch.cat([flat[::step], flat[-1:]])
    return picked.contiguous().view(torch.uint8)


def _bytes(tensor: torch.Tensor) -> bytes:
    return ctypes.string_at(tensor.data_ptr(), tensor.numel())


def _short(value: Any) -> str:
    return hashlib.blake2b(str(value).encode(), digest_size=16).hexdigest()
