"""Run the demo twice on an empty store: built and loaded, then loaded and loaded.

python -m bench.demo
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
LIMIT_S = 300


def demo(store: str) -> tuple[str, float]:
    """Train on two ranks with this store; return what was printed and the seconds it took."""
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
    ]
    environment = {**os.environ, "LOCKSTEP_STORE": store, "OMP_NUM_THREADS": "1", "COLUMNS": "160"}
    start = time.perf_counter()
    done = subprocess.run(
        [*command, "examples/train_llama.py"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        env=environment,
        timeout=LIMIT_S,
    )
    if done.returncode:
        raise SystemExit(f"{done.stdout}\nthe demo ended with exit code {done.returncode}")
    return done.stdout, time.perf_counter() - start


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
        first, first_s = demo(str(Path(folder) / "store"))
        second, second_s = demo(str(Path(folder) / "store"))
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
