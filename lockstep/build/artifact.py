"""The artifact: one file that holds a compiled step, and can be verified before it is trusted.

Format 1, byte by byte. Integers are little-endian; `align(n)` is the next multiple of 64.

    offset     size  what
    0          8     magic: 89 4C 4F 43 4B 53 54 50 ("\\x89LOCKSTP"; the first byte is not ASCII, so
                     that no text tool takes the file for its own)
    8          4     format version, unsigned: 1
    12         4     L, the length of the manifest in bytes, unsigned
    16         32    SHA-256 of the manifest's bytes
    48         L     the manifest: JSON, ASCII, keys sorted, no white space, no NaN (one spelling
                     for one content)
    48+L       ..    zeros up to B = align(48+L)
    B+offset   size  each blob, in the order of the manifest's "blobs"; between two blobs zeros up
                     to the next multiple of 64; the file ends with the last blob's last byte

`manifest["blobs"]` is a list, sorted by name, of `{"name", "offset", "size", "sha256"}`; offsets
count from B, so they don't depend on the manifest's own length. Every byte of the file is either
compared with a fixed value or under a digest: no flipped bit passes.

Nothing here executes or imports what an artifact holds, and only the standard library is used.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from lockstep.errors import ArtifactError, UsageError

if TYPE_CHECKING:
    from lockstep.build.program import Program

MAGIC = b"\x89LOCKSTP"
VERSION = 1
ALIGN = 64
MAX_MANIFEST = 64 << 20
MAX_BLOBS = 1 << 16
MAX_TOTAL = 8 << 30

_HEADER = struct.Struct("<8sII32s")
_CHUNK = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*")
_RESERVED = ("blobs", "backend", "requires")
_AGAIN = "build it again, or copy it again from where it came from"


@dataclass(frozen=True)
class Artifact:
    """A verified artifact in memory.

    Args:
        manifest: JSON values only; what `lockstep show` prints. The artifact's: don't change it.
        blobs: name -> bytes, for example "program.py" and "kernels/<digest>.so".
        digest: SHA-256 of the whole file, in hex. Equal digests mean equal files.

    Example:
        >>> from lockstep.build.program import Program
        >>> artifact = pack({"step": "train"}, Program("graph", "def call(inputs): ...", {}, {}))
        >>> Artifact.from_bytes(artifact.to_bytes()) == artifact
        True
    """

    manifest: dict[str, Any]
    blobs: dict[str, bytes] = field(repr=False)
    digest: str

    def to_bytes(self) -> bytes:
        """Return the file's bytes; the same content always gives the same bytes."""
        return _encode(self.manifest, self.blobs)

    @classmethod
    def from_bytes(cls, data: bytes, source: str = "<bytes>") -> Artifact:
        """Verify everything, then return the artifact.

        Args:
            data: a whole file.
            source: where it came from; error messages name it.

        Raises:
            ArtifactError: LS210, cut short, changed, foreign, or of a newer format.
        """
        manifest, blobs = _Reader(io.BytesIO(data), len(data), source).read(keep=True)
        return cls(manifest, blobs, hashlib.sha256(data).hexdigest())


def pack(
    manifest: Mapping[str, Any], program: Program, extra: Mapping[str, bytes] | None = None
) -> Artifact:
    """Put a lowered program and what is known about it into an artifact.

    Args:
        manifest: JSON values under string keys; "backend", "requires", "blobs" are filled in.
        program: what a back end made.
        extra: further blobs, such as {"source_map.json": ...}.

    Returns:
        The artifact, equal to what `Artifact.from_bytes` gives back.

    Raises:
        UsageError: LS001, a reserved key, a value JSON can't hold, or a taken or odd blob name.
    """
    blobs = {"program.py": program.text.encode()}
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
    full = dict(manifest) | {"backend": program.backend, "requires": program.requires}
    full["blobs"] = _layout(blobs)
    try:
        text = _canonical(full)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError("the manifest holds a value that JSON does not", got=str(error)) from error
    full = json.loads(text)
    data = _encode(full, blobs)
    return Artifact(full, blobs, hashlib.sha256(data).hexdigest())


def read_manifest(source: str | os.PathLike[str] | bytes) -> dict[str, Any]:
    """Return the manifest of a file (or of its bytes) after verifying every byte; executes nothing.

    Raises:
        ArtifactError: LS210, as `Artifact.from_bytes`.
        OSError: the file can't be read.
    """
    if isinstance(source, bytes):
        return _Reader(io.BytesIO(source), len(source), "<bytes>").read(keep=False)[0]
    with Path(source).open("rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        return _Reader(stream, size, os.fspath(source)).read(keep=False)[0]


def _canonical(manifest: Mapping[str, Any]) -> bytes:
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return text.encode("ascii")


def _align(count: int) -> int:
    return -(-count // ALIGN) * ALIGN


def _layout(blobs: Mapping[str, bytes]) -> list[dict[str, Any]]:
    offset, rows = 0, []
    for name in sorted(blobs):
        if not _NAME.fullmatch(name):
            raise UsageError("a blob's name must be a plain relative path", got=repr(name))
        digest = hashlib.sha256(blobs[name]).hexdigest()
        rows.append({"name": name, "offset": offset, "size": len(blobs[name]), "sha256": digest})
        offset = _align(offset + len(blobs[name]))
    return rows


def _encode(manifest: Mapping[str, Any], blobs: Mapping[str, bytes]) -> bytes:
    text = _canonical(manifest)
    out = bytearray(_HEADER.pack(MAGIC, VERSION, len(text), hashlib.sha256(text).digest()))
    out += text
    for row in manifest["blobs"]:
        out += bytes(_align(len(out)) - len(out))
        out += blobs[row["name"]]
    if not manifest["blobs"]:
        out += bytes(_align(len(out)) - len(out))
    return bytes(out)


class _Reader:
    """Walk one file from its first byte to its last, refusing before anything big is allocated."""

    def __init__(self, stream: BinaryIO, size: int, source: str) -> None:
        self._stream, self._size, self._source = stream, size, source

    def read(self, keep: bool) -> tuple[dict[str, Any], dict[str, bytes]]:
        manifest, start = self._manifest()
        blobs, at = {}, start
        for row in self._rows(manifest, start):
            self._zeros(start + row["offset"] - at)
            blobs[row["name"]] = self._blob(row, keep)
            at = start + row["offset"] + row["size"]
        return manifest, blobs

    def _fail(self, what: str, got: object, want: object, fix: str = _AGAIN) -> ArtifactError:
        return ArtifactError(what, where=self._source, got=str(got), want=str(want), fix=fix)

    def _take(self, count: int, what: str) -> bytes:
        data = self._stream.read(count)
        if len(data) != count:
            raise self._fail(f"cut short in {what}", f"{len(data)} bytes", f"{count} bytes")
        return data

    def _zeros(self, count: int) -> None:
        if self._take(count, "the padding").strip(b"\0"):
            raise self._fail("changed bytes in the padding", "other bytes", f"{count} zeros")

    def _manifest(self) -> tuple[dict[str, Any], int]:
        magic, version, length, digest = _HEADER.unpack(self._take(_HEADER.size, "the header"))
        if magic != MAGIC:
            raise self._fail(
                "not a Lockstep artifact",
                f"magic {magic.hex()}",
                MAGIC.hex(),
                "give a .lockstep file",
            )
        if version != VERSION:
            fix = "use the Lockstep that built it, or build it again with this one"
            raise self._fail(
                "another format version", f"format {version}", f"format {VERSION}", fix
            )
        if length > MAX_MANIFEST or _align(_HEADER.size + length) > _align(self._size):
            want = f"at most {min(MAX_MANIFEST, max(self._size - _HEADER.size, 0))} bytes"
            raise self._fail("cut short, or a changed manifest length", f"{length} bytes", want)
        text = self._take(length, "the manifest")
        found = hashlib.sha256(text).digest()
        if found != digest:
            raise self._fail("changed bytes in the manifest", found.hex(), digest.hex())
        self._zeros(_align(_HEADER.size + length) - _HEADER.size - length)
        return self._parse(text), _align(_HEADER.size + length)

    def _parse(self, text: bytes) -> dict[str, Any]:
        try:
            manifest = json.loads(text.decode("ascii"))
            canonical = isinstance(manifest, dict) and _canonical(manifest) == text
        except (ValueError, RecursionError) as error:
            raise self._fail("a manifest that is not JSON", error, "canonical JSON") from error
        if not canonical:
            raise self._fail("a manifest in another spelling", "JSON", "canonical JSON, an object")
        return manifest

    def _rows(self, manifest: dict[str, Any], start: int) -> list[dict[str, Any]]:
        rows = manifest.get("blobs")
        if not isinstance(rows, list) or len(rows) > MAX_BLOBS or not all(map(_row_is_sound, rows)):
            want = f"at most {MAX_BLOBS} of name, offset, size, sha256"
            raise self._fail("an unsound table of blobs", "the manifest's", want)
        names = [row["name"] for row in rows]
        if names != sorted(set(names)):
            raise self._fail("an unsound table of blobs", "names not sorted and single", "sorted")
        offset = end = 0
        for row in rows:
            if row["offset"] != offset:
                raise self._fail(f"a wrong offset of {row['name']}", row["offset"], offset)
            end = offset + row["size"]
            offset = _align(end)
        if end > MAX_TOTAL:
            raise self._fail("an artifact over the limit", f"{end} bytes", f"<= {MAX_TOTAL} bytes")
        if self._size != start + end:
            what = "cut short" if self._size < start + end else "bytes after the last blob"
            raise self._fail(what, f"{self._size} bytes", f"{start + end} bytes")
        return rows

    def _blob(self, row: dict[str, Any], keep: bool) -> bytes:
        digest, parts, left = hashlib.sha256(), [], row["size"]
        while left:
            part = self._take(min(left, _CHUNK), row["name"])
            digest.update(part)
            left -= len(part)
            if keep:
                parts.append(part)
        if digest.hexdigest() != row["sha256"]:
            raise self._fail(f"changed bytes in {row['name']}", digest.hexdigest(), row["sha256"])
        return b"".join(parts)


def _row_is_sound(row: Any) -> bool:
    return (
        isinstance(row, dict)
        and set(row) == {"name", "offset", "size", "sha256"}
        and isinstance(row["name"], str)
        and _NAME.fullmatch(row["name"]) is not None
        and type(row["offset"]) is int
        and type(row["size"]) is int
        and 0 <= row["offset"] <= MAX_TOTAL
        and 0 <= row["size"] <= MAX_TOTAL
        and isinstance(row["sha256"], str)
    )
