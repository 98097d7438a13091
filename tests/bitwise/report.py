"""From what the ranks found to a table, the figures, and whether all of it holds."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from tests.ranks.launch import Ended

Row = dict[str, Any]


def merged(ended: Ended) -> list[Row]:
    """One row a case: what any rank found odd, named by its rank; the largest gaps of all ranks."""
    rows = []
    for of_ranks in zip(*ended.results, strict=True):
        row = dict(of_ranks[0])
        odd = [f"rank {rank}: {r['odd']}" for rank, r in enumerate(of_ranks) if r["odd"]]
        row["odd"] = odd[0] if odd else None
        if "gaps" in row:
            row["gaps"] = {k: max(r["gaps"][k] for r in of_ranks) for k in row["gaps"]}
        rows.append(row)
    return rows


def built_once(ended: Ended, world: int) -> Row:
    """The row that says whether each program had one builder at most, and the same bytes."""
    odd, built = None, 0
    programs: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for event in ended.of("ready"):
        programs.setdefault((event["step"], event["variant"]), []).append(event)
    for (step, variant), events in programs.items():
        builders = [event["rank"] for event in events if event["role"] == "built"]
        built += len(builders)
        digests = {event["digest"] for event in events}
        if len(events) != world or len(builders) > 1 or len(digests) != 1:
            odd = odd or f"{step} {variant}: {len(events)} ranks, built by {builders}, {digests}"
    if not any(event["step"] == "infer_step" for event in ended.of("ready", role="built")):
        odd = odd or "the forward-only step was not built in this run"
    case = f"{len(programs)} programs wanted, {built} of them built"
    return {"case": case, "claim": "by one rank; the others load", "odd": odd, "values": 0} | {
        "seconds": 0.0
    }


def table(world: int, rows: list[Row]) -> Table:
    """Every case of one world size."""
    made = Table("case", "claim", "numbers a rank", "seconds", "holds", title=f"{world} ranks")
    for row in rows:
        values = f"{row['values']:,}" if row["values"] else ""
        seconds = f"{row['seconds']:.1f}" if row["seconds"] else ""
        made.add_row(row["case"], row["claim"], values, seconds, row["odd"] or "yes")
    return made


def figures(worlds: dict[int, list[Row]]) -> list[str]:
    """What was measured, as lines: how far `inductor` is from eager, and how much was compared."""
    lines = []
    for place in ("outside", "inside"):
        gaps: dict[str, float] = {}
        for row in (row for rows in worlds.values() for row in rows if row.get("place") == place):
            gaps = {k: max(v, gaps.get(k, 0.0)) for k, v in row["gaps"].items()}
        if gaps:
            told = ", ".join(f"{name} {gap:.2e}" for name, gap in gaps.items())
            lines.append(f"inductor's largest difference from eager, AdamW {place}: {told}")
    for claim in dict.fromkeys(row["claim"] for rows in worlds.values() for row in rows):
        found = [row for rows in worlds.values() for row in rows if row["claim"] == claim]
        held = sum(row["odd"] is None for row in found)
        values = sum(row["values"] for row in found)
        of = f", {values:,} numbers a rank" if values else ""
        lines.append(f"{claim}: {held} of {len(found)} cases{of}")
    return lines
