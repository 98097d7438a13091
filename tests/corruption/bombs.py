"""Manifests made to harm who reads them: too many, too deep, too long, twice, elsewhere."""

from __future__ import annotations

import hashlib
import random
import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

from lockstep.build.format import VERSION
from tests.corruption.files import Real
from tests.corruption.forged import UNSIGNED, file_of, spelled, whole_manifest
from tests.corruption.judge import Mutation

# Names that lead elsewhere, that a terminal or another system reads otherwise, or that are no name.
NAMES = (
    "../x", "/etc/passwd", "a/../b", "a//b", "./a", "a/.", "..", ".", "", ".hidden", "a/.b/c",
    "a\\..\\b", "C:\\x", "a\0b", "a\nb", "a b", "~/x", "$HOME", "a/", "/", "x" * 256,
    "\u202ecod.py", "progr\u0430m.py", "\ud800", "-rf", "kernels/../../x.so", "kernels/a/b.so",
    "kernels/A.so", "kernels/x.y.so", "kernels/" + "a" * 65 + ".so", "kernels/", "kernels/ab",
    "%2e%2e/x", "a\x1b[2J",
)  # fmt: skip
NUMBERS = (-1, True, 1.0, "0", None, [], 1 << 63, 1 << 64, 10**30, -(1 << 70))


def bombs(files: Sequence[Real], each: int, draw: random.Random) -> Iterator[Mutation]:
    """Yield unsigned files with right digests whose manifest is over a limit, or unsound."""
    plain = [real for real in files if not real.signed]
    for number in range(each):
        real = plain[number % len(plain)]
        for kind, data in (_named(real, number), _table(real, draw), _spelling(real, draw)):
            yield Mutation(kind, data, real.wanted, True, False)
    for kind, data in _huge(plain[0]):
        yield Mutation(kind, data, plain[0].wanted, True, False)


def rows_of(real: Real) -> tuple[dict[str, Any], list[dict[str, Any]], bytes]:
    """A file's manifest, its rows, and the bytes from its first blob on."""
    manifest, start = whole_manifest(real.data)
    return manifest, manifest.pop("blobs"), real.data[start:]


def _named(real: Real, number: int) -> tuple[str, bytes]:
    manifest, rows, tail = rows_of(real)
    name = NAMES[number % len(NAMES)]
    row = rows[number // len(NAMES) % len(rows)]
    row["name"] = name
    if number % 2:
        rows.sort(key=lambda one: one["name"])
    return "a name that is none", file_of(spelled({**manifest, "blobs": rows}), tail, UNSIGNED)


def _table(real: Real, draw: random.Random) -> tuple[str, bytes]:
    manifest, rows, tail = rows_of(real)
    row, other = draw.sample(rows, 2)
    table: Any = rows
    way = draw.randrange(10)
    if way == 0:
        row["offset"] = other["offset"]
    elif way == 1:
        row["offset"] += draw.choice([1, 64, -64, 1 << 40])
    elif way == 2:
        row["size"] += draw.choice([1, -1, 64, 1 << 33, 1 << 62])
    elif way == 3:
        row[draw.choice(["offset", "size"])] = draw.choice(NUMBERS)
    elif way == 4:
        table = rows + [dict(row)]
    elif way == 5:
        table = rows[::-1]
    elif way == 6:
        del row[draw.choice(sorted(row))]
    elif way == 7:
        row["path"] = "/tmp/x"
    elif way == 8:
        row["sha256"] = draw.choice(["", "0" * 64, row["sha256"].upper() + "0", 7, None])
    else:
        table = draw.choice([None, {}, "x", 1, [None], [[]], [1], rows[:-1], []])
    return "an unsound table", file_of(spelled({**manifest, "blobs": table}), tail, UNSIGNED)


def _spelling(real: Real, draw: random.Random) -> tuple[str, bytes]:
    """The same content as JSON allows it and the format does not, and what JSON does not allow."""
    manifest, rows, tail = rows_of(real)
    text = spelled({**manifest, "blobs": rows})
    step = spelled({"step": manifest["step"]})[1:-1]
    ways = {
        "white space": text.replace(b",", b", ", draw.randint(1, 9)),
        "a key twice": text.replace(step, step + b"," + step, 1),
        "a key twice, the second escaped": text.replace(step, step + b',"st\\u0065p":"x"', 1),
        "an escape": text.replace(b'"step"', b'"\\u0073tep"', 1),
        "NaN": b'{"a":NaN,' + text[1:],
        "Infinity": b'{"a":' + draw.choice([b"", b"-"]) + b"Infinity," + text[1:],
        "a number that is too large": b'{"a":1e999,' + text[1:],
        "a number of many digits": b'{"a":' + b"9" * draw.randint(4301, 9000) + b"," + text[1:],
        "a zero in front": b'{"a":01,' + text[1:],
        "a comment": text + b"// x",
        "text behind it": text + draw.choice([b"{}", b" ", b"\n", b"\0", text]),
        "a byte order mark": b"\xef\xbb\xbf" + text,
        "bytes that are no ASCII": text.replace(b'"step"', "\u0455tep".encode(), 1),
        "another encoding": text.decode().encode("utf-16"),
        "no object": draw.choice([b"", b"null", b"[]", b"1", b'"x"', b"{", b"}", b"\0" * 9]),
        "half of it": text[: draw.randrange(1, len(text))],
        "deep nesting": text[:-1] + b',"z":' + _nested(draw.randint(65, 3000)) + b"}",
        "open brackets": text[:-1] + b',"z":' + b"[" * draw.randint(70, 100_000) + b"}",
    }
    kind = draw.choice(sorted(ways))
    return f"a manifest: {kind}", file_of(ways[kind], tail, UNSIGNED)


def _nested(depth: int) -> bytes:
    return b'{"a":' * depth + b"1" + b"}" * depth


def _huge(real: Real) -> Iterator[tuple[str, bytes]]:
    """What is larger than a limit, or says that it is."""
    manifest, rows, tail = rows_of(real)
    text = spelled({**manifest, "blobs": rows})
    for filler in (b"[]," * 1_100_000 + b"[]", b"{}," * 1_100_000 + b"1", b"1," * 2_200_000 + b"1"):
        yield (
            "a bomb: too many values",
            file_of(text[:-1] + b',"z":[' + filler + b"]}", tail, UNSIGNED),
        )
    digest = hashlib.sha256(b"").hexdigest()
    empty = {"name": "a", "offset": 0, "size": 0, "sha256": digest, "stored": "raw"}
    many = [{**empty, "name": f"a{number:06d}.so"} for number in range(70_000)]
    yield "a bomb: too many blobs", file_of(spelled({**manifest, "blobs": many}), b"", UNSIGNED)
    long = text[:-1] + b',"z":"' + b"x" * (33 << 20) + b'"}'
    yield "a bomb: a long manifest", file_of(long, tail, UNSIGNED)
    for depth in (100_000, 3_000_000):
        for deep in (b"[" * depth + b"]" * depth, b'{"a":' * depth + b"1" + b"}" * depth):
            if len(deep) < 31 << 20:
                yield (
                    "a bomb: deep nesting",
                    file_of(text[:-1] + b',"z":' + deep + b"}", tail, UNSIGNED),
                )
    for length in (1 << 31, (1 << 32) - 1, 33 << 20, len(real.data)):
        stream = zlib.compress(text, 9)
        digests = hashlib.sha256(stream).digest()
        head = struct.pack("<8sII32s", real.data[:8], VERSION, length, digests) + UNSIGNED
        yield "a bomb: a length that is not there", head + stream + tail
    wide = {**empty, "name": "a.so", "size": 7 << 30}
    yield (
        "a bomb: a size that is not there",
        file_of(spelled({**manifest, "blobs": [wide]}), tail, UNSIGNED),
    )
