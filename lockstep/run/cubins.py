"""Start the shipped kernels of an accelerator, without Triton: torch holds a launcher in C++.

Read in torch 2.14.1; no accelerator has run it yet.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lockstep import _compat
from lockstep.errors import ArtifactError


class Cubin:
    """One kernel, loaded on the current accelerator; a program calls `run` as it does Triton's."""

    def __init__(self, function: int, launch: dict[str, Any], start: Callable[..., None]) -> None:
        scope: dict[str, Any] = {}
        exec(compile(launch["launcher"], f"<launcher of {launch['entry']}>", "exec"), scope)
        self._plan, self._start, self._function = scope["launcher"], start, function
        self._how = launch["warps"], launch["shared"], launch["types"]

    def run(self, *args: Any, stream: int) -> None:
        """Start the kernel on a stream."""
        grid, given = self._plan(*args)
        self._start(self._function, *grid, *self._how, given, stream)


def cubins(blobs: Mapping[str, bytes], source: str) -> Callable[[str], Cubin]:
    """Load every binary among an artifact's blobs; return the program's `cubin`.

    Raises:
        ArtifactError: LS210, one can't be loaded here.
    """
    names = [name for name in blobs if name.startswith("kernels/") and name.endswith(".cubin")]
    loaded: dict[str, Cubin] = {}
    if names:
        load, start = _compat.cubin_launcher()
        device = _compat.current_accelerator()
        with tempfile.TemporaryDirectory(prefix="lockstep-") as folder:  # mode 0700
            for name in names:
                digest = name.removeprefix("kernels/").removesuffix(".cubin")
                try:
                    launch = json.loads(blobs[f"kernels/{digest}.json"])
                    path = _written(Path(folder) / f"{digest}.cubin", blobs[name])
                    how = launch["entry"], launch["shared"], device.index
                    function = load(path, *how)[-3]  # before its registers and spills
                except (KeyError, ValueError, RuntimeError) as error:
                    raise ArtifactError(
                        "a kernel of the artifact can't be loaded on the accelerator",
                        where=source,
                        got=f"{digest[:12]}: {type(error).__name__}: {error}",
                        fix="build the artifact again on a machine of this kind",
                    ) from error
                loaded[digest] = Cubin(function, launch, start)

    def cubin(digest: str) -> Cubin:
        try:
            return loaded[digest]
        except KeyError:
            raise ArtifactError(f"holds no binary for kernel {digest}", where=source) from None

    return cubin


def _written(path: Path, binary: bytes) -> str:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(binary)
    return str(path)
