"""Where the collectives of ranks that run a step live meet: computed from all operands of a group.

If none of the ranks can go on, none ever will: that is known at once, with every rank's line, and
no time limit is needed for it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from lockstep.capture.binding import dtype_name
from lockstep.checker.finding import Finding
from lockstep.checker.lines import source_of
from lockstep.checker.order import Called, first_difference
from lockstep.checker.ranks import coordinates, group_of
from lockstep.checker.simulation.arithmetic import COLLECTIVES


class Parted(Exception):
    """The ranks' collectives do not meet.

    Args:
        finding: where.
        live: why the step ran live.
    """

    def __init__(self, finding: Finding, live: str = "") -> None:
        super().__init__(finding.what)
        self.finding, self.live = finding, live


@dataclass(frozen=True)
class Start:
    """One collective that a rank starts.

    Args:
        number: of the rank's collectives, from 1.
        arguments: the operand first; None where it comes of results that are not known yet.
    """

    number: int
    op: str
    axis: str
    arguments: tuple[Any, ...] | None
    called: Called

    def knowing(self, arguments: tuple[Any, ...] | None) -> Start:
        """The same with other arguments, or with none."""
        return dataclasses.replace(self, arguments=arguments)


def start(number: int, op: str, axis: str, arguments: tuple[Any, ...], line: str) -> Start:
    """A collective with its description; the operand is a copy of its own."""
    operand, *rest = arguments
    words = [op.rstrip("_"), *(str(word) for word in rest if isinstance(word, (str, int)))]
    shape = f"{dtype_name(operand.dtype)}{list(operand.shape)}"
    splits = (tuple(rest[1]), tuple(rest[0])) if op == "all_to_all_single" else None
    called = Called(" ".join(words), axis, shape, "", line, str, splits)
    own = operand.detach().clone(memory_format=torch.contiguous_format)
    return Start(number, op, axis, (own, *rest), called)


@dataclass
class Meeting:
    """The collectives of all ranks of a mesh.

    Args:
        mesh: axis -> size, outermost first.
        results: of each rank, by the number of its collective.
    """

    mesh: Mapping[str, int]
    results: list[dict[int, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._places = coordinates(self.mesh)
        self._starts: list[dict[int, Start]] = [{} for _ in self._places]
        self.results = [{} for _ in self._places]

    def add(self, rank: int, start: Start) -> None:
        """Note that a rank has started a collective; once more where its operand is known now."""
        self._starts[rank][start.number] = start

    def meet(self) -> list[tuple[int, int]]:
        """Compute what all ranks of a group have started.

        Returns:
            (rank, number) of each new result.

        Raises:
            Parted: the ranks of a group start different ones.
        """
        new = []
        for axis in dict.fromkeys(s.axis for starts in self._starts for s in starts.values()):
            for rank in range(len(self._places)):
                group = group_of(self._places, self.mesh, rank, axis)
                if rank == group[0]:
                    new += self._meet_along(axis, group)
        return new

    def _meet_along(self, axis: str, group: list[int]) -> list[tuple[int, int]]:
        new = []
        rows = [self._along(axis, rank) for rank in group]
        for heads in zip(*rows, strict=False):
            calls = {rank: [head.called] for rank, head in zip(group, heads, strict=True)}
            if first_difference(axis, calls):
                whole = {rank: [s.called for s in self._along(axis, rank)] for rank in group}
                found = first_difference(axis, whole)
                assert found is not None
                raise Parted(found)
            if heads[0].number in self.results[group[0]]:
                continue
            operands = [head.arguments for head in heads if head.arguments is not None]
            if len(operands) < len(heads):
                continue
            with torch.no_grad():
                results = COLLECTIVES[f"_c10d_functional.{heads[0].op}"](operands)
            for rank, head, result in zip(group, heads, results, strict=True):
                self.results[rank][head.number] = result
                new.append((rank, head.number))
        return new

    def _along(self, axis: str, rank: int) -> list[Start]:
        return [start for start in self._starts[rank].values() if start.axis == axis]

    def stuck(self, waits_for: Mapping[int, int]) -> Finding:
        """A finding for ranks of which none can go on.

        Args:
            waits_for: rank -> the number of the collective that it waits for; others have ended.
        """
        waits = {rank: self._starts[rank][number].called for rank, number in waits_for.items()}
        told = [
            f"rank {rank}: waits in {waits[rank]}, on {waits[rank].axis}"
            if rank in waits
            else f"rank {rank}: has left the step"
            for rank in range(len(self._places))
        ]
        first = next(iter(waits.values()))
        lines = [call.line for call in waits.values() if call.line]
        return Finding(
            "LS510",
            f"a collective on {first.axis} is not called by every rank",
            line=first.line,
            source=source_of(first.line),
            axis=first.axis,
            got="\n".join(told),
            want=f"the same sequence of collectives on every rank of {first.axis}",
            why="the ranks wait for each other for ever",
            fix="decide by a value that is the same on every rank, such as a reduced one",
            witness="order",
            related=tuple(line for line in dict.fromkeys(lines) if line != first.line),
        )
