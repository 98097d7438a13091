"""Who made a file: an Ed25519 signature over its header, which binds every byte of it.

`LOCKSTEP_SIGN` names the private key that builders sign with, and `LOCKSTEP_TRUST` the public keys
that loaders trust. Where the second is set, what is unsigned, or signed with another key, is
refused. Digests need the standard library alone, signatures the package `cryptography`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lockstep.build.keys import SIGN, TRUST, fingerprint, read_private, trusted_keys
from lockstep.errors import SignatureError, ToolchainError

SEAL = 96  # bytes: the public key, then the signature
UNSIGNED = bytes(SEAL)
_CONTEXT = b"lockstep artifact, header\n"  # a signature of ours means nothing elsewhere


@dataclass(frozen=True)
class Signed:
    """Whose signature a file carries.

    Args:
        key: the fingerprint of the public key.
        verified: whether the signature was verified; only a process without the package
            `cryptography`, that trusts everybody, goes on without.
        trusted: whether LOCKSTEP_TRUST holds the key.
    """

    key: str
    verified: bool
    trusted: bool


def sealer() -> Callable[[bytes], bytes]:
    """Return what makes the seal of a header, by the key that LOCKSTEP_SIGN names.

    Asked for before a long build, so that a key that cannot be used is told at once.

    Raises:
        SignatureError: LS211, the key is no private key, or one that LOCKSTEP_TRUST does not hold.
        StoreError: LS230, another user can read it.
        ToolchainError: LS201, LOCKSTEP_TRUST is set, and this process has no key to sign with.
    """
    trusted, path = trusted_keys(), os.environ.get(SIGN)
    if not path:
        if trusted is not None:
            raise ToolchainError(
                "no key to sign with",
                got=f"{TRUST} is set, and {SIGN} is not",
                want=f"{SIGN}=FILE, a private key whose public one is trusted",
                why="what is built here would be unsigned, and every rank would refuse it",
                fix=["lockstep keygen FILE", f"build where {SIGN} is set, and only load here"],
            )
        return lambda head: UNSIGNED
    private = read_private(path)
    public = private.public_key().public_bytes_raw()
    if trusted is not None and public not in trusted:
        raise SignatureError(
            "what is signed here would be refused",
            where=path,
            got=fingerprint(public),
            want=f"a key that {TRUST} holds: {_names(trusted)}",
            fix=f"add the public key to {os.environ[TRUST]}, or sign with a trusted one",
        )
    return lambda head: public + private.sign(_CONTEXT + head + public)


def check_seal(head: bytes, seal: bytes, source: str) -> Signed | None:
    """Verify the signature of a header.

    Args:
        head: what is signed, beside the signer's key.
        seal: the file's 96 bytes.
        source: what messages call the file.

    Returns:
        Whose it is; None where the file is unsigned and nothing asks for a signature.

    Raises:
        SignatureError: LS211, unsigned or of another key where LOCKSTEP_TRUST is set; or changed
            since it was signed.
    """
    trusted = trusted_keys()
    if seal == UNSIGNED:
        if trusted is not None:
            raise SignatureError(
                "the artifact is not signed",
                where=source,
                want=f"a signature by a key that {TRUST} holds: {_names(trusted)}",
                fix=f"build it with {SIGN}=FILE, the private key",
            )
        return None
    key, signature = seal[:32], seal[32:]
    if trusted is not None and key not in trusted:
        raise SignatureError(
            "the artifact is signed with a key that is not trusted",
            where=source,
            got=fingerprint(key),
            want=f"a key that {TRUST} holds: {_names(trusted)}",
            fix=["build it with a trusted key", f"add the public key to {os.environ[TRUST]}"],
        )
    if not any(key) or not any(signature):  # half of what says that nobody signed
        raise _changed(key, source)
    verified = _fits(key, signature, _CONTEXT + head + key, source, trusted is not None)
    return Signed(fingerprint(key), verified, trusted is not None)


def _fits(key: bytes, signature: bytes, signed: bytes, source: str, must: bool) -> bool:
    """Verify; False where that can't be done here and needn't be."""
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    except ImportError as error:
        if not must:
            return False
        raise SignatureError(
            "the signature can't be verified here",
            where=source,
            got="no package cryptography",
            fix="pip install cryptography",
        ) from error
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, signed)
    except (InvalidSignature, ValueError) as error:
        raise _changed(key, source) from error
    return True


def _changed(key: bytes, source: str) -> SignatureError:
    return SignatureError(
        "the artifact was changed after it was signed",
        where=source,
        got=f"a signature of {fingerprint(key)} that does not fit",
        why="the header holds the digests of everything in the file",
        fix="build it again, or copy it again from where it came from",
    )


def _names(keys: Any) -> str:
    return ", ".join(sorted(map(fingerprint, keys)))
