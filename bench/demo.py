"""Run the demo twice on an empty store: built and loaded, then loaded and loaded.

python -m bench.demo
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path

from lockstep.report.job import run_job

ROOT = Path(__file__).parent.parent
LIMIT_S = 300


def demo(folder: Path) -> tuple[str, float]:
    """Train on two ranks with the store in a folder; return what was printed and the seconds."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {
        **os.environ,
        "LOCKSTEP_STORE": str(folder / "store"),
        "LOCKSTEP_RUNS": str(folder / "runs"),
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "160",
    }
    command = [sys.executable, *torchrun, str(ROOT / "examples" / "train_llama.py")]
    done = run_job(command, environment, LIMIT_S)
    if done.code != 0:
        raise SystemExit(f"{done.output}\nthe demo ended with exit code {done.code}")
    return done.output, done.seconds


def roles(text: str) -> list[str]:
    """Return each rank's role, in the order of the ranks, from the summary's table."""
    rows = re.findall(r"^\W*(\d+)\W.*?\b(built|loaded)\b", text, re.MULTILINE)
    return [role for _, role in sorted(set(rows))]


def figure(text: str, label: str) -> float:
    """Return the number of the closing table's row."""
    found = re.search(rf"{label}\D*?(\d+\.\d+)", text)
    if not found:
        raise SystemExit(f"{text}\nno row {label!r} in the demo's last table")
    return float(found.group(1))


def main() -> int:
    """Run both starts, print their figures, and return 0 where they hold."""
    with tempfile.TemporaryDirectory() as folder:
        first, first_s = demo(Path(folder))
        second, second_s = demo(Path(folder))
    start, end, bigram = (
        figure(first, label) for label in ("at the start", "the last 20 steps", "of this text")
    )
    print(
        f"first start {roles(first)} in {first_s:.0f} s, second {roles(second)} in {second_s:.0f} s"
    )
    print(f"loss {start:.3f} -> {end:.3f} nats a byte, a bigram table {bigram:.3f}")
    as_said = roles(first) == ["built", "loaded"] and roles(second) == ["loaded", "loaded"]
    return 0 if as_said and end < bigram and first_s < LIMIT_S else 1


if __name__ == "__main__":
    sys.exit(main())
