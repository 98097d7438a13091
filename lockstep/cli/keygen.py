"""`lockstep keygen`: a pair of keys, to sign artifacts and to trust who signed them."""

from __future__ import annotations

from pathlib import Path


def keygen(file: Path, /) -> int:
    """Make a pair of Ed25519 keys: FILE signs, FILE.pub tells whom to trust.

    Args:
        file: of the private key; it must not exist, and nobody else will be able to read it.
    """
    from lockstep.build.keys import SIGN, TRUST, generate

    public, name = generate(file.expanduser())
    print(name)
    print(f"  {SIGN}={file}  where artifacts are built")
    print(f"  {TRUST}={public}  where they run")
    return 0
