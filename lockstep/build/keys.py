"""Keys in files: PEM, as openssl and others read and write them; Ed25519 alone.

Public keys are read by the standard library; private ones need the package `cryptography`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import re
from pathlib import Path
from typing import Any

from lockstep.build.ownership import refuse_if_open, refuse_if_seen
from lockstep.errors import SignatureError, UsageError

SIGN, TRUST = "LOCKSTEP_SIGN", "LOCKSTEP_TRUST"
PUBLIC = ".pub"
LARGEST = 1 << 20  # bytes of a file of keys
# What a DER encoded Ed25519 public key begins with; the 32 bytes of the key follow.
_LEAD = bytes.fromhex("302a300506032b6570032100")
_BLOCK = re.compile(r"-----BEGIN PUBLIC KEY-----([A-Za-z0-9+/=\s]*)-----END PUBLIC KEY-----")


def fingerprint(key: bytes) -> str:
    """Return the short name of a public key, as messages tell it.

    Example:
        >>> fingerprint(bytes(32))
        'ed25519:66687aadf862bd776c8fc18b8e9f8e20'
    """
    return f"ed25519:{hashlib.sha256(key).hexdigest()[:32]}"


def generate(path: Path) -> tuple[Path, str]:
    """Make a pair of keys: the private one for its owner alone, the public one beside it.

    Args:
        path: of the private key; the public one is `path` with `.pub` behind it.

    Returns:
        The public key's file, and the key's fingerprint.

    Raises:
        UsageError: LS001, one of the two files is there already, or can't be written.
    """
    crypto = _crypto(str(path))
    public_path = path.with_name(path.name + PUBLIC)
    private = crypto.ed25519.Ed25519PrivateKey.generate()
    form = crypto.serialization
    secret = private.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
    public = private.public_key().public_bytes(
        form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo
    )
    for file, data, mode in ((path, secret, 0o600), (public_path, public, 0o644)):
        try:
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        except OSError as error:
            raise UsageError(
                f"cannot write {file}", got=str(error.strerror), want="a new file"
            ) from error
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
    return public_path, fingerprint(private.public_key().public_bytes_raw())


def read_private(path: str | os.PathLike[str]) -> Any:
    """Return the private key of a file.

    Raises:
        SignatureError: LS211, there is no file, or it holds no Ed25519 private key.
        StoreError: LS230, another user can read it.
    """
    file = Path(path).expanduser()
    crypto = _crypto(str(file))
    try:
        refuse_if_seen(file, "the key that signs artifacts")
        data = file.read_bytes()
        key = crypto.serialization.load_pem_private_key(data, password=None)
    except (OSError, ValueError, TypeError, crypto.Unsupported) as error:
        raise _no_key("private", file, str(error), f"{SIGN}=FILE") from error
    if not isinstance(key, crypto.ed25519.Ed25519PrivateKey):
        raise _no_key("private", file, type(key).__name__, f"{SIGN}=FILE")
    return key


def trusted_keys() -> frozenset[bytes] | None:
    """Return the public keys, of 32 bytes each, that LOCKSTEP_TRUST names; None where it is unset.

    Raises:
        SignatureError: LS211, there is no such file or folder, or no key in one: an empty list of
            whom to trust is a mistake, and never trust in all.
        StoreError: LS230, another user could add a key.
    """
    named = os.environ.get(TRUST)
    if named is None:
        return None
    path = Path(named).expanduser()
    keys: set[bytes] = set()
    try:
        refuse_if_open(path, "the keys that this job trusts")
        files = sorted(path.glob(f"*{PUBLIC}")) if path.is_dir() else [path]
        for file in files:
            refuse_if_open(file, "the keys that this job trusts")
            keys |= _public_keys(file)
    except OSError as error:
        raise _no_key("public", path, str(error), TRUST) from error
    if not named or not keys:
        raise _no_key("public", path, f"none in {len(files)} files", TRUST)
    return frozenset(keys)


def _public_keys(file: Path) -> set[bytes]:
    with file.open("rb") as stream:
        text = stream.read(LARGEST).decode("ascii", "replace")
    keys = set()
    for block in _BLOCK.findall(text):
        try:
            der = base64.b64decode("".join(block.split()), validate=True)
        except binascii.Error as error:
            raise _no_key("public", file, str(error), TRUST) from error
        if len(der) != len(_LEAD) + 32 or not der.startswith(_LEAD):
            raise _no_key("public", file, "a key of another kind", TRUST)
        keys.add(der[len(_LEAD) :])
    if not keys:
        raise _no_key("public", file, "no BEGIN PUBLIC KEY", TRUST)
    return keys


class _crypto:
    """The parts of `cryptography` that are used, imported where a private key is."""

    def __init__(self, doing: str) -> None:
        try:
            from cryptography.exceptions import UnsupportedAlgorithm
            from cryptography.hazmat.primitives import serialization
            from cryptography.hazmat.primitives.asymmetric import ed25519
        except ImportError as error:
            raise SignatureError(
                "signing needs the package cryptography",
                where=doing,
                got=str(error),
                fix="pip install cryptography",
            ) from error
        self.serialization, self.ed25519 = serialization, ed25519
        self.Unsupported = UnsupportedAlgorithm


def _no_key(kind: str, path: Path, got: str, named: str) -> SignatureError:
    want = "an Ed25519 private key in PEM" if kind == "private" else "Ed25519 public keys in PEM"
    return SignatureError(
        f"{named} names no {kind} key that can be used",
        where=str(path),
        got=got,
        want=want,
        fix="lockstep keygen FILE makes a pair: FILE and FILE.pub",
    )
