"""The journal of calls that LOCKSTEP_TRACE_CALLS keeps: where in its program each rank is."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

from lockstep.journal import read_journals
from lockstep.report.hang.calls import Call, RankCalls
from lockstep.report.page.phases import program_of

SUFFIX = ".calls"


def read_traced(folder: Path) -> tuple[dict[int, RankCalls], int]:
    """Read a run's folder.

    Returns:
        What each rank has called, and the number of ranks of the job.
    """
    events = read_journals(folder)
    programs = {program_of(e): e.get("schedule", []) for e in events if e["event"] == "program"}
    world = max((event.get("world", 1) for event in events), default=0)
    ended = {e["rank"]: e["why"] for e in events if e["event"] == "end"}
    found: dict[int, dict[str, Any]] = {}
    for file in sorted(folder.glob(f"*{SUFFIX}")):
        at = json.loads(file.read_text().strip("\0 \n") or "{}")
        found |= {at["rank"]: at} if at else {}
    first = min((at["call"] for at in found.values()), default=1)
    return {
        rank: _calls(at, programs.get(at["program"], []), first, ended.get(rank))
        for rank, at in found.items()
    }, world


def _calls(
    at: dict[str, Any], schedule: list[dict[str, Any]], first: int, ended: str | None
) -> RankCalls:
    """A rank's calls, from the call of a program on that is the earliest which any rank is in."""
    earlier = [_call(item, True) for item in schedule] * (at["call"] - first)
    known = [_call(item, number < at["ended"]) for number, item in enumerate(schedule)]
    return RankCalls(
        at["rank"],
        earlier + known[: at["began"]],
        before=(first - 1) * len(schedule),
        each=len(schedule),
        where=f"{at['program']}, call {at['call']}",
        ended=f"was ended ({ended})" if ended else "has ended" if _gone(at) else "",
    )


def _call(item: dict[str, Any], done: bool) -> Call:
    what = f"{item.get('dtype', '?')}[{', '.join(map(str, item.get('shape', [])))}]"
    return Call(item.get("op", "?"), item.get("axis", "?"), what, item.get("line") or "", done)


def _gone(at: dict[str, Any]) -> bool:
    """Whether a process of this machine has ended; of another's that is not known."""
    here = at.get("host") == socket.gethostname() and Path("/proc/self").exists()
    return here and not Path(f"/proc/{at['pid']}").exists()
