"""Load a program on a rank: check, execute one module text, open the shipped libraries."""

from __future__ import annotations

import hashlib
import linecache
from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any

from lockstep import _compat
from lockstep.build import bytecode
from lockstep.build.artifact import PROGRAM, Artifact
from lockstep.build.requires import check_requires
from lockstep.errors import ArtifactError
from lockstep.run import traced
from lockstep.run.alarm import alarm
from lockstep.run.kernels import scope_for

Call = Callable[[list[Any]], Sequence[Any]]


def load_program(artifact: Artifact) -> Call:
    """Make an artifact's step callable in this process.

    Nothing is traced or compiled and no process is started: the alarm is on. Requirements are
    checked before any of the artifact's code runs.

    Args:
        artifact: verified by `Artifact.from_bytes`, or fresh from `pack`.

    Returns:
        `call(inputs)`: takes the list of the contract's inputs, empties it, and returns the
        outputs, new or aliasing inputs as the captured step's did. Gradients and autocast are
        off inside: the program holds their effects already.

    Raises:
        ArtifactError: LS210, this process or machine is not what the artifact was built for.
        AlarmError: LS220, loading caused a trace, a compile or a process.
    """
    name = f"artifact {artifact.digest[:12]}"
    check_requires(artifact.manifest.get("requires", {}), name)
    text, digest = _text(artifact, name)
    with alarm(f"loading {name}"):
        scope, code = scope_for(artifact), None
        if traced.wanted():
            scope |= traced.scope()
            code = bytecode.compiled(traced.traced_text(text), digest)
        exec(code or _code(artifact, text, digest), scope)
    filename = bytecode.filename_of(digest)
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    return _sealed(scope["call"], "accelerator" in artifact.manifest.get("requires", {}))


def _code(artifact: Artifact, text: str, digest: str) -> CodeType:
    """The byte code that was shipped, where it is this interpreter's and of this text; else new."""
    told, data = artifact.manifest.get("code"), artifact.blobs.get(bytecode.BLOB)
    return bytecode.code_of(told, data, digest) or bytecode.compiled(text, digest)


def _text(artifact: Artifact, name: str) -> tuple[str, str]:
    """The program's text, and its digest."""
    try:
        data = artifact.blobs[PROGRAM]
        return data.decode(), hashlib.sha256(data).hexdigest()
    except (KeyError, UnicodeDecodeError) as error:
        raise ArtifactError(
            "holds no readable program.py",
            where=name,
            got=", ".join(artifact.blobs),
            fix="build it again",
        ) from error


def _sealed(call: Call, on_accelerator: bool) -> Call:
    """Run without autograd and autocast, whatever the caller has switched on.

    Kernels are on the accelerator that was current when they were loaded, so that this one it is.
    """
    import torch

    without_autocast = _compat.without_autocast()
    here = _compat.current_accelerator() if on_accelerator else None
    if here is not None:

        def run_there(inputs: list[Any]) -> Sequence[Any]:
            with torch.accelerator.device_index(here.index), torch.no_grad(), without_autocast():
                return call(inputs)

        return run_there

    def run(inputs: list[Any]) -> Sequence[Any]:
        with torch.no_grad(), without_autocast():
            return call(inputs)

    return run
