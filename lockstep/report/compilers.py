"""A folder that goes first on PATH and records each start of a compiler, whoever starts it."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from pathlib import Path

from lockstep.run.counting import COMPILERS

# The rank is that of the process whose environment the compiler inherits.
_SCRIPT = """#!/bin/sh
printf '%s %s\\n' "${{RANK:-?}}" '{name}' >> '{log}'
exec '{real}' "$@"
"""


class Recorder:
    """Recording stand-ins for the compilers that this machine has.

    Args:
        folder: an own, empty folder; made where it is missing.

    Example:
        >>> recorder = Recorder(folder)                                      # doctest: +SKIP
        >>> subprocess.run("g++", env=recorder.environment(env))             # doctest: +SKIP
        >>> recorder.started(rank=None)                                      # doctest: +SKIP
        Counter({'g++': 1})
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._log = folder, folder / "starts"
        for name in COMPILERS:
            self._stand_in(name, shutil.which(name))

    def environment(self, base: dict[str, str]) -> dict[str, str]:
        """The environment `base` with the stand-ins first on PATH, and in CC, CXX and the like."""
        made = {**base, "PATH": f"{self._folder}{os.pathsep}{base.get('PATH', '')}"}
        for variable in ("CC", "CXX", "TRITON_PTXAS_PATH"):
            real = shutil.which(base.get(variable, "").strip())
            if real is not None:
                made[variable] = str(self._stand_in(Path(real).name, real))
        return made

    def started(self, rank: int | None = None) -> Counter[str]:
        """How often each compiler was started: by one rank, or by all and what started them."""
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        pairs = [line.split(" ", 1) for line in lines]
        return Counter(name for who, name in pairs if rank is None or who == str(rank))

    def clear(self) -> None:
        """Forget what was recorded."""
        self._log.unlink(missing_ok=True)

    def _stand_in(self, name: str, real: str | None) -> Path:
        path = self._folder / name
        if real is not None:
            path.write_text(_SCRIPT.format(name=name, log=self._log, real=real))
            path.chmod(0o755)
        return path
