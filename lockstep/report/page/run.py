"""One run as a model: everything that its page shows, made of its journal alone."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lockstep.errors import UsageError
from lockstep.journal import read_journals
from lockstep.report.page.curves import Chart, charts_of
from lockstep.report.page.phases import PHASES, spans_of
from lockstep.report.page.programs import Program, programs_of
from lockstep.report.page.ranks import Group, by_rank, groups_of

Event = dict[str, Any]
MOST_NOTES = 40


@dataclass(frozen=True)
class Run:
    """A run of a script.

    Args:
        label: what it is called beside others.
        folder: of its journals.
        world: ranks of the job; `seen`: those whose journals are here.
        begin: wall-clock seconds of the first event; `seconds`: until the last.
        command: the line that reproduces it; None where it was not written down.
        rows: of each rank: its number, its group, and its spans: phase, begin and length in
            milliseconds from `begin`, program, whether it was seen to end.
        faults: what ended it, in words.
        notes: what else was written down.
    """

    label: str
    folder: str
    mode: str
    torch: str
    world: int
    seen: int
    begin: float
    seconds: float
    command: str | None
    groups: list[Group]
    programs: list[Program]
    rows: list[tuple[int, int, list[tuple[int, int, int, int, int]]]]
    charts: list[Chart]
    faults: list[str]
    notes: list[str]

    def said_of_code(self) -> list[str]:
        """For each program, whether all ranks ran the same code."""
        return [program.said() for program in self.programs]

    def as_dict(self) -> dict[str, Any]:
        """The model as JSON values."""
        return {**asdict(self), "phases": list(PHASES), "same_code": self.said_of_code()}


def read_run(folder: Path, label: str = "") -> Run:
    """Read a run's folder.

    Args:
        folder: holds the journals, as `runs/latest`.
        label: what the run is called; by default the folder's name.

    Raises:
        UsageError: it is no run's folder.
    """
    want = "a run's folder, such as runs/latest"
    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder", want=want)
    events = read_journals(folder)
    if not events:
        raise UsageError(f"{folder} holds no journal", want=want)
    return run_of(events, label or folder.resolve().name, str(folder))


def run_of(events: Sequence[Event], label: str, folder: str = "") -> Run:
    """Make the model of a run's events.

    Args:
        events: of all ranks, in the order of time.
    """
    ranks, programs = by_rank(events), programs_of(events)
    begin, end = events[0]["time"], max(event["time"] for event in events)
    spans = {rank: spans_of(own, end) for rank, own in ranks.items()}
    begin = min([begin, *(span.begin for own in spans.values() for span in own)])
    groups = groups_of(ranks)
    of_rank = {rank: i for i, group in enumerate(groups) for rank in group.ranks}
    known = {program.name: i for i, program in enumerate(programs)}
    rows = [
        (
            rank,
            of_rank[rank],
            [
                (
                    PHASES.index(span.phase),
                    round((span.begin - begin) * 1000),
                    max(1, round(span.seconds * 1000)),
                    known.get(span.program, -1),
                    int(span.open),
                )
                for span in own
            ],
        )
        for rank, own in spans.items()
    ]
    start = next((e for e in events if e["event"] == "start" and "argv" in e), None)
    return Run(
        label=label,
        folder=folder,
        mode=events[0].get("mode", "?"),
        torch=", ".join(sorted({str(event.get("torch", "?")) for event in events})),
        world=max(event.get("world", 1) for event in events),
        seen=len(ranks),
        begin=begin,
        seconds=round(end - begin, 3),
        command=None if start is None else command_of(start),
        groups=groups,
        programs=programs,
        rows=rows,
        charts=charts_of(ranks),
        faults=_faults(events),
        notes=list(_notes(events))[:MOST_NOTES],
    )


def command_of(start: Event) -> str:
    """The line that starts the same job again.

    Example:
        >>> command_of({"argv": ["python", "-u", "t.py", "--lr", "3"], "nproc": 2, "world": 2,
        ...             "environment": {"LOCKSTEP_STORE": "/s"}})
        'LOCKSTEP_STORE=/s torchrun --nproc-per-node 2 t.py --lr 3'
    """
    words = list(start["argv"][1:])
    while words and words[0].startswith("-") and words[0] != "-m":
        del words[: 2 if words[0] in ("-X", "-W") else 1]
    each, world = start.get("nproc", 1), start["world"]
    launch = ["torchrun", "--nproc-per-node", str(each)] if "nproc" in start else ["python"]
    nodes = -(-world // max(each, 1))
    if nodes > 1:
        launch += ["--nnodes", str(nodes)]
    before = [f"{name}={shlex.quote(value)}" for name, value in start["environment"].items()]
    return " ".join([*before, *map(shlex.quote, [*launch, *words])])


def _faults(events: Sequence[Event]) -> list[str]:
    """What ended the run, each once, the cause first."""
    told = [str(e.get("text") or e["what"]) for e in events if e["event"] == "fault"]
    told += [f"rank {e['rank']}: {e['why']}" for e in events if e["event"] == "end"]
    told += [str(e["text"]) for e in events if e["event"] == "refused"]
    return list(dict.fromkeys(told))[:8]


def _notes(events: Sequence[Event]) -> dict[str, None]:
    """What else a reader should know, each once."""
    found: dict[str, None] = {}
    for event in events:
        name, who = event["event"], f"rank {event['rank']}"
        if name == "missed" and event.get("why"):
            found[f"{event['step']}: {event['why']}"] = None
        elif name == "takeover":
            found[f"{who} took over the build of {event['topic']}"] = None
        elif name == "released":
            found[f"{who} could not build: {event['error']}"] = None
        elif name == "weaker":
            found[f"{event['path']} was checked less than asked for, and is built again"] = None
        elif name == "apart":
            names = ", ".join(event["names"][:4])
            found[f"parameters differ along {event['axis']} at the first call: {names}"] = None
        elif name == "audited":
            same = "its graph is the artifact's" if event["same"] else "its graph is another one"
            found[f"{event['step']} was traced again for an audit: {same}"] = None
    return found
