"""What can be told of a file without executing any of it: `lockstep show` and `lockstep verify`.

The standard library alone is used; a signature is verified where `cryptography` is there too.
"""

from __future__ import annotations

import hashlib
import io
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.build import bytecode, format
from lockstep.build.artifact import PROGRAM, check_step
from lockstep.build.bundle import check_bundle
from lockstep.build.signature import Signed
from lockstep.errors import ArtifactError


@dataclass(frozen=True)
class Part:
    """An artifact of a bundle, verified: its name in a store, step, role, size, digest, signer."""

    name: str
    step: str
    size: int
    digest: str
    signed: Signed | None
    role: str = ""


@dataclass(frozen=True)
class Inspected:
    """A file whose every byte was verified.

    Args:
        name: the file's, without its folder.
        size: in bytes.
        digest: SHA-256 of the whole file.
        signed: who signed it; None where nobody has.
        byte_code: whether the byte code is what the text compiles to; None where there is none of
            this interpreter.
        artifacts: of a bundle; empty for the file of one artifact.
    """

    name: str
    size: int
    digest: str
    manifest: dict[str, Any]
    signed: Signed | None
    byte_code: bool | None
    artifacts: tuple[Part, ...] = ()

    def head(self) -> list[str]:
        """Return the first lines of what is told of it."""
        kind = f"bundle of {len(self.artifacts)} artifacts, " if self.artifacts else ""
        return [
            f"{self.name}: verified, {kind}{size_text(self.size)}, format {format.VERSION}",
            f"  sha256    {self.digest}",
            f"  signed    {signer(self.signed)}",
        ]


def inspect(path: str | os.PathLike[str]) -> Inspected:
    """Verify the file of an artifact or a bundle: digests, limits, form, signature, byte code.

    Raises:
        ArtifactError: LS210 or LS211, in words what is wrong.
        OSError: the file can't be read.
    """
    with Path(path).open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
        stream.seek(0)
        reader = format.open_file(Path(path), stream)
        size = os.fstat(stream.fileno()).st_size
        if reader.magic == format.STEP:
            check_step(reader.manifest, str(path))
            same = _byte_code(reader.manifest, reader.blobs(keep=True), str(path))
            return Inspected(Path(path).name, size, digest, reader.manifest, reader.signed, same)
        check_bundle(reader.manifest, str(path))
        reader.blobs(keep=False)
        parts = tuple(
            _part(row, reader.blob(row["name"]) or b"", f"{path}: {row['name']}")
            for row in reader.manifest["artifacts"]
        )
    return Inspected(Path(path).name, size, digest, reader.manifest, reader.signed, None, parts)


def signer(signed: Signed | None) -> str:
    """Return who signed a file, in words, and what is known of it."""
    if signed is None:
        return "by nobody"
    if not signed.verified:
        return f"by {signed.key}, not verified: that needs the package cryptography"
    return f"by {signed.key}, " + ("which is trusted" if signed.trusted else "verified")


def size_text(size: int) -> str:
    """Return a number of bytes as one reads it.

    Example:
        >>> size_text(9999), size_text(1234567)
        ('9999 bytes', '1.23 MB')
    """
    return f"{size} bytes" if size < 10_000 else f"{size / 1e6:.2f} MB"


def _part(row: dict[str, str], data: bytes, source: str) -> Part:
    reader = format.Reader(io.BytesIO(data), len(data), source)
    reader.want(format.STEP)
    check_step(reader.manifest, source)
    _byte_code(reader.manifest, reader.blobs(keep=True), source)
    role = row.get("role", "")
    return Part(row["name"], row["step"], len(data), row["digest"], reader.signed, role)


def _byte_code(manifest: dict[str, Any], blobs: dict[str, bytes], source: str) -> bool | None:
    """Compare byte code with the text it is said to be of; neither is executed."""
    text = blobs.get(PROGRAM, b"")
    digest = hashlib.sha256(text).hexdigest()
    told, data = manifest.get("code"), blobs.get(bytecode.BLOB)
    try:
        same = bytecode.agrees(told, data, text.decode(), digest)
    except (SyntaxError, ValueError) as error:
        raise _odd_code(source, f"a text that can't be compiled: {error}") from error
    if same is False:
        raise _odd_code(source, f"{bytecode.BLOB} is not what {PROGRAM} compiles to")
    return same


def _odd_code(source: str, got: str) -> ArtifactError:
    return ArtifactError(
        "the byte code is not that of the program's text",
        where=source,
        got=got,
        why="what would run is not what can be read",
        fix="build it again",
    )
