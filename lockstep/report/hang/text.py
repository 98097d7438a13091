"""The judgement of a hang as text."""

from __future__ import annotations

from collections.abc import Iterator

from lockstep.report.hang.judge import Hang, Stand
from lockstep.report.page.ranks import ranges


def lines(hang: Hang) -> Iterator[str]:
    """What was found, then where each rank stands; ranks that stand alike share a line."""
    yield from hang.said or ["no rank waits for another: every call that was recorded has ended"]
    yield ""
    alike: dict[str, list[int]] = {}
    for stand in hang.stands:
        alike.setdefault(_stands(stand), []).append(stand.rank)
    for text, ranks in alike.items():
        yield f"{'ranks' if len(ranks) > 1 else 'rank'} {ranges(ranks)}: {text}"


def _stands(stand: Stand) -> str:
    if stand.call is None:
        return "has begun no collective"
    of = f" of {stand.of}" if stand.of else ""
    state = f"waits for {stand.waits}" if stand.waits else "has made it, and calls no other"
    where = f"{stand.where}, " if stand.where else ""
    return f"{where}collective {stand.number}{of}, {stand.call}: {state}"
