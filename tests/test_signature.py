"""Signatures: who signed is trusted, or refused in words; keys that cannot be used are told."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from lockstep.build import keys
from lockstep.build.artifact import Artifact, pack
from lockstep.build.bundle import pack_bundle, read_bundle
from lockstep.build.keys import fingerprint, generate, trusted_keys
from lockstep.build.program import Program
from lockstep.build.signature import sealer
from lockstep.cli import main
from lockstep.errors import ArtifactError, SignatureError, StoreError, ToolchainError

PROGRAM = Program("graph", "def call(inputs): ...\n", {}, {})


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A private and a public key; nothing is set."""
    monkeypatch.delenv("LOCKSTEP_SIGN", raising=False)
    monkeypatch.delenv("LOCKSTEP_TRUST", raising=False)
    tmp_path.chmod(0o700)
    public, _ = generate(tmp_path / "builder")
    return tmp_path / "builder", public


def signed(private: Path, monkeypatch: pytest.MonkeyPatch, step: str = "train") -> bytes:
    with monkeypatch.context() as patch:
        patch.setenv("LOCKSTEP_SIGN", str(private))
        return pack({"step": step}, PROGRAM).to_bytes()


def test_what_is_signed_is_read_and_signed_alike_twice(pair, monkeypatch):
    data = signed(pair[0], monkeypatch)
    assert data == signed(pair[0], monkeypatch)
    assert Artifact.from_bytes(data).to_bytes() == data
    monkeypatch.setenv("LOCKSTEP_TRUST", str(pair[1]))
    assert Artifact.from_bytes(data).manifest["step"] == "train"


def test_what_is_not_signed_is_refused_where_somebody_is_trusted(pair, monkeypatch):
    data = pack({}, PROGRAM).to_bytes()
    assert Artifact.from_bytes(data).seal == bytes(96)
    monkeypatch.setenv("LOCKSTEP_TRUST", str(pair[1]))
    (key,) = trusted_keys()
    with pytest.raises(SignatureError) as caught:
        Artifact.from_bytes(data, "step.lockstep")
    assert str(caught.value) == (
        "LS211: the artifact is not signed\n  at   step.lockstep\n"
        f"  want a signature by a key that LOCKSTEP_TRUST holds: {fingerprint(key)}\n"
        "  fix  build it with LOCKSTEP_SIGN=FILE, the private key"
    )


def test_another_s_signature_is_refused(pair, monkeypatch, tmp_path):
    data = signed(pair[0], monkeypatch)
    other, name = generate(tmp_path / "other")
    monkeypatch.setenv("LOCKSTEP_TRUST", str(other))
    with pytest.raises(SignatureError, match="a key that is not trusted") as caught:
        Artifact.from_bytes(data)
    assert f"holds: {name}" in str(caught.value)
    folder = tmp_path / "trusted"
    folder.mkdir(mode=0o700)
    for public in (pair[1], other):
        (folder / public.name).write_bytes(public.read_bytes())
    monkeypatch.setenv("LOCKSTEP_TRUST", str(folder))
    assert Artifact.from_bytes(data).manifest["step"] == "train"


def test_a_blob_of_another_signed_file_does_not_fit(pair, monkeypatch):
    from tests.corruption.forged import parts, rebuilt

    one, other = signed(pair[0], monkeypatch), signed(pair[0], monkeypatch, "evaluate")
    manifest, _, seal = parts(one)
    _, _, others = parts(other)
    for header in (seal, others):
        with pytest.raises(SignatureError, match="changed after it was signed"):
            Artifact.from_bytes(rebuilt({**manifest, "step": "x"}, parts(other)[1], header))
    assert one[144:] != other[144:]
    with pytest.raises(SignatureError, match="changed after it was signed"):
        Artifact.from_bytes(one[:48] + others + one[144:])  # the other's signature


@pytest.mark.parametrize("low", [48, 80])
def test_half_a_seal_is_refused_whoever_is_trusted(low, pair, monkeypatch):
    data = bytearray(signed(pair[0], monkeypatch))
    data[low : low + (32 if low == 48 else 64)] = bytes(32 if low == 48 else 64)
    with pytest.raises(SignatureError, match="changed after it was signed"):
        Artifact.from_bytes(bytes(data))


def test_a_builder_without_a_key_is_told_before_it_builds(pair, monkeypatch, tmp_path):
    monkeypatch.setenv("LOCKSTEP_TRUST", str(pair[1]))
    with pytest.raises(ToolchainError, match="no key to sign with"):
        sealer()
    generate(tmp_path / "other")
    monkeypatch.setenv("LOCKSTEP_SIGN", str(tmp_path / "other"))
    with pytest.raises(SignatureError, match="what is signed here would be refused"):
        sealer()
    monkeypatch.setenv("LOCKSTEP_SIGN", str(pair[0]))
    assert len(sealer()(bytes(48))) == 96


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "No such file"),
        ("", "no BEGIN PUBLIC KEY"),
        ("-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----", "a key of another kind"),
        ("-----BEGIN PUBLIC KEY-----\nA\n-----END PUBLIC KEY-----", "Incorrect padding|Invalid"),
    ],
)
def test_keys_that_cannot_be_trusted_are_told(content, told, pair, monkeypatch, tmp_path):
    path = tmp_path / "keys.pub"
    if content is not None:
        path.write_text(content)
    monkeypatch.setenv("LOCKSTEP_TRUST", str(path))
    with pytest.raises(SignatureError, match="LOCKSTEP_TRUST names no public key") as caught:
        Artifact.from_bytes(pack({}, PROGRAM, seal=lambda head: bytes(96)).to_bytes())
    assert any(word in str(caught.value) for word in told.split("|"))


@pytest.mark.parametrize("value", ["", "empty"])
def test_an_empty_list_of_whom_to_trust_is_no_trust_in_all(value, pair, monkeypatch, tmp_path):
    data = signed(pair[0], monkeypatch)
    (tmp_path / "empty").mkdir(mode=0o700)
    monkeypatch.setenv("LOCKSTEP_TRUST", str(tmp_path / value) if value else "")
    with pytest.raises(SignatureError, match="names no public key that can be used"):
        Artifact.from_bytes(data)


def test_a_private_key_that_others_can_read_is_refused(pair, monkeypatch):
    pair[0].chmod(0o640)
    monkeypatch.setenv("LOCKSTEP_SIGN", str(pair[0]))
    with pytest.raises(StoreError, match="another user can read the key that signs") as caught:
        sealer()
    assert f"fix  chmod 600 {pair[0]}" in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"no key", None])
def test_a_file_that_is_no_private_key_is_told(content, pair, monkeypatch, tmp_path):
    path = tmp_path / "key"
    if content is not None:
        path.write_bytes(content)
        path.chmod(0o600)
    monkeypatch.setenv("LOCKSTEP_SIGN", str(path))
    with pytest.raises(SignatureError, match="LOCKSTEP_SIGN=FILE names no private key"):
        sealer()


def test_keys_that_others_could_add_to_are_refused(pair, monkeypatch):
    data = signed(pair[0], monkeypatch)
    pair[1].chmod(0o666)
    monkeypatch.setenv("LOCKSTEP_TRUST", str(pair[1]))
    with pytest.raises(StoreError, match="another user can write the keys that this job trusts"):
        Artifact.from_bytes(data)


def test_openssl_reads_the_keys_and_writes_ones_that_are_read(pair, monkeypatch, tmp_path):
    def openssl(*words: str) -> bytes:
        return subprocess.run(["openssl", *words], check=True, capture_output=True).stdout

    assert openssl("pkey", "-in", str(pair[0]), "-pubout") == pair[1].read_bytes()
    private, public = tmp_path / "theirs", tmp_path / "theirs.pub"
    openssl("genpkey", "-algorithm", "ed25519", "-out", str(private))
    private.chmod(0o600)
    openssl("pkey", "-in", str(private), "-pubout", "-out", str(public))
    data = signed(private, monkeypatch)
    monkeypatch.setenv("LOCKSTEP_TRUST", str(public))
    assert Artifact.from_bytes(data).manifest["step"] == "train"


def test_without_cryptography_trust_is_refused_and_no_trust_is_told(pair, monkeypatch, tmp_path):
    data = signed(pair[0], monkeypatch)
    path = tmp_path / "step.lockstep"
    path.write_bytes(data)
    monkeypatch.setitem(__import__("sys").modules, "cryptography.exceptions", None)
    from lockstep.build.inspect import inspect

    assert "not verified: that needs the package cryptography" in "\n".join(inspect(path).head())
    monkeypatch.setenv("LOCKSTEP_TRUST", str(pair[1]))
    with pytest.raises(SignatureError, match="can't be verified here"):
        Artifact.from_bytes(data)


def test_a_bundle_is_signed_as_a_whole_and_in_its_parts(pair, monkeypatch):
    one = signed(pair[0], monkeypatch)
    monkeypatch.setenv("LOCKSTEP_TRUST", str(pair[1]))
    monkeypatch.setenv("LOCKSTEP_SIGN", str(pair[0]))
    bundle = pack_bundle({"a.lockstep": one})
    assert read_bundle(bundle) == {"a.lockstep": one}
    with pytest.raises(ArtifactError, match="not signed"):
        read_bundle(pack_bundle({"a.lockstep": one}, lambda head: bytes(96)))


def test_keygen_makes_a_pair_once(tmp_path, capsys):
    assert main(["keygen", str(tmp_path / "key")]) == 0
    told = capsys.readouterr().out
    assert told.startswith("ed25519:") and f"LOCKSTEP_TRUST={tmp_path}/key.pub" in told
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    before = (tmp_path / "key").read_bytes()
    assert main(["keygen", str(tmp_path / "key")]) == 2
    assert "cannot write" in capsys.readouterr().err
    assert (tmp_path / "key").read_bytes() == before
    assert keys.PUBLIC == ".pub"
