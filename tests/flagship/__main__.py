"""A right Llama block, sequence parallelism switched on, one conversion forgotten: found, mended.

python -m tests.flagship
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.flagship import block, scene


def main() -> int:
    """Print the finding and what held; exit code 1 where one does not."""
    before = scene.check(block, sequence_parallel=False)
    found = scene.check(block, sequence_parallel=True)
    print(found, end="\n\n")
    pasted = None
    if found.findings and found.findings[0].fix:
        with (
            tempfile.TemporaryDirectory(prefix="lockstep-flagship-") as folder,
            scene.with_pasted(found.findings[0], Path(folder)) as module,
        ):
            pasted = scene.check(module, sequence_parallel=True)
        print(f"pasted:\n{pasted}\n")
    rows = scene.rows(found, pasted, before)
    for what, held in rows:
        print(f"{'pass' if held else 'FAIL'}  {what}")
    seconds = sum(found.seconds.values())
    held = sum(held for _, held in rows)
    print(f"{held} of {len(rows)} hold; found and its fix verified in {seconds:.1f} s")
    return 0 if held == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
