"""docs/format.md tells what the code reads and writes: offsets, limits, keys, and bundles."""

from __future__ import annotations

import hashlib
import re
import struct

import pytest

from lockstep.build import format, manifest, shape, stored
from lockstep.build.artifact import pack
from lockstep.build.bundle import Bundle, is_bundle, pack_bundle, read_bundle
from lockstep.build.program import Program
from lockstep.errors import ArtifactError, UsageError
from lockstep.fleet import ArtifactStore
from tests.sources import ROOT

PAGE = (ROOT / "docs" / "format.md").read_text()
PROGRAM = Program("graph", "def call(inputs): ...\n", {}, {})


def one(step: str = "train") -> bytes:
    return pack({"step": step}, PROGRAM).to_bytes()


def rows(title: str) -> list[list[str]]:
    """The cells of the first table below a title."""
    table = PAGE.partition(f"## {title}\n")[2].partition("\n\n|")[2].partition("\n\n")[0]
    return [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in table.split("\n")]


def test_offsets_and_sizes_are_those_of_the_page():
    told = [(int(a), int(b)) for a, b, *_ in rows("Bytes") if a.isdigit() and b.isdigit()]
    assert told == [(0, 8), (8, 4), (12, 4), (16, 32), (48, 32), (80, 64)]
    assert told[-1][0] + told[-1][1] == format.HEADER == 144
    for magic in format.KINDS:
        assert magic.hex(" ").upper() in PAGE
    assert f"format version, unsigned: {format.VERSION} |" in PAGE
    data = one()
    assert struct.unpack_from("<I", data, 8) == (format.VERSION,)
    length = struct.unpack_from("<I", data, 12)[0]
    assert hashlib.sha256(data[144 : 144 + length]).digest() == data[16:48]


def test_limits_are_those_of_the_page():
    numbers = {int(n) for n in re.findall(r"\d+", PAGE.partition("## Limits")[2][:600])}
    limits = {manifest.MAX_BYTES >> 20, manifest.MAX_VALUES, manifest.MAX_DEPTH}
    limits |= {stored.MAX_INFLATED >> 20}
    assert limits | {format.MAX_BLOBS, format.MAX_TOTAL >> 30} <= numbers
    assert f"at most {format.MAX_NAME} of them" in PAGE


def test_keys_and_blobs_are_those_of_the_page():
    keys = {key.rstrip("!") for key in shape.STEP}
    told = set(re.findall(r"`(\w+)`", PAGE.partition("An artifact's manifest")[2]))
    assert keys - told == set()
    assert {"program.py", "program.code"} <= set(re.findall(r"`([\w.]+)`", PAGE))


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({"a": "x" * 100}, "101|bytes"),
        ({"a": [1] * 50}, "values"),
        ({"a": [[[[[[1]]]]]]}, "nested deeper than 4"),
    ],
)
def test_a_manifest_over_a_limit_is_neither_written_nor_read(value, told, monkeypatch):
    text = manifest.canonical(value)
    assert manifest.parse(text) == value
    monkeypatch.setattr(manifest, "MAX_BYTES", 100 if "x" in text.decode() else 1000)
    monkeypatch.setattr(manifest, "MAX_VALUES", 40)
    monkeypatch.setattr(manifest, "MAX_DEPTH", 4)
    with pytest.raises(UsageError, match="over a limit"):
        manifest.canonical(value)
    with pytest.raises(ValueError, match=told):
        manifest.parse(text)


def test_brackets_in_strings_nest_nothing():
    value = {"a": "[" * 500 + '"\\', "b\\": ['"', "}{][", "\\\\"]}
    assert manifest.parse(manifest.canonical(value)) == value


def test_how_a_blob_is_stored_is_told_by_the_page():
    row, stream = stored.laid("program.py", b"x = 1", 0)
    for key in row:
        assert f"`{key}`" in PAGE
    assert f"zlib stream (RFC 1950) of level {stored.LEVEL}" in PAGE
    assert f"begins with `{stream[:2].hex(' ').upper()}`" in PAGE
    for name in ("a.so", "a.cubin", "a.lockstep"):
        assert stored.way_of(name) == "raw" and f"`{name[1:]}`" in PAGE


def test_a_bundle_gives_each_artifact_by_its_name(tmp_path):
    datas = {"b.lockstep": one(), "a.lockstep": one("evaluate")}
    stage = {"step": "train", "fingerprint": {"options role": "pp=1"}}
    datas["c.lockstep"] = pack(stage, PROGRAM).to_bytes()
    data = pack_bundle(datas)
    assert data == pack_bundle(dict(reversed(datas.items())))
    assert read_bundle(data) == datas
    path = tmp_path / "bundle.lockstep"
    path.write_bytes(data)
    with path.open("rb") as stream:
        assert is_bundle(stream)
        held = Bundle(path, stream)
        assert held.steps == dict(zip(sorted(datas), ("evaluate", "train", "train"), strict=True))
        assert held.roles == dict(zip(sorted(datas), ("", "", "pp=1"), strict=True))
        assert held.read("d.lockstep") is None
    store = ArtifactStore(path)
    assert store.read("a.lockstep") == datas["a.lockstep"]
    assert store.read("d.lockstep") is None
    with pytest.raises(Exception, match="it holds some of evaluate, train"):
        store.prepare("d.lockstep")


def test_one_artifact_of_a_bundle_is_read_though_another_is_torn(tmp_path):
    datas = {"a.lockstep": one("evaluate"), "b.lockstep": one()}
    data = bytearray(pack_bundle(datas))
    data[-1] ^= 1
    path = tmp_path / "bundle.lockstep"
    path.write_bytes(data)
    assert ArtifactStore(path).read("a.lockstep") == datas["a.lockstep"]
    with pytest.raises(ArtifactError, match=r"changed bytes in b\.lockstep"):
        ArtifactStore(path).read("b.lockstep")


def test_what_is_no_artifact_is_not_bundled():
    with pytest.raises(ArtifactError, match=r"at   a\.lockstep"):
        pack_bundle({"a.lockstep": one()[:-1]})
    with pytest.raises(ArtifactError, match="a file of another kind"):
        pack_bundle({"a.lockstep": pack_bundle({})})
    with pytest.raises(ArtifactError, match="got  an artifact\n"):
        read_bundle(one())


@pytest.mark.parametrize(
    ("value", "form", "told"),
    [
        ({"a": 1}, {"a": str}, "m.a is 1, not text"),
        ({"a": True}, {"a": int}, "m.a is True, not a whole number"),
        ({"a": 1}, {"a": float}, None),
        ({"a": -1}, {"a": range(5)}, "m.a is -1, not a whole number below 5"),
        ({"a": None}, {"a": (str, None)}, None),
        ({"a": "z"}, {"a": frozenset({"x", "y"})}, "m.a is 'z', not one of x, y"),
        ([], {}, "m is [], not an object"),
        ({"a": {}}, {"a": [int]}, "m.a is {}, not a list"),
        ({"a": [1], "z": 1}, {"a": [int]}, None),
        ({"a": 1, "z": 1}, {"a": int, "=": ...}, "m.'z' is not known"),
        ({"x": 1, "y": "2"}, {"*": int}, "m.y is '2', not a whole number"),
    ],
)
def test_forms(value, form, told):
    assert shape.misfit(value, form, "m") == told
