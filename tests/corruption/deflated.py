"""Streams that are not what their row says: cut, longer, other ones, bombs; words that say a way.

Every digest in them agrees with the bytes in the file.
"""

from __future__ import annotations

import functools
import hashlib
import random
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from lockstep.build import format, stored
from tests.corruption.files import Real
from tests.corruption.forged import UNSIGNED, file_of, file_of_stream, spelled, whole_manifest
from tests.corruption.judge import Mutation

Held = list[tuple[dict[str, Any], bytes]]  # each blob's row, and its bytes in the file
MANY = 1 << 30  # bytes that a bomb inflates to


def held_in(data: bytes) -> tuple[dict[str, Any], Held]:
    """A sound file's manifest, and its blobs as they lie in it."""
    manifest, start = whole_manifest(data)
    rows = manifest.pop("blobs")
    held = [(r, data[start + r["offset"] :][: stored.size_in_file(r)]) for r in rows]
    return manifest, held


def laid(manifest: dict[str, Any], held: Held) -> bytes:
    """A file of blobs as they lie in it, offsets right, whatever their rows say else."""
    rows, body = [], b""
    for row, data in held:
        body += bytes(-len(body) % format.ALIGN)
        rows.append({**row, "offset": len(body)})
        body += data
    return file_of(spelled({**manifest, "blobs": rows}), body, UNSIGNED)


def resealed(row: dict[str, Any], stream: bytes) -> tuple[dict[str, Any], bytes]:
    """A row with a stream's size and digest."""
    told = {"stored_size": len(stream), "stored_sha256": hashlib.sha256(stream).hexdigest()}
    return {**row, **told}, stream


def streams(files: Sequence[Real], each: int, draw: random.Random) -> Iterator[Mutation]:
    """Yield unsigned files with right digests, one of whose streams or rows is another."""
    plain = [real for real in files if not real.signed]
    for number in range(each):
        for change in (_of_manifest, _of_blob, _of_row, _of_words):
            real = plain[number % len(plain)]
            kind, data = change(real, draw)
            yield Mutation(kind, data, real.wanted, True, False)
    for kind, data in _bombs(plain[0]):
        yield Mutation(f"a bomb: {kind}", data, plain[0].wanted, True, False)


def _cut(stream: bytes, draw: random.Random) -> bytes:
    return stream[: draw.randrange(len(stream))]


def _longer(stream: bytes, draw: random.Random) -> bytes:
    return stream + draw.choice([b"\0", stream, draw.randbytes(9)])


def _torn(stream: bytes, draw: random.Random) -> bytes:
    """A flipped bit somewhere, or in the sum of what it holds."""
    while True:
        at = draw.choice([len(stream) - 4, draw.randrange(2, len(stream))])
        torn = stream[:at] + bytes([stream[at] ^ 1 << draw.randrange(8)]) + stream[at + 1 :]
        if not _same(torn, stream):  # a bit between the last block and the sum says nothing
            return torn


def _same(torn: bytes, stream: bytes) -> bool:
    try:
        return zlib.decompress(torn) == zlib.decompress(stream)
    except zlib.error:
        return False


def _another_level(stream: bytes, draw: random.Random) -> bytes:
    return zlib.compress(zlib.decompress(stream), draw.choice([0, 1, 2, 5, 6]))


def _another_form(stream: bytes, draw: random.Random) -> bytes:
    """Without a head, with gzip's, with a smaller window, or with a dictionary."""
    text = zlib.decompress(stream)
    if draw.random() < 0.3:
        maker = zlib.compressobj(9, zdict=text[:64] or b"x")
    else:
        maker = zlib.compressobj(9, wbits=draw.choice([-15, 31, 9]))
    return maker.compress(text) + maker.flush()


def _as_it_is(stream: bytes, _: random.Random) -> bytes:
    return zlib.decompress(stream)


WAYS: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "a cut stream": _cut,
    "bytes behind a stream": _longer,
    "a torn stream": _torn,
    "a stream of another level": _another_level,
    "a stream of another form": _another_form,
    "no stream at all": _as_it_is,
}


def _of_manifest(real: Real, draw: random.Random) -> tuple[str, bytes]:
    length = int.from_bytes(real.data[12:16], "little")
    stream, start = real.data[144 : 144 + length], whole_manifest(real.data)[1]
    kind = draw.choice(sorted(WAYS))
    data = file_of_stream(WAYS[kind](stream, draw), real.data[start:], UNSIGNED)
    return f"the manifest: {kind}", data


def _of_blob(real: Real, draw: random.Random) -> tuple[str, bytes]:
    manifest, held = held_in(real.data)
    at = draw.choice([i for i, (row, _) in enumerate(held) if row["stored"] == "zlib"])
    kind = draw.choice(sorted(WAYS))
    held[at] = resealed(held[at][0], WAYS[kind](held[at][1], draw))
    return f"a blob: {kind}", laid(manifest, held)


def _of_row(real: Real, draw: random.Random) -> tuple[str, bytes]:
    """A stream that inflates to other bytes than its row says, by size or by digest."""
    manifest, held = held_in(real.data)
    at = draw.choice([i for i, (row, _) in enumerate(held) if row["stored"] == "zlib"])
    row, stream = held[at]
    if draw.random() < 0.5:
        sizes = {0, 1, row["size"] + 1, row["size"] - 1, 2 * row["size"], 1 << 62, -1}
        row["size"] = draw.choice(sorted(sizes - {row["size"]}))
        return "a stream of another size than its row says", laid(manifest, held)
    text = bytearray(zlib.decompress(stream))
    text[draw.randrange(len(text))] ^= 1 << draw.randrange(8)
    held[at] = resealed(row, zlib.compress(bytes(text), 9))
    return "a stream of other bytes than its row says", laid(manifest, held)


def _of_words(real: Real, draw: random.Random) -> tuple[str, bytes]:
    """Kept otherwise than its name says, with bytes that fit; or by a word unheard of."""
    manifest, held = held_in(real.data)
    at = draw.randrange(len(held))
    row, data = held[at]
    way = draw.randrange(3)
    if way == 0:
        words = (None, True, 1, "", "gzip", "lzma", "RAW", " raw", "zlib ", ["raw"], {"zlib": 9})
        row["stored"] = draw.choice(words)
    elif way == 1:
        del row[draw.choice([key for key in sorted(row) if key.startswith("stored")])]
    elif row["stored"] == "raw":
        held[at] = resealed({**row, "stored": "zlib"}, zlib.compress(data, 9))
    else:
        few = {key: row[key] for key in ("name", "size", "sha256")}
        held[at] = {**few, "stored": "raw"}, zlib.decompress(data)
    return "a forged way to be stored", laid(manifest, held)


def _bombs(real: Real) -> Iterator[tuple[str, bytes]]:
    """Small files that would inflate to gigabytes."""
    manifest, held = held_in(real.data)
    large = _zeros()
    yield "a manifest that inflates", file_of_stream(large, b"", UNSIGNED)
    at = next(i for i, (row, _) in enumerate(held) if row["name"] == "program.py")
    limit = stored.MAX_INFLATED
    for size in (100, limit // 2, limit, limit + 1, MANY, 7 << 30, 1 << 40):
        some = list(held)
        some[at] = resealed({**held[at][0], "size": size}, large)
        yield "a blob that inflates", laid(manifest, some)
    row, stream = resealed({**held[at][0], "size": 1 << 20}, stored.deflated(bytes(1 << 20)))
    many: Held = [({**row, "name": f"a{number:04d}"}, stream) for number in range(1000)]
    yield "many blobs that inflate", laid(manifest, many)


@functools.cache
def _zeros() -> bytes:
    """A stream of that many zeros, without its sum: one block again and again."""
    maker, part = zlib.compressobj(9), bytes(1 << 20)
    first, *same = (maker.compress(part) + maker.flush(zlib.Z_FULL_FLUSH) for _ in range(3))
    assert same[0] == same[1]
    return first + same[0] * ((MANY >> 20) - 1)
