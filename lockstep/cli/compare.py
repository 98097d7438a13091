"""`lockstep compare`: plain torch.compile, torch's flag alone, and Lockstep, side by side."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import tyro

from lockstep.cli.files import readable, write
from lockstep.errors import UsageError


def compare(
    script: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="SCRIPT")],
    arguments: Annotated[
        tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="-- ARGS")
    ] = (),
    /,
    nproc_per_node: int = 2,
    out: Annotated[str, tyro.conf.arg(aliases=["-o"])] = "",
    json: bool = False,
    timeout: float = 1800.0,
    keep: Path | None = None,
) -> int:
    """Run a script three ways under torchrun, from empty caches and then again, and compare.

    The ways are plain torch.compile on every rank, the same with torch's compile_on_one_rank, and
    Lockstep. Six jobs in all, each with caches of its own.

    Args:
        script: the training script; it must end by itself.
        arguments: its own arguments, after --.
        nproc_per_node: ranks of each job.
        out: the HTML page to write; by default compare.html in LOCKSTEP_RUNS, else in runs.
        json: print one JSON object in place of tables.
        timeout: seconds after which a job is stopped.
        keep: a folder that keeps caches, stores and journals; else they are deleted.
    """
    path = readable(script, "a training script")
    if nproc_per_node < 1 or timeout <= 0:
        raise UsageError(
            f"--nproc-per-node {nproc_per_node} --timeout {timeout:g}", want="1 rank or more, 1 s"
        )
    from lockstep.report.compare import compare as run

    with tempfile.TemporaryDirectory(prefix="lockstep-compare-") as own:
        found = run(
            path,
            arguments,
            world=nproc_per_node,
            folder=_empty(keep) if keep is not None else Path(own),
            limit_s=timeout,
            tell=lambda text: print(text, file=sys.stderr, flush=True),
        )
    _print(found, json)
    _write_page(found, out)
    return 1 if any(row.role == "refused" for row in found.rows) else 0


def _write_page(found: object, out: str) -> None:
    from lockstep.report.compare_page import as_page

    path = Path(out or Path(os.environ.get("LOCKSTEP_RUNS", "runs")) / "compare.html")
    if not out:
        path.parent.mkdir(parents=True, exist_ok=True)
    write(path, as_page(found))  # type: ignore[arg-type]
    print(path, file=sys.stderr)


def _print(found: object, json: bool) -> None:
    from rich.console import Console

    from lockstep.report.compare_text import as_json, show

    if json:
        print(as_json(found))  # type: ignore[arg-type]
    else:
        show(found, Console() if sys.stdout.isatty() else Console(width=110))  # type: ignore[arg-type]


def _empty(folder: Path) -> Path:
    """The folder itself, which must hold nothing: else a cold start would not be one."""
    if folder.exists() and any(folder.iterdir()):
        raise UsageError(f"{folder} is not empty", want="an empty or a new folder for --keep")
    return folder.resolve()
