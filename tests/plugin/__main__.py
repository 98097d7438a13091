"""A sample project's own suite under the plug-in, tp 1/2/4 x sp on/off, and without it.

python -m tests.plugin
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.plugin import project


def _ours(text: str) -> bool:
    return any(word in text for word in ("Traceback", "lockstep/checker/", "pytest_plugin.py"))


def main() -> int:
    """Print what the sessions came to; exit code 1 where one is not as it should be."""
    with tempfile.TemporaryDirectory(prefix="lockstep-plugin-") as name:
        folder = Path(name)
        project.write(folder)
        full = project.run(folder)
        unused = project.run(folder, "test_plain.py")
        off = project.run(folder, "test_plain.py", "-p", "no:lockstep")
    print(full.text)
    failed, passed = full.cells("FAILED"), full.cells("PASSED")
    told = [cell for cell in failed if project.marked_line() in full.failure(cell)]
    rows = [
        ("cells that fail", sorted(failed) == sorted(project.WRONG), ", ".join(failed)),
        ("of those with their line", sorted(told) == sorted(project.WRONG), ", ".join(told)),
        ("tests that pass", len(passed) == 11, str(len(passed))),
        ("no traceback of ours", not _ours(full.text), ""),
        ("the full suite imports the checker", bool(full.checker), f"{len(full.checker)} modules"),
        ("an unused plug-in does not", unused.code == 0 and not unused.checker, ""),
        ("nor does one that is off", off.code == 0 and not off.imported, "nothing of Lockstep"),
    ]
    for what, held, seen in rows:
        print(f"{'pass' if held else 'FAIL'}  {what}{f': {seen}' if seen else ''}")
    print(f"{sum(held for _, held, _ in rows)} of {len(rows)} hold")
    return 0 if all(held for _, held, _ in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
