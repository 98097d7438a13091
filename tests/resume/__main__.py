"""Kill a training with SIGKILL at a random step, 20 times; it ends as the one that was let be.

python -m tests.resume [--kills 20] [--ranks 4] [--seed 0]
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

from tests.bitwise.compare import same
from tests.resume.jobs import Job

EVERY = 2  # steps between two checkpoints
CLOSE = 1e-5  # how far, relatively, a loss on other ranks may be off: their sums' order is another


def main() -> int:
    """Print each kill, what held, and the figures; exit code 1 where something does not hold."""
    parser = argparse.ArgumentParser(prog="python -m tests.resume", description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    steps = 6 * asked.kills
    words = ("--backend", "graph", "--schedule.steps", str(steps), "--schedule.warmup", "5")
    words += ("--checkpoint.every", str(EVERY))
    with tempfile.TemporaryDirectory(prefix="lockstep-resume-") as name:
        folder = Path(name)
        store = folder / "store"
        whole = Job(folder / "whole", store, asked.ranks, (*words, "--checkpoint.keep", "0"))
        torn = Job(folder / "torn", store, asked.ranks, words)
        if whole.run() != 0:
            print(whole.printed())
            return 1
        kills = killed(torn, asked.kills, random.Random(asked.seed))
        rows = [ended(torn, "the killed one, once let be, ends with code 0")]
        rows += compared(whole, torn, steps)
        for axis in ("dp", "fsdp", "tp"):
            rows += on_two(axis, whole, folder / axis, words, steps)
    for what, held in rows:
        print(f"{'pass' if held else 'FAIL'}  {what}")
    held = sum(held for _, held in rows)
    print(f"{held} of {len(rows)} hold; {kills} kills, {steps} steps on {asked.ranks} ranks")
    return 0 if held == len(rows) else 1


def killed(job: Job, kills: int, draw: random.Random) -> int:
    """Kill the job so many times; each time the command has to fail with code 1."""
    for number in range(1, kills + 1):
        step, rank, code = job.killed(draw)
        print(f"kill {number}: rank {rank} at step {step}, exit code {code}", flush=True)
        if code != 1:
            raise SystemExit(f"a killed rank gave exit code {code}:\n{job.printed()}")
    return kills


def ended(job: Job, what: str) -> tuple[str, bool]:
    """Run a job to its end; what it printed is shown where it fails."""
    code = job.run()
    if code:
        print(job.printed())
    return what, code == 0


def compared(whole: Job, torn: Job, steps: int) -> list[tuple[str, bool]]:
    """Compare two trainings bit by bit: each step's numbers, and the last checkpoint's tensors."""
    one, other = whole.told(), torn.told()
    odd = [step for step in range(1, steps + 1) if one.get(step) != other.get(step)]
    a, b = whole.state(), torn.state()
    unlike = [name for name in a if name not in b or not same(a[name], b[name])]
    values = sum(value.numel() for value in a.values())
    return [
        (f"loss, norm and rate of {steps} steps are equal{first(odd)}", not odd),
        (
            f"{values} values of {len(a)} tensors are bitwise equal{first(unlike)}",
            a.keys() == b.keys() and not unlike,
        ),
    ]


def first(odd: list[object]) -> str:
    """Name the first of what differs."""
    return f"; but not {odd[0]} and {len(odd) - 1} more" if odd else ""


def on_two(
    axis: str, whole: Job, folder: Path, words: tuple[str, ...], steps: int
) -> list[tuple[str, bool]]:
    """Go on from a late checkpoint on two ranks along an axis; the losses stay the same."""
    begin = steps - 10
    saved = whole.folder / "checkpoints" / f"step-{begin:08d}"
    mesh = ("--mesh.dp", "-1", f"--mesh.{axis}", "2", "--checkpoint.resume", str(saved))
    job = Job(folder, whole.store, 2, (*words, *mesh))
    row = ended(job, f"from step {begin} it goes on on 2 ranks of {axis}")
    pairs = [(whole.told()[step][0], loss[0]) for step, loss in job.told().items()]
    gap = max((abs(a - b) / a for a, b in pairs), default=1.0)
    told = f"{len(pairs)} losses there are the same within {gap:.1e}"
    return [row, (told, len(pairs) == steps - begin and gap < CLOSE)]


if __name__ == "__main__":
    sys.exit(main())
