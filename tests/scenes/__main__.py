"""Three scripts under plain torch with a timeout of 20 s, and with Lockstep: side by side.

python -m tests.scenes
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from lockstep.report.job import Outcome, run_job

ROOT = Path(__file__).parents[2]
LIMIT_S, TIMED_OUT = 600.0, re.compile(r"[Tt]imed out|[Tt]imeout")


@dataclass(frozen=True)
class Scene:
    """One script.

    Args:
        what: goes wrong in it.
        plain: LOCKSTEP's value for plain torch.
        before, after: what is told of a run without and with Lockstep; None: not as described.
    """

    what: str
    script: str
    plain: str
    before: Callable[[Outcome], str | None]
    after: Callable[[Outcome], str | None]


def timed_out(done: Outcome) -> str | None:
    """A job that a collective's timeout has ended, after its first calls."""
    begun = "call 1 on rank" in done.output or "blocks" not in done.output
    if done.code in (0, None) or not TIMED_OUT.search(done.output) or not begun:
        return None
    return f"ended by a timeout after {done.seconds:.0f} s"


def runs(done: Outcome) -> str | None:
    """A job that went through, and compiled once."""
    calls = done.output.count("call 4 on rank ")
    built = done.output.count(": built by rank ")
    return f"runs, {built} build" if (done.code, calls, built) == (0, 2, 1) else None


def runs_or_refused(done: Outcome) -> str | None:
    """A job that went through, or was refused at the line of the branch."""
    if done.code == 0:
        return "runs"
    told = re.search(r"(LS100: [^\n]*)(?:\n[^\n]*)*?\bat +(\S*apart\.py:\d+)", done.output)
    return f"refused at {told.group(2)}: {told.group(1)}" if told and done.seconds < 60 else None


def drifts(done: Outcome) -> str | None:
    """A job that went through: the loss falls, and copies of one parameter drift apart."""
    found = re.findall(r"loss ([\d.]+) -> ([\d.]+), norm of the first weight (\S+)", done.output)
    if done.code != 0 or len(found) != 2 or not all(float(b) < float(a) for a, b, _ in found):
        return None
    copies = {embed for _, _, embed in found}
    start, end, _ = found[0]
    told = f"loss {start} -> {end}, the copies of one weight differ: {', '.join(sorted(copies))}"
    return told if len(copies) == 2 else None


def refused(done: Outcome) -> str | None:
    """A job that was refused at the backward whose gradients nothing adds up."""
    line = next(i for i, row in enumerate((ROOT / "docs/scene.py").read_text().splitlines(), 1)
                if "loss.backward()" in row)  # fmt: skip
    told = re.search(rf"LS5\d\d: [^\n]*(?:\n[^\n]*)*?\bscene\.py:{line}\b", done.output)
    ended = done.code not in (0, None) and "LS500" in done.output
    return f"refused at scene.py:{line}" if told and ended else None


SCENES = [
    Scene("a lone recompile", "tests/scenes/lone.py", "torch", timed_out, runs),
    Scene("two ranks, two graphs", "tests/scenes/apart.py", "torch", timed_out, runs_or_refused),
    Scene("a missing all-reduce of gradients", "docs/scene.py", "off", drifts, refused),
]


def run(scene: Scene, way: str, more: list[str]) -> Outcome:
    """Run a scene's script on two ranks, from empty caches; `more` are arguments of its own."""
    with tempfile.TemporaryDirectory(prefix="lockstep-scene-") as folder:
        env = {
            **os.environ,
            "LOCKSTEP": way,
            "LOCKSTEP_STORE": f"{folder}/store",
            "LOCKSTEP_RUNS": f"{folder}/runs",
            "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        }
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        return run_job([sys.executable, *launch, scene.script, *more], env, LIMIT_S)


def main(only: str = "") -> int:
    """Print the outcomes; exit code 1 where one is not as described."""
    os.chdir(ROOT)
    table = Table("", "plain torch", "the same script, Lockstep", title="Three scenes, two ranks")
    held = 0
    scenes = [scene for scene in SCENES if only in scene.what]
    for scene in scenes:
        cells: list[str] = []
        more: list[str] = []
        for way, judge in ((scene.plain, scene.before), ("", scene.after)):
            done = run(scene, way, more)
            more = re.findall(r"(\d+) blocks", done.output)[:1]  # the same model for Lockstep
            told = judge(done)
            held += told is not None
            cells.append(told or f"[red]NOT as described[/], exit code {done.code}")
            if told is None:
                print(f"---- {scene.what}, LOCKSTEP={way or 'on'}\n{done.tail(40)}")
        table.add_row(scene.what, *cells)
    Console(width=120).print(table)
    print(f"{held} of {2 * len(scenes)} outcomes are as described")
    return 0 if held == 2 * len(scenes) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
