"""What a restart costs: from the first call of a step to its end, and how near that is to nothing.

    python bench/restart.py

Three ways, each start a process of its own: Lockstep with the artifact in its store; torch.compile
with its caches warm; and the floor, which reads, hashes and opens the same bytes and runs one step,
knowing beforehand what they are. They take turns, and each turn gives its own ratios.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))  # run as a script

from bench.measure import as_installed, spread  # noqa: E402  (the path comes first)
from lockstep.report.job import run_job  # noqa: E402

OURS, FLOOR, TORCH = "Lockstep", "floor", "torch.compile"
WAYS = (OURS, FLOOR, TORCH)
LIMIT_S = 1800
FASTER, OF_FLOOR = 30, 4

Start = dict[str, Any]
Turn = dict[str, Start]


def start(way: str, layers: int, caches: Path) -> Start:
    """Start once with these caches; returns what the process measured.

    Raises:
        SystemExit: it failed; its output is shown.
    """
    environment = {key: value for key, value in os.environ.items() if key[:8] != "LOCKSTEP"}
    environment |= {
        "LOCKSTEP_STORE": str(caches / "store"),
        "LOCKSTEP_RUNS": str(caches / "runs"),
        "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
        "XDG_CACHE_HOME": str(caches / "cache"),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
    }
    caches.mkdir(parents=True, exist_ok=True)
    out = caches / "seen.json"
    script = [str(ROOT / "bench" / "restart_rank.py"), "--way", way, "--out", str(out)]
    done = run_job([sys.executable, *script, "--layers", str(layers)], environment, LIMIT_S)
    if done.code != 0:
        raise SystemExit(f"{done.output}\n{way}: a start ended with {done.code}")
    return json.loads(out.read_text())


def turns(layers: int, repeat: int, caches: Path) -> list[Turn]:
    """Start each way until its caches are warm, and then `repeat` times in turn."""
    for way in (OURS, TORCH, OURS, TORCH):
        start(way, layers, caches)
    order, found = list(WAYS), []
    for _ in range(repeat):
        found.append({way: start(way, layers, caches) for way in order})
        order.append(order.pop(0))  # no way always follows the same other
    return found


def ratio(found: list[Turn], way: str) -> float:
    """Lockstep's seconds as a part of another way's: the median of the ratios within a turn."""
    return statistics.median(turn[OURS]["seconds"] / turn[way]["seconds"] for turn in found)


def judge(found: dict[int, list[Turn]]) -> list[tuple[bool, str]]:
    """Return each line with whether it holds.

    Args:
        found: the turns by number of layers.
    """
    lines = []
    for layers, some in found.items():
        of_torch, of_floor = ratio(some, TORCH), ratio(some, FLOOR)
        lines += [
            (
                of_torch <= 1 / FASTER,
                f"{layers} layers: 1/{1 / of_torch:.0f} of warm torch.compile, at most 1/{FASTER}",
            ),
            (
                of_floor <= OF_FLOOR,
                f"{layers} layers: {of_floor:.2f} times the floor, at most {OF_FLOOR}",
            ),
        ]
    every = [turn[OURS] for some in found.values() for turn in some]
    names = sorted({name for one in every for name in one["compilers"]})
    told = f"{len(names)} modules of a compiler ({', '.join(names[:3])})" if names else "none"
    lines.append((not names, f"modules of a compiler that a loading rank imported: {told}"))
    losses = {layers: {turn[OURS]["loss"] - turn[FLOOR]["loss"] for turn in some}
              for layers, some in found.items()}  # fmt: skip
    same = all(one == {0.0} for one in losses.values())
    lines.append((same, f"the floor runs the same step: its loss is {'' if same else 'not '}equal"))
    return lines


def table(found: dict[int, list[Turn]]) -> Table:
    """Return medians and spreads, and of what a restart is made."""
    made = Table("layers", *(f"{way}, ms" for way in WAYS), "of which, ms", title="A restart")
    for layers, some in found.items():
        cells = [spread([1e3 * turn[way]["seconds"] for turn in some], 1) for way in WAYS]
        made.add_row(str(layers), *cells, shares([turn[OURS] for turn in some]))
    return made


def shares(starts: list[Start]) -> str:
    """Return the median milliseconds of each part of a restart, and of what is left."""
    parts = {
        name: statistics.median(1e3 * one["parts"][name] for one in starts)
        for name in starts[0]["parts"]
    }
    left = statistics.median(1e3 * (one["seconds"] - sum(one["parts"].values())) for one in starts)
    return ", ".join(f"{name} {ms:.1f}" for name, ms in [*parts.items(), ("rest", left)])


def main(layers: tuple[int, ...] = (4, 12, 32), repeat: int = 5, caches: Path | None = None) -> int:
    """Measure, print, and return 0 where every line holds.

    Args:
        layers: of the Llamas.
        repeat: turns of each.
        caches: a folder that is kept, so that another run begins warm.
    """
    console, found = Console(), {}
    as_installed()
    with tempfile.TemporaryDirectory() as folder:
        for count in layers:
            console.print(f"{count} layers", style="dim")
            found[count] = turns(count, repeat, (caches or Path(folder)) / str(count))
    console.print(table(found))
    lines = judge(found)
    for holds, line in lines:
        console.print(f"{'holds' if holds else 'FAILS'}  {line}", markup=False, highlight=False)
    held = sum(holds for holds, _ in lines)
    print(f"{held} of {len(lines)} lines hold; medians of {repeat} turns")
    return 0 if held == len(lines) else 1


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
