"""What the traced ranks say of each step, compared: fingerprints, graphs, and generated code."""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lockstep.build.early import formulas, settled
from lockstep.build.likeness import compared
from lockstep.errors import CaptureError
from lockstep.fleet.judge import differing

SHOWN = 4  # fields, or lines of code, that are told


@dataclass
class Council:
    """One step's ranks.

    Args:
        ranks: that are heard, the building one first.
        every: whether these are all ranks of the world.
        settled: what all of them ask for is known.
    """

    step: str
    ranks: list[int]
    every: bool
    settled: bool = False
    asked: dict[int, dict[str, Any]] = field(default_factory=dict)
    views: dict[int, dict[str, Any]] = field(default_factory=dict)
    code: dict[int, str] = field(default_factory=dict)
    likeness: dict[str, Any] = field(default_factory=dict)

    def missing(self, said: dict[int, Any]) -> list[int]:
        """The ranks that have not said something yet."""
        return [rank for rank in self.ranks if rank not in said]

    def formulas(self) -> list[Any]:
        """The formulas that take the place of each rank's own numbers: path, record.

        Raises:
            CaptureError: the ranks ask for different programs, and no formula mends that.
        """
        tables = [self.asked[rank]["table"] for rank in self.ranks]
        found = formulas(tables, [self.asked[rank]["place"] for rank in self.ranks])
        first = settled(tables[0], found)
        for rank, table in zip(self.ranks, tables, strict=True):
            rows = differing(settled(table, found), first)
            if rows:
                raise _unlike(self.step, self.ranks[0], rank, rows)
        return [[path, formula.record()] for path, formula in found]

    def graphs(self) -> dict[str, Any]:
        """The certificate that all ranks captured one graph.

        Raises:
            CaptureError: two did not; names the line, and both values.
        """
        first, *others = self.ranks
        rows = json.loads(Path(self.views[first]["rows"]).read_text())
        likeness: dict[str, Any] = {}
        for rank in others:
            likeness = compared(first, rows, self.views[rank])
        return {**likeness, "ranks": sorted(self.ranks), "every rank": self.every}

    def texts(self, ranks: Sequence[int]) -> dict[str, Any]:
        """The certificate that ranks generated the same code from it.

        Raises:
            CaptureError: they did not; shows the first lines that differ.
        """
        one, other = (Path(self.code[rank]).read_text().splitlines() for rank in ranks)
        if one != other:
            lines = [
                line
                for line in difflib.unified_diff(one, other, n=0, lineterm="")
                if line[:1] in "+-" and line[:3] not in ("+++", "---")
            ]
            raise CaptureError(
                f"ranks {ranks[0]} and {ranks[1]} generate different code for {self.step}",
                got="\n".join(lines[: 2 * SHOWN]),
                why="the code of one rank would be shipped to all of them",
                fix="lockstep build on a machine whose compiler options are the same for all",
            )
        return {"code of": list(ranks), "code lines": len(one)}


def _unlike(step: str, first: int, rank: int, rows: list[tuple[str, str, str]]) -> CaptureError:
    return CaptureError(
        f"ranks {first} and {rank} ask for different programs at {step}",
        got="\n".join(f"{name}: {other} on rank {rank}" for name, other, _ in rows[:SHOWN]),
        want="\n".join(f"{name}: {mine} on rank {first}" for name, _, mine in rows[:SHOWN]),
        why="one program runs on every rank, so all must ask for the same one",
        fix=[
            "read the rank inside the step: dist.get_rank(), mesh.get_local_rank(axis)",
            "hold what differs in a tensor: register_buffer(...), or pass it as an argument",
        ],
    )
