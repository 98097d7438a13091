"""Many ranks told in few words: those that did alike are one group."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from lockstep.report.page.phases import program_of

Event = dict[str, Any]


@dataclass(frozen=True)
class Group:
    """Ranks that did alike.

    Args:
        ranks: their numbers.
        roles: program -> "built", "loaded", or "refused".
        digests: program -> of the artifact.
        indexes: of their devices; empty where a device has none.
        state: "runs", "failed", or "not ready".
    """

    ranks: list[int]
    roles: dict[str, str]
    digests: dict[str, str | None]
    device: str
    devices: int | None
    indexes: list[int]
    flag: bool | None
    torch: str
    world: int
    state: str
    name: str = field(default="")


def ranges(numbers: Iterable[int]) -> str:
    """Numbers as people write them.

    Example:
        >>> ranges([0, 1, 2, 5, 7, 8])
        '0-2, 5, 7-8'
    """
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def by_rank(events: Iterable[Event]) -> dict[int, list[Event]]:
    """The events of each rank, the ranks in order."""
    found: dict[int, list[Event]] = {}
    for event in events:
        found.setdefault(event["rank"], []).append(event)
    return dict(sorted(found.items()))


def groups_of(events: dict[int, list[Event]]) -> list[Group]:
    """Ranks that did alike, those who built before those who loaded."""
    members: dict[tuple[Any, ...], list[int]] = {}
    made: dict[tuple[Any, ...], Group] = {}
    indexes: dict[tuple[Any, ...], set[int]] = {}
    for rank, own in events.items():
        group = _group(own)
        roles, digests = tuple(group.roles.items()), tuple(group.digests.items())
        key = (roles, digests, group.device, group.devices, group.flag, group.torch, group.state)
        members.setdefault(key, []).append(rank)
        made.setdefault(key, group)
        indexes.setdefault(key, set()).update(group.indexes)
    found = []
    for key, ranks in members.items():
        one = made[key]
        said = {**vars(one), "ranks": ranks, "indexes": sorted(indexes[key])}
        found.append(Group(**{**said, "name": _name(one, ranks)}))
    order = {"failed": 0, "built": 1}
    return sorted(found, key=lambda g: (order.get(_word(g), 2), g.ranks[0]))


def _group(own: list[Event]) -> Group:
    last = own[-1]
    roles: dict[str, str] = {}
    digests: dict[str, str | None] = {}
    for event in own:
        if event["event"] == "ready":
            roles[program_of(event)] = event["role"]
            digests[program_of(event)] = event["digest"]
        elif event["event"] == "refused":
            roles[program_of(event)] = "refused"
    failed = any(
        event["event"] == "end" or (event["event"] == "fault" and event["culprit"] == last["rank"])
        for event in own
    )
    return Group(
        ranks=[],
        roles=roles,
        digests=digests,
        device=last.get("device", "?"),
        devices=last.get("devices"),
        indexes=[] if last.get("index") is None else [last["index"]],
        flag=last.get("flag"),
        torch=last.get("torch", "?"),
        world=last.get("world", 0),
        state="failed" if failed else "runs" if roles else "not ready",
    )


def _word(group: Group) -> str:
    """The most telling thing that a group did."""
    words = {*group.roles.values()}
    return group.state if group.state != "runs" else "built" if "built" in words else min(words)


def _name(group: Group, ranks: list[int]) -> str:
    many = "ranks" if len(ranks) > 1 else "rank"
    return f"{_word(group)}: {many} {ranges(ranks)}"
