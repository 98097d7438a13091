"""How a file keeps a blob: as it is, or deflated; by its name alone.

What is opened or mapped where it lies, a library, an accelerator's binary, a whole artifact, is
"raw". All else is text, or shrinks as text does: "zlib". Its row then tells the size and the digest
of both, of what it is and of what lies in the file. The latter is verified before anything is
inflated, and no more is inflated than the row says.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Iterable
from typing import Any

RAW, ZLIB = "raw", "zlib"
LEVEL = 9
MAX_INFLATED = 256 << 20  # of all deflated blobs of a file together

_OPENED = (".so", ".cubin", ".lockstep")
_START = b"\x78\xda"  # of every zlib stream of that level, without a dictionary
_DIGEST = re.compile("[0-9a-f]{64}")
_KEYS = {
    RAW: {"name", "offset", "size", "sha256", "stored"},
    ZLIB: {"name", "offset", "size", "sha256", "stored", "stored_size", "stored_sha256"},
}
Row = dict[str, Any]


def way_of(name: str) -> str:
    """Return how a blob of this name is kept.

    Example:
        >>> way_of("kernels/1a.so"), way_of("kernels/1a.cpp")
        ('raw', 'zlib')
    """
    return RAW if name.endswith(_OPENED) else ZLIB


def deflated(data: bytes) -> bytes:
    """Return a zlib stream of the data, at the format's level."""
    return zlib.compress(data, LEVEL)


def inflated(stream: bytes, most: int) -> bytes:
    """Return what a zlib stream holds.

    Args:
        stream: the whole of it, and nothing else.
        most: bytes at most; inflating stops there.

    Raises:
        ValueError: in words, what is wrong with the stream.

    Example:
        >>> inflated(deflated(b"text"), 4)
        b'text'
        >>> inflated(deflated(bytes(1000000)), 4)
        Traceback (most recent call last):
        ValueError: it inflates to more than 4 bytes
    """
    if stream[:2] != _START:
        raise ValueError(f"it begins with {stream[:2].hex()}, a zlib stream here with 78da")
    reader = zlib.decompressobj()
    try:
        data = reader.decompress(stream, most + 1)
    except zlib.error as error:
        raise ValueError(f"it can't be inflated: {error}") from error
    if len(data) > most:
        raise ValueError(f"it inflates to more than {most} bytes")
    if not reader.eof:
        raise ValueError(f"its stream is cut short after {len(data)} bytes")
    if reader.unused_data:
        raise ValueError(f"{len(reader.unused_data)} bytes stand behind its stream")
    return data


def laid(name: str, data: bytes, offset: int) -> tuple[Row, bytes]:
    """Return a blob's row, and its bytes in the file."""
    row = {"name": name, "offset": offset, "size": len(data), "stored": way_of(name)}
    row["sha256"] = hashlib.sha256(data).hexdigest()
    if row["stored"] == RAW:
        return row, data
    stream = deflated(data)
    row |= {"stored_size": len(stream), "stored_sha256": hashlib.sha256(stream).hexdigest()}
    return row, stream


def size_in_file(row: Row) -> int:
    """Return how many bytes of the file are a blob's."""
    size: int = row["size" if row["stored"] == RAW else "stored_size"]
    return size


def inflating(rows: Iterable[Row]) -> int:
    """Return how many bytes all that is deflated inflates to, as the rows tell."""
    return sum(row["size"] for row in rows if row["stored"] == ZLIB)


def digest_in_file(row: Row) -> str:
    """Return the digest of a blob's bytes in the file."""
    digest: str = row["sha256" if row["stored"] == RAW else "stored_sha256"]
    return digest


def is_row(row: Any, most: int) -> bool:
    """Return whether a value has a row's keys and types, and is kept as its name says.

    Args:
        most: what an offset or a size may be.
    """
    if not isinstance(row, dict) or not isinstance(row.get("name"), str):
        return False
    way = way_of(row["name"])
    if row.get("stored") != way or set(row) != _KEYS[way]:
        return False
    numbers = (row[key] for key in ("offset", "size", "stored_size") if key in row)
    digests = (row[key] for key in ("sha256", "stored_sha256") if key in row)
    return all(type(one) is int and 0 <= one <= most for one in numbers) and all(
        isinstance(one, str) and _DIGEST.fullmatch(one) for one in digests
    )


def plain(row: Row, data: bytes) -> bytes:
    """Return a deflated blob of its bytes in the file, whose digest was verified.

    Raises:
        ValueError: in words, how it is not what the row says.
    """
    found = inflated(data, row["size"])
    if len(found) != row["size"]:
        raise ValueError(f"it inflates to {len(found)} bytes")
    digest = hashlib.sha256(found).hexdigest()
    if digest != row["sha256"]:
        raise ValueError(f"it inflates to bytes of sha256 {digest}")
    return found
