"""What a program's text finds by name: shipped libraries, and stand-ins for a compiler's helpers.

A program says `kernel("<digest>")`; the library of that digest is in the artifact. It is written to
a private folder, opened, and unlinked at once: the mapping stays, nothing is left behind.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import tempfile
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lockstep import _compat
from lockstep.build.artifact import Artifact
from lockstep.errors import ArtifactError
from lockstep.run.cubins import cubins

# Where Inductor's C++ bindings look for the one function they need of torch, as a decimal address.
_POINTER = "_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR"


def scope_for(artifact: Artifact) -> dict[str, Any]:
    """Return the names that an artifact's module text starts with.

    Example:
        >>> scope_for(Artifact({"backend": "graph"}, {}, ""))["__name__"]
        'lockstep_program'
    """
    scope: dict[str, Any] = {"__name__": "lockstep_program"}
    if artifact.manifest.get("backend") == "graph":
        return scope
    import torch

    externs = {name: _extern(torch, path) for name, path in _compat.EXTERN_KERNELS.items()}
    return scope | {
        "kernel": _kernels(artifact),
        "cubin": cubins(artifact.blobs, artifact.digest[:12]),
        "extern_kernels": types.SimpleNamespace(**externs),
        "assert_tensor_metadata": assert_tensor_metadata,
        "align": align,
        **_compat.generated_helpers(),
        "empty_strided": torch.empty_strided,
    }


def _extern(torch: Any, path: str) -> Any:
    found = torch
    for part in path.split("."):
        found = getattr(found, part)
    return found


def align(nbytes: int) -> int:
    """Round up to 64 bytes, as the compiler's memory plan does."""
    return (nbytes + 63) // 64 * 64


def assert_tensor_metadata(
    tensor: Any, size: Any, stride: Any, dtype: Any, name: str | None = None
) -> None:
    """Check that an operator returned what its fake version promised; None passes."""
    if tensor is None:
        return
    if tensor.dtype != dtype:
        raise RuntimeError(f"expected dtype {dtype} but got {tensor.dtype} from {name}")
    _compat.assert_size_stride(tensor, size, stride, name)


def _kernels(artifact: Artifact) -> Callable[[str], Callable[..., None]]:
    """Open every library of the artifact; return the program's `kernel`."""
    opened: dict[str, Callable[..., None]] = {}
    os.environ[_POINTER] = str(_compat.tensor_pointer_address())
    with tempfile.TemporaryDirectory(prefix="lockstep-") as folder:  # mode 0700
        for name, library in artifact.blobs.items():
            if name.startswith("kernels/") and name.endswith(".so"):
                digest = name.removeprefix("kernels/").removesuffix(".so")
                opened[digest] = _opened(Path(folder) / f"{digest}.so", library, digest)

    def kernel(digest: str) -> Callable[..., None]:
        try:
            return opened[digest]
        except KeyError:
            raise ArtifactError(
                f"holds no library for kernel {digest}", where=artifact.digest[:12]
            ) from None

    return kernel


def _opened(path: Path, library: bytes, digest: str) -> Callable[..., None]:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o700)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(library)
    # The last part of the module's name says which PyInit_ function is called.
    loader = importlib.machinery.ExtensionFileLoader(f"{digest}.kernel", str(path))
    spec = importlib.util.spec_from_loader(loader.name, loader, origin=str(path))
    assert spec is not None  # a loader was given
    try:
        module = importlib.util.module_from_spec(spec)
    except ImportError as error:
        raise ArtifactError(
            "a library of the artifact can't be opened",
            where=path.name,
            got=str(error).replace(str(path), path.name),
            want="a folder for temporary files that allows executing",
            fix="set TMPDIR to such a folder; else build the artifact again",
        ) from error
    loader.exec_module(module)
    return module.kernel
