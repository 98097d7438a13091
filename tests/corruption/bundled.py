"""Changed bundles: torn ones, and ones whose digests agree while they hold another's artifact."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence

from lockstep.build import bytecode, format
from lockstep.build.bundle import pack_bundle
from tests.corruption.files import Real
from tests.corruption.forged import UNSIGNED, Seal, parts, rebuilt, whole_manifest
from tests.corruption.judge import Mutation


def bundled(
    files: Sequence[Real], each: int, draw: random.Random, seal: Seal
) -> Iterator[Mutation]:
    """Yield changed bundles, each of all signed or of all unsigned artifacts.

    Args:
        seal: the trusted signer.
    """
    for signed in (True, False):
        held = {f"{i:02x}.lockstep": real for i, real in enumerate(files) if real.signed == signed}
        maker = seal if signed else lambda head: UNSIGNED
        whole = pack_bundle({name: real.data for name, real in held.items()}, maker)
        for _ in range(each):
            name = draw.choice(sorted(held))
            wanted = held[name].wanted
            start, size = _place(whole, name)
            head = whole_manifest(whole)[1]
            at = draw.choice([draw.randrange(head), draw.randrange(start, start + size)])
            flipped = whole[:at] + bytes([whole[at] ^ 1 << draw.randrange(8)]) + whole[at + 1 :]
            yield Mutation("a bundle: a flip", flipped, wanted, False, signed, bundled=name)
            cut = whole[: draw.randrange(len(whole))]
            yield Mutation("a bundle: a cut", cut, wanted, False, signed, bundled=name)
            for kind, data in _forged(held, name, draw, maker):
                yield Mutation(f"a bundle: {kind}", data, wanted, True, signed, bundled=name)


def _place(whole: bytes, name: str) -> tuple[int, int]:
    """Where an artifact's bytes are: a flip in another's is met by who reads that."""
    manifest, start = whole_manifest(whole)
    (row,) = [row for row in manifest["blobs"] if row["name"] == name]
    return start + row["offset"], row["size"]


def _forged(
    held: dict[str, Real], name: str, draw: random.Random, maker: Seal
) -> Iterator[tuple[str, bytes]]:
    """Bundles under right digests (and signed, where the job asks for it)."""
    datas = {key: real.data for key, real in held.items()}
    other = draw.choice([key for key in datas if key != name])
    yield "two names swapped", pack_bundle({**datas, name: datas[other], other: datas[name]}, maker)
    torn = bytearray(datas[name])
    torn[draw.randrange(len(torn))] ^= 1 << draw.randrange(8)
    yield "one artifact torn", _unchecked({**datas, name: bytes(torn)}, maker)
    table = {key: data for key, data in datas.items() if key != name}
    yield "the artifact left out", pack_bundle(table, maker)
    bundle = pack_bundle({name: datas[name]}, maker)
    yield "a bundle in a bundle", _unchecked({**datas, name: bundle}, maker)


def _unchecked(datas: dict[str, bytes], maker: Seal) -> bytes:
    """What `pack_bundle` would not make: it verifies what it packs."""
    rows = [
        {"name": name, "step": "train", "digest": hashlib.sha256(datas[name]).hexdigest()}
        for name in sorted(datas)
    ]
    return format.encode(format.BUNDLE, {"artifacts": rows}, datas, maker)


def unlike_byte_code(files: Sequence[Real], each: int, draw: random.Random) -> Iterator[Mutation]:
    """Yield files whose byte code is not of their text: `lockstep verify` compares the two."""
    for real in [real for real in files if not real.signed] * each:
        manifest, blobs, _ = parts(real.data)
        if draw.random() < 0.5:
            code = bytearray(blobs["program.code"])
            code[draw.randrange(len(code))] ^= 1 << draw.randrange(8)
            blobs["program.code"] = bytes(code)
        else:
            text = blobs["program.py"].decode() + "\nimport builtins\n"
            blobs["program.code"] = bytecode.byte_code(text, manifest["code"]["source"])[1]
        data = rebuilt(manifest, blobs, UNSIGNED)
        kind = "byte code that is not the text's"
        yield Mutation(kind, data, real.wanted, True, False, through="verify")
