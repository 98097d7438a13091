"""The artifact: one file that holds a compiled step, and can be verified before it is trusted.

`lockstep.build.format` tells its bytes, `lockstep.build.shape` its manifest. Nothing here executes
or imports what an artifact holds, and only the standard library is used.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.build import bytecode, format, shape
from lockstep.build.signature import UNSIGNED, sealer
from lockstep.errors import ArtifactError, UsageError

if TYPE_CHECKING:
    from lockstep.build.program import Program

PROGRAM = "program.py"
_RESERVED = ("blobs", "backend", "requires", "code", "repeats", "parts")
_KERNEL = re.compile(r"kernels/[0-9a-z_]{1,64}\.[a-z]+")


@dataclass(frozen=True)
class Artifact:
    """A verified artifact in memory.

    Args:
        manifest: JSON values only; what `lockstep show` prints. The artifact's: don't change it.
        blobs: name -> bytes, for example "program.py" and "kernels/<digest>.so".
        digest: SHA-256 of the whole file, in hex. Equal digests mean equal files.
        seal: the signer's public key and the signature; zeros where nobody has signed.

    Example:
        >>> from lockstep.build.program import Program
        >>> artifact = pack({"step": "train"}, Program("graph", "def call(inputs): ...", {}, {}))
        >>> Artifact.from_bytes(artifact.to_bytes()) == artifact
        True
    """

    manifest: dict[str, Any]
    blobs: dict[str, bytes] = field(repr=False)
    digest: str
    seal: bytes = field(repr=False, default=UNSIGNED)

    def to_bytes(self) -> bytes:
        """Return the file's bytes; the same content always gives the same bytes."""
        return format.encode(format.STEP, self.manifest, self.blobs, self.seal)

    @classmethod
    def from_bytes(cls, data: bytes, source: str = "<bytes>") -> Artifact:
        """Verify everything, then return the artifact.

        Args:
            data: a whole file.
            source: where it came from; error messages name it.

        Raises:
            ArtifactError: LS210, cut short, changed, foreign, over a limit, or of another format;
                LS211, not signed by whom LOCKSTEP_TRUST names.
        """
        held = format.decode(format.STEP, data, source)
        check_step(held.manifest, source)
        return cls(held.manifest, held.blobs, hashlib.sha256(data).hexdigest(), held.seal)


def pack(
    manifest: Mapping[str, Any],
    program: Program,
    extra: Mapping[str, bytes] | None = None,
    seal: Callable[[bytes], bytes] | None = None,
) -> Artifact:
    """Put a lowered program and what is known about it into an artifact.

    Args:
        manifest: JSON values under string keys; "backend", "requires", "code", "repeats",
            "parts" and "blobs" are filled in.
        program: what a back end made.
        extra: further blobs, such as {"graph.json": ...}; plain, not deflated.
        seal: what signs, from `sealer`; by default by the key that LOCKSTEP_SIGN names.

    Returns:
        The artifact, equal to what `Artifact.from_bytes` gives back.

    Raises:
        UsageError: LS001, a reserved key, a value JSON can't hold, or a taken or odd blob name.
    """
    text = program.text.encode()
    told, code = bytecode.byte_code(program.text, hashlib.sha256(text).hexdigest())
    blobs = {PROGRAM: text, bytecode.BLOB: code}
    blobs |= {f"kernels/{digest}.so": library for digest, library in program.kernels.items()}
    blobs |= {f"kernels/{name}": data for name, data in program.files.items()}
    for digest, source in program.sources.items():
        language = "py" if f"{digest}.cubin" in program.files else "cpp"
        blobs[f"kernels/{digest}.{language}"] = source.encode()
    taken = sorted(set(blobs) & set(extra or {}))
    reserved = sorted(set(_RESERVED) & set(manifest))
    if taken or reserved:
        raise UsageError(
            "an artifact's own names were given again",
            got=", ".join(reserved + taken),
            fix="choose other names for the manifest's keys and the extra blobs",
        )
    blobs |= extra or {}
    full = dict(manifest) | {"backend": program.backend, "code": told}
    full |= {"requires": program.requires}
    full |= {"repeats": program.repeats} if program.repeats else {}
    full |= {"parts": program.parts} if any(program.parts) else {}
    return Artifact.from_bytes(format.encode(format.STEP, full, blobs, seal or sealer()), "<pack>")


def read_manifest(source: str | os.PathLike[str] | bytes) -> dict[str, Any]:
    """Return the manifest of an artifact's file (or of its bytes) after verifying every byte.

    Raises:
        ArtifactError: LS210 or LS211, as `Artifact.from_bytes`.
        OSError: the file can't be read.
    """
    if isinstance(source, bytes):
        return _manifest(format.Reader(io.BytesIO(source), len(source), "<bytes>"), "<bytes>")
    with Path(source).open("rb") as stream:
        return _manifest(format.open_file(source, stream), os.fspath(source))


def _manifest(reader: format.Reader, source: str) -> dict[str, Any]:
    reader.want(format.STEP)
    reader.blobs(keep=False)
    check_step(reader.manifest, source)
    return reader.manifest


def check_step(manifest: dict[str, Any], source: str, form: shape.Form = shape.STEP) -> None:
    """Refuse a manifest that is not of a step's form.

    Raises:
        ArtifactError: LS210, naming the value.
    """
    found = shape.misfit(manifest, form)
    names = [row["name"] for row in manifest.get("blobs", [])]
    odd = [n for n in names if n.startswith("kernels/") and not _KERNEL.fullmatch(n)]
    if odd:
        found = f"the name of a kernel is {odd[0]!r}"
    if found:
        raise ArtifactError(
            "the manifest is not that of a step",
            where=source,
            got=found,
            want="what docs/format.md says",
            fix=format.AGAIN,
        )
