"""The file format: a header that is verified first, a manifest, and blobs under digests.

`docs/format.md` tells it byte by byte. Integers are little-endian; `align(n)` is the next multiple
of 64.

    offset     size  what
    0          8     magic: 89 4C 4F 43 4B 53 54 50 ("\\x89LOCKSTP"; the first byte is not ASCII, so
                     that no text tool takes the file for its own); of a bundle
                     89 4C 4F 43 4B 42 4E 44 ("\\x89LOCKBND")
    8          4     format version, unsigned: 3
    12         4     L, the length of the deflated manifest in bytes, unsigned
    16         32    SHA-256 of those bytes
    48         32    Ed25519 public key of who signed; zeros where nobody has
    80         64    the signature over bytes 0 to 80; zeros where nobody has signed
    144        L     the manifest, deflated: JSON, ASCII, keys sorted, no white space, no NaN (one
                     spelling for one content)
    144+L      ..    zeros up to B = align(144+L)
    B+offset   ..    each blob, in the order of the manifest's "blobs"; between two blobs zeros up
                     to the next multiple of 64; the file ends with the last blob's last byte

`manifest["blobs"]` is a list, sorted by name, of the rows that `stored` makes: a blob lies in the
file as it is or deflated, by its name. Offsets count from B, so they don't depend on the manifest's
own length. Every byte of the file is either compared with a fixed value, or under a digest or a
signature, and is so before it is inflated: no flipped bit passes.

Nothing here executes or imports what a file holds, and only the standard library is used.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from lockstep.build import manifest as texts
from lockstep.build import stored
from lockstep.build.signature import SEAL, check_seal
from lockstep.errors import ArtifactError, UsageError

STEP, BUNDLE = b"\x89LOCKSTP", b"\x89LOCKBND"
KINDS = {STEP: "an artifact", BUNDLE: "a bundle of artifacts"}
VERSION = 3
ALIGN = 64
MAX_BLOBS = 1 << 16
MAX_NAME = 255
MAX_TOTAL = 8 << 30

AGAIN = "build it again, or copy it again from where it came from"
_HEAD = struct.Struct("<8sII32s")  # what is signed
HEADER = _HEAD.size + SEAL
_CHUNK = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*(/[A-Za-z0-9_][A-Za-z0-9_.+-]*)*")

Seal = Callable[[bytes], bytes]


@dataclass(frozen=True)
class Container:
    """A verified file in memory.

    Args:
        manifest: JSON values only.
        blobs: name -> bytes.
        seal: the signer's public key and the signature, 96 bytes; zeros where nobody has signed.
    """

    manifest: dict[str, Any]
    blobs: dict[str, bytes] = field(repr=False)
    seal: bytes = field(repr=False, default=bytes(SEAL))


def encode(
    magic: bytes, manifest: Mapping[str, Any], blobs: Mapping[str, bytes], seal: Seal | bytes
) -> bytes:
    """Return a file's bytes; the same content and seal always give the same bytes.

    Args:
        magic: STEP or BUNDLE.
        manifest: JSON values; its "blobs" are filled in.
        blobs: name -> bytes.
        seal: the 96 bytes of a signature, or what makes them of the bytes that are signed.

    Raises:
        UsageError: LS001, a value that JSON can't hold, a name that is no plain relative path, or
            what is over a limit of the format.
    """
    rows, body = _laid_out(blobs)
    text = stored.deflated(texts.canonical({**manifest, "blobs": rows}))
    head = _HEAD.pack(magic, VERSION, len(text), hashlib.sha256(text).digest())
    out = bytearray(head)
    out += seal(head) if callable(seal) else seal
    out += text
    out += bytes(align(len(out)) - len(out))
    out += body
    return bytes(out)


def _laid_out(blobs: Mapping[str, bytes]) -> tuple[list[stored.Row], bytearray]:
    """The rows of a manifest's "blobs", and the file's bytes from the first one on."""
    if len(blobs) > MAX_BLOBS:
        raise UsageError("too many blobs for one file", got=f"{len(blobs)}", want=f"<= {MAX_BLOBS}")
    rows, body = [], bytearray()
    for name in sorted(blobs):
        if not is_name(name):
            raise UsageError("a blob's name must be a plain relative path", got=repr(name))
        body += bytes(align(len(body)) - len(body))
        row, data = stored.laid(name, blobs[name], len(body))
        rows.append(row)
        body += data
    if stored.inflating(rows) > stored.MAX_INFLATED:
        told = f"{stored.inflating(rows)} bytes of text", f"<= {stored.MAX_INFLATED} bytes"
        raise UsageError("too much text for one file", got=told[0], want=told[1])
    return rows, body


def decode(magic: bytes, data: bytes, source: str) -> Container:
    """Verify every byte of a file, its signature and limits; return what it holds.

    Args:
        magic: STEP or BUNDLE, what is wanted.

    Raises:
        ArtifactError: LS210, cut short, changed, foreign, over a limit, or of another format;
            LS211, not signed as LOCKSTEP_TRUST asks for.
    """
    reader = Reader(io.BytesIO(data), len(data), source)
    reader.want(magic)
    return Container(reader.manifest, reader.blobs(keep=True), reader.seal)


def align(count: int) -> int:
    """Return the next multiple of 64."""
    return -(-count // ALIGN) * ALIGN


def is_name(name: Any) -> bool:
    """Return whether a blob may have this name: a plain relative path, that leads nowhere else."""
    return isinstance(name, str) and len(name) <= MAX_NAME and bool(_NAME.fullmatch(name))


class Reader:
    """A file whose header, signature, manifest and table are verified; its blobs at request.

    Nothing big is allocated, and no blob is touched, before all limits were held.

    Args:
        stream: the whole file.
        size: the file's size in bytes.
        source: what messages call it.

    Raises:
        ArtifactError: LS210 or LS211, as `decode`.
    """

    def __init__(self, stream: BinaryIO, size: int, source: str) -> None:
        self._stream, self._size, self._source = stream, size, source
        stream.seek(0)
        self.manifest, self._start = self._read_manifest()
        self._rows = self._read_rows()

    def want(self, magic: bytes) -> None:
        """Refuse a file of the other kind."""
        if self.magic != magic:
            fix = "LOCKSTEP_STORE=FILE reads a bundle; `lockstep show FILE` tells what is in it"
            raise self.fail("a file of another kind", KINDS[self.magic], KINDS[magic], fix)

    def blobs(self, keep: bool) -> dict[str, bytes]:
        """Verify all blobs and what is between them, to the file's last byte.

        Args:
            keep: whether the bytes are wanted, and not only their digests.
        """
        blobs, at = {}, self._start
        self._stream.seek(self._start)
        for row in self._rows:
            self._zeros(self._start + row["offset"] - at)
            blobs[row["name"]] = self._blob(row, keep)
            at = self._start + row["offset"] + stored.size_in_file(row)
        return blobs

    def blob(self, name: str) -> bytes | None:
        """Verify and return one blob; None where there is none of that name."""
        for row in self._rows:
            if row["name"] == name:
                self._stream.seek(self._start + row["offset"])
                return self._blob(row, keep=True)
        return None

    def fail(self, what: str, got: object, want: object, fix: str = AGAIN) -> ArtifactError:
        """Return the error that says what is wrong with this file."""
        return ArtifactError(what, where=self._source, got=str(got), want=str(want), fix=fix)

    # ---- from the first byte on ----------------------------------------------------------------

    def _take(self, count: int, what: str) -> bytes:
        data = self._stream.read(count)
        if len(data) != count:
            raise self.fail(f"cut short in {what}", f"{len(data)} bytes", f"{count} bytes")
        return data

    def _zeros(self, count: int) -> None:
        if self._take(count, "the padding").strip(b"\0"):
            raise self.fail("changed bytes in the padding", "other bytes", f"{count} zeros")

    def _read_manifest(self) -> tuple[dict[str, Any], int]:
        head = self._take(_HEAD.size, "the header")
        self.magic, version, length, digest = _HEAD.unpack(head)
        self._check_kind(self.magic, version)
        if length > texts.MAX_BYTES or align(HEADER + length) > align(self._size):
            want = f"at most {min(texts.MAX_BYTES, max(self._size - HEADER, 0))} bytes"
            raise self.fail("cut short, or a changed manifest length", f"{length} bytes", want)
        self.seal = self._take(SEAL, "the signature")
        self.signed = check_seal(head, self.seal, self._source)
        data = self._take(length, "the manifest")
        found = hashlib.sha256(data).digest()
        if found != digest:
            raise self.fail("changed bytes in the manifest", found.hex(), digest.hex())
        start = align(HEADER + length)
        self._zeros(start - HEADER - length)
        try:
            return texts.parse(stored.inflated(data, texts.MAX_BYTES)), start
        except ValueError as error:
            want = "canonical JSON in limits, deflated"
            raise self.fail("an unsound manifest", error, want) from error

    def _check_kind(self, magic: bytes, version: int) -> None:
        if magic not in KINDS:
            fix = "give a .lockstep file"
            raise self.fail("not a Lockstep artifact", f"magic {magic.hex()}", STEP.hex(), fix)
        if version != VERSION:
            fix = "use the Lockstep that built it, or build it again with this one"
            raise self.fail("another format version", f"format {version}", f"format {VERSION}", fix)

    def _read_rows(self) -> list[dict[str, Any]]:
        rows = self.manifest.get("blobs")
        if not isinstance(rows, list) or len(rows) > MAX_BLOBS or not all(map(_is_sound, rows)):
            want = f"at most {MAX_BLOBS} of name, offset, size, sha256, and as its name is stored"
            raise self.fail("an unsound table of blobs", "rows of another form", want)
        names = [row["name"] for row in rows]
        if names != sorted(set(names)):
            raise self.fail("blobs that are not sorted and single", _few(names), "sorted names")
        offset = end = 0
        for row in rows:
            if row["offset"] != offset:
                raise self.fail(f"a wrong offset of {row['name']}", row["offset"], offset)
            end = offset + stored.size_in_file(row)
            offset = align(end)
        if end > MAX_TOTAL:
            raise self.fail("an artifact over the limit", f"{end} bytes", f"<= {MAX_TOTAL} bytes")
        text = stored.inflating(rows)
        if text > stored.MAX_INFLATED:
            want = f"<= {stored.MAX_INFLATED} bytes"
            raise self.fail("blobs that inflate to more than the limit", f"{text} bytes", want)
        if self._size != self._start + end:
            what = "cut short" if self._size < self._start + end else "bytes after the last blob"
            raise self.fail(what, f"{self._size} bytes", f"{self._start + end} bytes")
        return rows

    def _blob(self, row: stored.Row, keep: bool) -> bytes:
        digest, parts, left = hashlib.sha256(), [], stored.size_in_file(row)
        deflated = row["stored"] == stored.ZLIB
        while left:
            part = self._take(min(left, _CHUNK), row["name"])
            digest.update(part)
            left -= len(part)
            if keep or deflated:
                parts.append(part)
        want = stored.digest_in_file(row)
        if digest.hexdigest() != want:
            raise self.fail(f"changed bytes in {row['name']}", digest.hexdigest(), want)
        data = b"".join(parts)
        if not deflated:
            return data
        try:
            return stored.plain(row, data)
        except ValueError as error:
            want = f"{row['size']} bytes of sha256 {row['sha256']}, deflated"
            raise self.fail(f"an unsound stream in {row['name']}", error, want) from error


def open_file(path: str | os.PathLike[str], stream: BinaryIO) -> Reader:
    """Return the reader of an open file."""
    return Reader(stream, os.fstat(stream.fileno()).st_size, os.fspath(path))


def _is_sound(row: Any) -> bool:
    return stored.is_row(row, MAX_TOTAL) and is_name(row["name"])


def _few(names: list[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
