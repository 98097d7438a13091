"""One JSON line an event of a training, on rank 0; a resumed one drops the lines it makes anew."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from lockstep.errors import UsageError


class Metrics:
    """Writes `metrics.jsonl`, and TensorBoard's files beside it where asked.

    Args:
        folder: of the training.
        begin: steps that a checkpoint has made; lines of later steps are dropped.
        tensorboard: write for it too.

    Raises:
        UsageError: the package tensorboard is missing.
    """

    def __init__(self, folder: Path, begin: int, tensorboard: bool) -> None:
        self.path = folder / "metrics.jsonl"
        folder.mkdir(parents=True, exist_ok=True)
        kept = [row for row in read(self.path) if row["step"] <= begin]
        draft = self.path.with_suffix(".draft")
        draft.write_text("".join(json.dumps(row) + "\n" for row in kept))
        draft.replace(self.path)
        self._file = self.path.open("a", buffering=1)  # a line is written as it ends
        self._board = writer(folder / "tensorboard", begin) if tensorboard else None

    def write(self, kind: str, step: int, **values: Any) -> None:
        """Write one line: the kind ("train" or "eval"), the step, and its values."""
        row = {"kind": kind, "step": step, **values, "time": round(time.time(), 3)}
        self._file.write(json.dumps(row) + "\n")
        if self._board is not None:
            for name, value in values.items():
                if isinstance(value, (int, float)):
                    self._board.add_scalar(f"{kind}/{name}", value, step)

    def close(self) -> None:
        """Close the files."""
        self._file.close()
        if self._board is not None:
            self._board.close()


def writer(folder: Path, begin: int = 0) -> Any:
    """Return TensorBoard's writer.

    Raises:
        UsageError: the package is missing.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UsageError(
            "metrics.tensorboard needs the package tensorboard: pip install 'torch-lockstep[train]'"
        ) from None
    return SummaryWriter(str(folder), purge_step=begin + 1)


def read(path: Path) -> list[dict[str, Any]]:
    """Return a metrics file's lines; a torn last one, of a process that was killed, is dropped."""
    if not path.exists():
        return []
    rows = []
    for line in path.read_text().splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return rows
