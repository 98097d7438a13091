"""Hang four real ranks in three ways, and a built step in a fourth: the rank, call and line told?

python -m tests.explain_hang
"""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from lockstep.cli import main as lockstep
from lockstep.report.job import run_job
from tests.explain_hang import ranks

HERE = Path(__file__).parent
LIMIT_S = 120.0


def recorded(how: str, folder: Path) -> Path:
    """Run the four ranks, and return the folder of their flight records."""
    env = {**os.environ, "TORCH_FR_BUFFER_SIZE": "1000", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.explain_hang.ranks", how, str(folder)]
    started = [
        subprocess.Popen([*command, str(rank)], env=env, stderr=subprocess.DEVNULL)
        for rank in range(ranks.WORLD)
    ]
    try:
        for process in started:
            process.wait(LIMIT_S)
    finally:
        for process in started:
            process.kill()
    (folder / "store").unlink(missing_ok=True)
    return folder


def traced(folder: Path) -> Path:
    """Run the built step until its rank has ended, and return the run's folder."""
    env = {
        **os.environ,
        "LOCKSTEP_TRACE_CALLS": "1",
        "LOCKSTEP_STORE": str(folder / "store"),
        "LOCKSTEP_RUNS": str(folder / "runs"),
        "OMP_NUM_THREADS": "1",
    }
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    done = run_job([sys.executable, *launch, "-m", "tests.explain_hang.built"], env, LIMIT_S)
    if done.code == 0:
        raise SystemExit(f"{done.output}\nthe job went through")
    return folder / "runs" / "latest"


def explained(folder: Path) -> tuple[int, str]:
    """Exit code and text of `lockstep explain-hang`."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = lockstep(["explain-hang", str(folder)])
    return code, out.getvalue()


def marked(file: str, word: str) -> str:
    """The line of a file that bears a mark, as messages tell it."""
    rows = (HERE / file).read_text().splitlines()
    return f"{file}:{next(i for i, row in enumerate(rows, 1) if row.endswith(f'# {word}'))}"


WANTED = {
    "skips": ("rank 2 skipped collective 2, ", marked("ranks.py", "skipped")),
    "swaps": ("rank 2 made all_reduce over second ", marked("ranks.py", "swapped")),
    "dies": ("rank 2 left no record: ", "with collective 3, ", marked("ranks.py", "died")),
    "built": ("rank 3 has ended after collective 2 ", marked("built.py", "died")),
}


def main() -> int:
    """Print what is told of each; exit code 1 where rank, call or line is missing."""
    held = 0
    for how, wanted in WANTED.items():
        with tempfile.TemporaryDirectory(prefix="lockstep-hang-") as name:
            folder = Path(name)
            code, text = explained(traced(folder) if how == "built" else recorded(how, folder))
        ok = code == 1 and all(part in text for part in wanted)
        held += ok
        print(f"{'pass' if ok else 'FAIL'}  {how}\n{text}")
        if not ok:
            print(f"wanted: {wanted}\n")
    print(f"{held} of {len(WANTED)} hangs explained: rank, call and user line")
    return 0 if held == len(WANTED) else 1


if __name__ == "__main__":
    sys.exit(main())
