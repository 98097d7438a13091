"""The scene in parts: check the block, paste what is printed into its source, check that."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import lockstep as ls
from lockstep.checker.finding import Finding, Report
from tests.flagship import block as written

SOURCE = Path(written.__file__)
FAULT = "return x_BTD * scale_BT1 * self.weight"
FIX = 'return x_BTD * scale_BT1 * ls.convert(self.weight, "tp", src=I, dst=R)'


def check(block: Any, sequence_parallel: bool, ranks: int = 2, repair_s: float = 60.0) -> Report:
    """Check a module of the block's kind on so many tensor-parallel ranks."""

    def make(mesh: Any) -> Any:
        model = block.Block(mesh, sequence_parallel)
        return model, block.batch(mesh, sequence_parallel)

    return ls.check(block.step, make, mesh={"tp": ranks}, repair_s=repair_s)


def fault_line() -> str:
    """The line that lacks the conversion, as "file:number"."""
    (number,) = [n for n, row in enumerate(SOURCE.read_text().splitlines(), 1) if FAULT in row]
    return f"{SOURCE.parent.parent.name}/{SOURCE.parent.name}/{SOURCE.name}:{number}"


def rows(found: Report, pasted: Report | None, before: Report) -> list[tuple[str, bool]]:
    """What has to hold, each with whether it does.

    Args:
        found: of the block with sequence parallelism; `pasted` the same with the fix pasted in.
        before: of the block without it.
    """
    first = found.findings[0] if found.findings else Finding("", "nothing")
    return [
        ("before: without sequence parallelism no finding", before.ok),
        ("switched on: one finding", len(found.findings) == 1),
        ("it names the line of the norm's weight", first.line == fault_line()),
        ("its source line", first.source == FAULT),
        ("the axis", first.axis == "tp"),
        ("what it says to write there: convert, invariant to replicate", first.fix == FIX),
        ("which it has verified", first.verified),
        ("pasted into the source: no finding", pasted is not None and pasted.ok),
        ("and every gradient is the derivative", pasted is not None and _all_right(pasted)),
    ]


def _all_right(report: Report) -> bool:
    return "gradients: 9 of 9 parameters' are the derivative" in report.established


@contextmanager
def with_pasted(finding: Finding, folder: Path) -> Iterator[ModuleType]:
    """Import the block's source with the finding's fix in place of its line, from a file."""
    at = int((finding.fix_line or finding.line).rpartition(":")[2]) - 1
    lines = SOURCE.read_text().split("\n")
    indent = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
    lines[at] = indent + (finding.fix or "")
    path = folder / "pasted_block.py"
    path.write_text("\n".join(lines))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        del sys.modules[path.stem]
