"""The file format: one spelling, every byte verified, messages that name what is wrong."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.build import format as the_format
from lockstep.build.artifact import Artifact, pack, read_manifest
from lockstep.build.program import Program
from lockstep.errors import ArtifactError, UsageError

PROGRAM = Program("graph", "def call(inputs): ...\n", {"ab12": b"\x7fELF" * 40}, {"torch": "2"})
MANIFEST = {"step": "train", "numbers": [1, 2.5, None, True]}


def tiny() -> Artifact:
    return pack(MANIFEST, PROGRAM, {"source_map.json": b"{}", "empty": b""})


def test_round_trip_and_one_spelling() -> None:
    artifact = tiny()
    data = artifact.to_bytes()
    assert Artifact.from_bytes(data) == artifact
    reordered = pack(
        dict(reversed(MANIFEST.items())), PROGRAM, {"empty": b"", "source_map.json": b"{}"}
    )
    assert reordered.to_bytes() == data
    assert artifact.digest == hashlib.sha256(data).hexdigest()
    assert artifact.manifest["backend"] == "graph"
    assert artifact.manifest["requires"] == {"torch": "2"}
    assert sorted(artifact.blobs) == [
        *("empty", "kernels/ab12.so", "program.code", "program.py", "source_map.json"),
    ]


def test_bytes_are_where_the_documentation_says() -> None:
    data = tiny().to_bytes()
    magic, version, length = struct.unpack_from("<8sII", data)
    assert (magic, version) == (b"\x89LOCKSTP", 3)
    assert data[48:144] == bytes(96)
    stream = data[144 : 144 + length]
    assert data[16:48] == hashlib.sha256(stream).digest()
    start = (144 + length + 63) // 64 * 64
    ways = {}
    for row in json.loads(zlib.decompress(stream))["blobs"]:
        size, digest = row["size"], row["sha256"]
        if row["stored"] == "zlib":
            held = data[start + row["offset"] :][: row["stored_size"]]
            plain = zlib.decompress(held)
            assert (len(plain), hashlib.sha256(plain).hexdigest()) == (size, digest)
            size, digest = row["stored_size"], row["stored_sha256"]
        blob = data[start + row["offset"] :][:size]
        assert row["offset"] % 64 == 0
        assert hashlib.sha256(blob).hexdigest() == digest
        ways[row["name"]] = row["stored"]
    assert start + row["offset"] + size == len(data)
    texts = ("empty", "program.code", "program.py", "source_map.json")
    assert ways == {"kernels/ab12.so": "raw"} | dict.fromkeys(texts, "zlib")


def test_every_flipped_bit_is_found() -> None:
    data = tiny().to_bytes()
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= 1 << (at % 8)
        with pytest.raises(ArtifactError, match=r"LS21[01]: "):
            Artifact.from_bytes(bytes(changed))


def test_every_cut_is_found() -> None:
    data = tiny().to_bytes()
    for length in range(len(data)):
        with pytest.raises(ArtifactError, match=r"LS21[01]: "):
            Artifact.from_bytes(data[:length])
    with pytest.raises(ArtifactError, match="bytes after the last blob"):
        Artifact.from_bytes(data + b"\0")


@given(
    st.dictionaries(
        st.text("abz._0", min_size=1).map("x".__add__), st.binary(max_size=200), max_size=5
    )
)
def test_any_blobs_round_trip(blobs: dict[str, bytes]) -> None:
    artifact = pack({}, PROGRAM, blobs)
    assert Artifact.from_bytes(artifact.to_bytes()).blobs == artifact.blobs


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_refused_and_nothing_else(data: bytes) -> None:
    for lead in (b"", b"\x89LOCKSTP", b"\x89LOCKSTP\x03\0\0\0"):
        with pytest.raises(ArtifactError):
            Artifact.from_bytes(lead + data)


STREAM = zlib.compress(b"x", 9)


def forged(manifest: object, blobs: bytes = b"") -> bytes:
    """A file whose digests are right, though its manifest was not written by Lockstep."""
    text = (
        manifest
        if isinstance(manifest, bytes)
        else json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()
    )
    stream = zlib.compress(text, 9)
    digest = hashlib.sha256(stream).digest()
    head = struct.pack("<8sII32s96s", b"\x89LOCKSTP", 3, len(stream), digest, bytes(96)) + stream
    return head + bytes(-len(head) % 64) + blobs


def row(**changed: object) -> dict[str, object]:
    sha256 = hashlib.sha256(b"x").hexdigest()
    plain = {"name": "a.so", "offset": 0, "size": 1, "sha256": sha256, "stored": "raw"}
    return plain | changed


def text_row(**changed: object) -> dict[str, object]:
    """Of a blob that inflates to "x"."""
    told = {"stored_size": len(STREAM), "stored_sha256": hashlib.sha256(STREAM).hexdigest()}
    return row(name="a", stored="zlib", **told) | changed


def test_a_forged_file_can_be_sound() -> None:
    sound = {"backend": "graph", "requires": {}, "blobs": [row()]}
    assert read_manifest(forged(sound, b"x"))["blobs"] == [row()]
    sound["blobs"] = [text_row()]
    assert read_manifest(forged(sound, STREAM))["blobs"] == [text_row()]


@pytest.mark.parametrize(
    ("manifest", "said"),
    [
        (b'{"blobs": []}', "another spelling"),
        (b'{"blobs":[],"blobs":[]}', "another spelling"),
        (b"[]", "another spelling"),
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "brackets that do not close"),
        ({}, "unsound table"),
        ({"blobs": [row(name="../a.so")]}, "unsound table"),
        ({"blobs": [row(name="/a.so")]}, "unsound table"),
        ({"blobs": [row(size=-1)]}, "unsound table"),
        ({"blobs": [row(size=True)]}, "unsound table"),
        ({"blobs": [row(size=1 << 60)]}, "unsound table"),
        ({"blobs": [row(offset=64)]}, "wrong offset"),
        ({"blobs": [row(), row(offset=64)]}, "not sorted and single"),
        ({"blobs": [row()]}, "manifest.backend is missing"),
        ({"blobs": [row(size=2)]}, "cut short"),
        (
            {"blobs": [row(size=7 << 30), row(name="b.so", offset=7 << 30, size=2 << 30)]},
            "over the limit",
        ),
        ({"blobs": [row(stored="zlib")]}, "unsound table"),
        ({"blobs": [row(stored=["raw"])]}, "unsound table"),
        ({"blobs": [row(name="a")]}, "unsound table"),
        ({"blobs": [text_row(stored="raw")]}, "unsound table"),
        ({"blobs": [text_row(stored_size=None)]}, "unsound table"),
        ({"blobs": [text_row(stored_sha256="x")]}, "unsound table"),
        ({"blobs": [text_row(size=(256 << 20) + 1)]}, "inflate to more than the limit"),
        ({"blobs": [text_row(), row(name="b.so", offset=64, size=0)]}, "cut short"),
    ],
)
def test_forged_manifests_are_refused(manifest: object, said: str) -> None:
    with pytest.raises(ArtifactError, match=said):
        Artifact.from_bytes(forged(manifest, b"x"))


def test_limits_hold_before_anything_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(the_format, "MAX_BLOBS", 0)
    with pytest.raises(ArtifactError, match="at most 0 of"):
        Artifact.from_bytes(forged({"blobs": [row()]}, b"x"))
    huge = struct.pack("<8sII32s", b"\x89LOCKSTP", 3, 0xFFFFFFFF, bytes(32)) + bytes(100)
    with pytest.raises(ArtifactError, match="a changed manifest length"):
        Artifact.from_bytes(huge)


def test_messages_name_source_got_and_wanted() -> None:
    data = bytearray(tiny().to_bytes())
    data[-1] ^= 1
    with pytest.raises(ArtifactError) as caught:
        Artifact.from_bytes(bytes(data), "runs/step.lockstep")
    lines = str(caught.value).splitlines()
    assert lines[0] == "LS210: changed bytes in source_map.json"
    assert lines[1] == "  at   runs/step.lockstep"
    assert lines[3] == f"  want {hashlib.sha256(zlib.compress(b'{}', 9)).hexdigest()}"
    assert lines[4].startswith("  fix  build it again")
    older = tiny().to_bytes().replace(b"STP\x03", b"STP\x02", 1)
    with pytest.raises(ArtifactError) as caught:
        Artifact.from_bytes(older)
    assert str(caught.value) == (
        "LS210: another format version\n  at   <bytes>\n  got  format 2\n  want format 3\n"
        "  fix  use the Lockstep that built it, or build it again with this one"
    )
    with pytest.raises(ArtifactError, match="not a Lockstep artifact"):
        Artifact.from_bytes(b"PK\x03\x04" + bytes(100))


def test_read_manifest_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "step.lockstep"
    path.write_bytes(tiny().to_bytes())
    assert read_manifest(path) == tiny().manifest
    path.write_bytes(tiny().to_bytes()[:-1])
    with pytest.raises(ArtifactError, match=r"cut short\n  at   .*step.lockstep"):
        read_manifest(path)


def test_reading_needs_no_torch(tmp_path: Path) -> None:
    path = tmp_path / "step.lockstep"
    path.write_bytes(tiny().to_bytes())
    code = (
        "import sys; from lockstep.build.artifact import read_manifest; "
        "print(read_manifest(sys.argv[1])['step'], 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, path],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ,
    )
    assert done.stdout.split() == ["train", "False"]


def test_pack_refuses_taken_names_and_odd_values() -> None:
    with pytest.raises(UsageError, match=r"got  blobs, program\.py"):
        pack({"blobs": 1}, PROGRAM, {"program.py": b""})
    with pytest.raises(UsageError, match="plain relative path"):
        pack({}, PROGRAM, {"../up": b""})
    with pytest.raises(UsageError, match="JSON does not"):
        pack({"x": float("nan")}, PROGRAM)
    with pytest.raises(UsageError, match="JSON does not"):
        pack({"x": object()}, PROGRAM)
