"""A blob is raw or deflated by its name; what is inflated is bounded, and odd streams are told."""

from __future__ import annotations

import hashlib
import tracemalloc
import zlib

import pytest

from lockstep.build import stored
from lockstep.build.artifact import pack
from lockstep.build.program import Program
from lockstep.errors import UsageError

TEXT = b"buf0 = kernel(arg0)\n" * 50


def test_a_library_lies_as_it_is_and_a_text_deflated():
    row, data = stored.laid("kernels/1a.so", TEXT, 64)
    digest = hashlib.sha256(TEXT).hexdigest()
    plain = {"name": "kernels/1a.so", "offset": 64, "size": 1000, "sha256": digest}
    assert (row, data) == (plain | {"stored": "raw"}, TEXT)
    row, data = stored.laid("program.py", TEXT, 0)
    assert data == zlib.compress(TEXT, 9) and len(data) < 50
    assert (row["size"], row["sha256"], row["stored"]) == (1000, digest, "zlib")
    assert stored.size_in_file(row) == row["stored_size"] == len(data)
    assert stored.digest_in_file(row) == hashlib.sha256(data).hexdigest()
    assert stored.plain(row, data) == TEXT
    assert stored.inflating([row, plain | {"stored": "raw"}]) == 1000


STREAM = stored.deflated(TEXT)
OTHER = zlib.compressobj(9, zdict=b"kernel")


@pytest.mark.parametrize(
    ("stream", "told"),
    [
        (b"", "it begins with , a zlib stream here with 78da"),
        (TEXT, "it begins with 6275"),
        (zlib.compress(TEXT, 6), "it begins with 789c"),
        (OTHER.compress(TEXT) + OTHER.flush(), "it begins with 78f9"),
        (STREAM[:2], "cut short after 0 bytes"),
        (STREAM[:-1], "cut short after 1000 bytes"),
        (STREAM + b"xy", "2 bytes stand behind its stream"),
        (STREAM[:-1] + b"x", "can't be inflated: Error -3"),
        (stored.deflated(TEXT + b"x"), "inflates to more than 1000 bytes"),
    ],
)
def test_a_stream_that_is_none_is_told(stream, told):
    with pytest.raises(ValueError, match=told):
        stored.inflated(stream, 1000)
    assert stored.inflated(STREAM, 1000) == TEXT


@pytest.mark.parametrize(
    ("changed", "told"),
    [({"size": 1001}, "inflates to 1000 bytes"), ({"sha256": "0" * 64}, "to bytes of sha256")],
)
def test_a_stream_that_is_not_its_row_s_is_told(changed, told):
    row, stream = stored.laid("program.py", TEXT, 0)
    with pytest.raises(ValueError, match=told):
        stored.plain(row | changed, stream)


def test_a_bomb_takes_no_more_memory_than_its_row_says():
    bomb = stored.deflated(bytes(64 << 20))
    tracemalloc.start()
    with pytest.raises(ValueError, match="more than 1000 bytes"):
        stored.inflated(bomb, 1000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_too_much_text_is_not_packed(monkeypatch):
    program = Program("graph", "def call(inputs): ...\n", {"1a": bytes(2000)}, {})
    pack({}, program, {"some.json": bytes(800)})
    monkeypatch.setattr(stored, "MAX_INFLATED", 1000)
    with pytest.raises(UsageError, match=r"too much text for one file\n  got  1\d{3} bytes"):
        pack({}, program, {"some.json": bytes(1000)})


@pytest.mark.parametrize(
    "changed",
    [
        {"stored": "raw"},
        {"stored": None},
        {"stored": ["zlib"]},
        {"name": "program.so"},
        {"name": 1},
        {"size": -1},
        {"stored_size": True},
        {"stored_size": 1001},
        {"sha256": "A" * 64},
        {"stored_sha256": "0" * 63},
        {"more": 1},
    ],
)
def test_a_row_is_of_one_form(changed):
    row, _ = stored.laid("program.py", TEXT, 0)
    assert stored.is_row(row, 1000)
    assert not stored.is_row(row | changed, 1000)
