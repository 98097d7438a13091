"""Every layout on real ranks: two starts of one job a world size."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.bitwise.report import Row, merged
from tests.parallel.layouts import CASES
from tests.ranks.launch import Ended, Torchrun

STARTS = ("first", "again")


class Failed(Exception):
    """A job that did not end well; its text is what it printed."""


def every_layout(torchrun: Torchrun, folder: Path, limit: float) -> dict[int, list[Row]]:
    """Train each layout in all ways, then start anew from what was built; rows by world size.

    Raises:
        Failed: a rank ended with an error.
    """
    env = {"LOCKSTEP_STORE": str(folder / "store"), "LOCKSTEP_TIMING": ""}

    def start(how: str, world: int) -> list[Row]:
        ended = torchrun.run(
            "tests.bitwise.layout_ranks",
            how,
            folder=folder / f"{how}{world}",
            world=world,
            limit=limit,
            env={**env, "CACHES": str(_made(folder / f"caches{world}"))},
        )
        if ended.code:
            raise Failed(ended.report())
        rows = merged(ended)
        return [*rows, _built(ended)] if how == "again" else rows

    worlds = sorted({case.ranks for case in CASES})
    return {world: [row for how in STARTS for row in start(how, world)] for world in worlds}


def _built(ended: Ended) -> Row:
    """The row that says whether a second start built anything."""
    built = ended.of("ready", role="built")
    odd = f"{built[0]['step']} {built[0]['variant']}" if built else None
    return {
        "case": "the second start", "claim": "builds nothing", "odd": odd, "values": 0,
        "seconds": 0.0,
    }  # fmt: skip


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def gaps(worlds: dict[int, list[Row]], told: Callable[[str], None]) -> None:
    """Tell how far each layout's last loss is from one process'."""
    for row in (row for rows in worlds.values() for row in rows if "gaps" in row):
        f64, f32 = row["gaps"]["f64"], row["gaps"]["f32"]
        told(f"{row['case']}: relative to one process {f64:.1e} in f64, {f32:.1e} in f32")
