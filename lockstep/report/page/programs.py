"""The programs of a run: which artifact, who built it, who loaded it, and what is known of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from lockstep.build.describe import check_rows
from lockstep.report.page.collectives import Row, by_axis
from lockstep.report.page.phases import program_of
from lockstep.report.page.ranks import ranges

Event = dict[str, Any]


@dataclass(frozen=True)
class Program:
    """One variant of a step, as its ranks had it ready.

    Args:
        digests: of the artifacts that ranks had; one, where all ran the same code. Under torch's
            own compiler, of the graphs in its cache.
        by: the rank that built it in this job; None where it was loaded, or each compiled it.
        built: when, by which rank of how many, in what seconds; as in the manifest.
        cost_s: seconds of the build; of torch's ways, of all ranks' compiling together.
        saved_s: the seconds that ranks did not spend building it.
        versions: of torch, the toolchain and what else decides the code.
        check: rows of what the check at the build established; None where it is not known.
        collectives: by axis; of the whole schedule there are `calls`.
    """

    name: str
    digests: list[str]
    path: str | None
    backend: str
    bytes: int | None
    nodes: int | None
    mesh: dict[str, int]
    ranks: int
    loaded: int
    builders: list[int]
    by: int | None
    built: dict[str, Any]
    cost_s: float
    saved_s: float
    versions: dict[str, str]
    check: list[tuple[str, str]] | None
    mode: str
    collectives: list[Row]
    calls: int

    def said(self) -> str:
        """Whether its ranks ran the same code, in a sentence."""
        if len(self.digests) == 1 and self.builders != [] and len(self.builders) > 1:
            return f"{self.name}: {self.ranks} ranks ran the same code, {self._compiled()}"
        if len(self.digests) == 1:
            who = f"all {self.ranks} ranks" if self.ranks > 1 else "one rank"
            return f"{self.name}: {who} ran the same code, {self.digests[0][:12]}"
        if not self.digests:
            return f"{self.name}: not known, no rank kept what it compiled"
        told = f"{len(self.digests)} different programs on {self.ranks} ranks"
        return f"{self.name}: {told}, {self._compiled()}"

    def _compiled(self) -> str:
        return f"compiled by ranks {ranges(self.builders)}, each for itself"


def programs_of(events: Iterable[Event]) -> list[Program]:
    """The programs of a run, in the order in which the first rank had them ready."""
    ready: dict[str, list[Event]] = {}
    noted: dict[str, Event] = {}
    for event in events:
        if event["event"] == "ready":
            ready.setdefault(program_of(event), []).append(event)
        elif event["event"] == "program":
            noted.setdefault(program_of(event), event)
    return [_program(name, rows, noted.get(name, {})) for name, rows in ready.items()]


def _program(name: str, rows: Sequence[Event], noted: Event) -> Program:
    first = rows[0]
    builders = sorted({row["rank"] for row in rows if row["role"] == "built"})
    built, schedule = first.get("built", {}), noted.get("schedule", [])
    loaded = sum(row["role"] == "loaded" for row in rows)
    cost = sum(built.get("seconds", {}).values())
    if not built:  # torch's ways: every rank compiles, or asks a cache
        cost = sum(row["seconds"].get("compile", 0.0) for row in rows)
    check = noted.get("check")
    return Program(
        name=name,
        digests=sorted({row["digest"] for row in rows if row["digest"]}),
        path=first["path"],
        backend=first.get("backend", "?"),
        bytes=first.get("bytes"),
        nodes=first.get("nodes"),
        mesh=first.get("mesh", {}),
        ranks=len(rows),
        loaded=loaded,
        builders=builders,
        by=first["by"] if built else None,
        built=built,
        cost_s=round(cost, 3),
        saved_s=round(loaded * cost, 1) if built else 0.0,
        versions=_versions(noted, first),
        check=None if check is None else check_rows(check),
        mode=(check or {}).get("mode", ""),
        collectives=by_axis(schedule),
        calls=len(schedule),
    )


def _versions(noted: Event, first: Event) -> dict[str, str]:
    found = {"torch": str(first.get("torch", "?"))}
    for name, value in {**noted.get("versions", {}), **noted.get("requires", {})}.items():
        if value not in (None, []):
            found[name.replace("_", " ")] = _text(value)
    return found


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k} {v}" for k, v in value.items())
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
