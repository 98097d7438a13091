"""Changed files whose digests agree: what a signature, the form or a job has to refuse."""

from __future__ import annotations

import hashlib
import json
import random
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from lockstep.build import format, stored
from tests.corruption.files import Real
from tests.corruption.judge import Mutation

Seal = Callable[[bytes], bytes]
UNSIGNED = bytes(96)


def file_of(text: bytes, blobs: bytes, seal: bytes | Seal, magic: bytes = format.STEP) -> bytes:
    """A file whose digest of the manifest is right, whatever the manifest is."""
    return file_of_stream(zlib.compress(text, 9), blobs, seal, magic)


def file_of_stream(
    stream: bytes, blobs: bytes, seal: bytes | Seal, magic: bytes = format.STEP
) -> bytes:
    """The same, of a manifest as it lies in the file, whatever that inflates to."""
    digest = hashlib.sha256(stream).digest()
    head = struct.pack("<8sII32s", magic, format.VERSION, len(stream), digest)
    lead = head + (seal if isinstance(seal, bytes) else seal(head)) + stream
    return lead + bytes(-len(lead) % 64) + blobs


def spelled(manifest: Any) -> bytes:
    """A manifest as the format spells it."""
    return json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()


def parts(data: bytes) -> tuple[dict[str, Any], dict[str, bytes], bytes]:
    """A sound file's manifest, blobs as they are when inflated, and seal."""
    manifest, start = whole_manifest(data)
    blobs = {}
    for row in manifest.pop("blobs"):
        held = data[start + row["offset"] :][: stored.size_in_file(row)]
        blobs[row["name"]] = held if row["stored"] == "raw" else zlib.decompress(held)
    return manifest, blobs, data[48:144]


def whole_manifest(data: bytes) -> tuple[dict[str, Any], int]:
    """A sound file's manifest with its rows, and where its blobs begin."""
    length = int.from_bytes(data[12:16], "little")
    return json.loads(zlib.decompress(data[144 : 144 + length])), (144 + length + 63) // 64 * 64


def rebuilt(manifest: dict[str, Any], blobs: dict[str, bytes], seal: bytes | Seal) -> bytes:
    """A file of other content, with all digests and offsets right."""
    return format.encode(format.STEP, manifest, blobs, seal)


def forged_signed(
    files: Sequence[Real], each: int, draw: random.Random, stranger: Seal
) -> Iterator[Mutation]:
    """Yield programs that nobody trusted has signed: other code, under right digests."""
    signed = [real for real in files if real.signed]
    changes = (_other_text, _other_byte_code, _other_library, _swapped_blob, _fewer, _more)
    for change in changes:
        made = 0
        while made < each:
            real, other = draw.sample(signed, 2)
            manifest, blobs, seal = parts(real.data)
            name = change(manifest, blobs, parts(other.data), draw)
            seals = {
                "its old signature": seal,
                "the signature of another file": parts(other.data)[2],
                "no signature": UNSIGNED,
                "a stranger's signature": stranger,
                "the key of one, the signature of another": seal[:32] + stranger(b"")[32:],
            }
            who = draw.choice(list(seals))
            data = rebuilt(manifest, blobs, seals[who])
            if name and data != real.data:
                made += 1
                yield Mutation(f"{name}, {who}", data, real.wanted, True, True)


def _other_text(_m: Any, blobs: dict[str, bytes], _o: Any, draw: random.Random) -> str:
    lines = blobs["program.py"].splitlines(keepends=True)
    lines.insert(draw.randrange(len(lines)), b"# another\n")
    blobs["program.py"] = b"".join(lines)
    return "another text"


def _other_byte_code(_m: Any, blobs: dict[str, bytes], _o: Any, draw: random.Random) -> str:
    code = bytearray(blobs["program.code"])
    code[draw.randrange(len(code))] ^= 1 << draw.randrange(8)
    blobs["program.code"] = bytes(code)
    return "other byte code"


def _other_library(_m: Any, blobs: dict[str, bytes], _o: Any, draw: random.Random) -> str:
    name = draw.choice(sorted(blobs))
    blobs[name] = draw.randbytes(max(1, len(blobs[name])))
    return "another blob"


def _swapped_blob(_m: Any, blobs: dict[str, bytes], other: Any, draw: random.Random) -> str:
    shared = sorted(name for name in blobs if other[1].get(name, blobs[name]) != blobs[name])
    if not shared:
        return ""
    name = draw.choice(shared)
    blobs[name] = other[1][name]
    return "a blob of another signed file"


def _fewer(_m: Any, blobs: dict[str, bytes], _o: Any, draw: random.Random) -> str:
    del blobs[draw.choice(sorted(blobs))]
    return "a blob left out"


def _more(manifest: dict[str, Any], blobs: dict[str, bytes], _o: Any, draw: random.Random) -> str:
    if draw.random() < 0.5:
        blobs[f"kernels/{draw.randrange(16**8):08x}.so"] = b"\x7fELF" + draw.randbytes(60)
        return "one more library"
    manifest["requires"] = {**manifest["requires"], "ops": ["os::system.default"]}
    return "another requirement"


def forged_form(files: Sequence[Real], each: int, draw: random.Random) -> Iterator[Mutation]:
    """Yield unsigned files whose manifest is not of a step's form, or of another job's step."""
    plain = [real for real in files if not real.signed]
    changes = (_retyped, _left_out, _another_fingerprint, _another_requirement, _no_contract)
    for change in changes:
        made = 0
        while made < each:
            real = draw.choice(plain)
            manifest, blobs, _ = parts(real.data)
            name = change(manifest, draw)
            data = rebuilt(manifest, blobs, UNSIGNED)
            if name and data != real.data:
                made += 1
                yield Mutation(name, data, real.wanted, True, False)


ODD = (None, True, -1, 1.5, "x", [], [[]], {}, {"x": 1}, 1 << 70)
# Where a value of another type is never another sound step's; paths that hold any value are not.
TYPED = (
    "backend", "requires", "code", "step", "nodes", "fingerprint", "contract", "schedule", "check",
    "built", "contract.inputs", "contract.returns", "contract.out_spec", "contract.effects",
    "contract.inputs.0", "contract.inputs.0.name", "contract.inputs.0.kind",
    "contract.inputs.0.shape", "contract.inputs.0.stride", "contract.inputs.0.dtype",
    "contract.inputs.0.device", "contract.inputs.0.ties", "contract.inputs.0.requires_grad",
    "contract.returns.0", "contract.returns.0.kind", "contract.returns.0.index",
    "requires.torch", "requires.ops", "check.mode", "built.time", "built.rank", "built.world",
    "built.seconds", "built.seconds.lower", "code.magic", "code.source", "code.interpreter",
)  # fmt: skip
NEEDED = (
    "backend", "requires", "step", "nodes", "fingerprint", "contract", "check", "built",
    "contract.inputs", "contract.returns", "contract.out_spec", "contract.effects",
    "contract.inputs.0.name", "contract.inputs.0.kind", "contract.inputs.0.shape",
    "contract.inputs.0.stride", "contract.inputs.0.dtype", "contract.inputs.0.device",
    "contract.inputs.0.ties", "contract.returns.0.kind", "contract.returns.0.index",
    "contract.returns.0.value", "contract.returns.0.grad", "built.time", "built.rank",
    "built.world", "built.seconds", "code.magic", "code.source", "code.interpreter", "check.mode",
)  # fmt: skip
_ALIKE = {"check.mode": str, "contract.returns.0.index": int, "nodes": int}


def at(value: Any, path: str) -> tuple[Any, Any]:
    """What holds the value at a path, and the key there."""
    *way, last = path.split(".")
    for key in way:
        value = value[int(key)] if isinstance(value, list) else value[key]
    return value, int(last) if isinstance(value, list) else last


def _retyped(manifest: dict[str, Any], draw: random.Random) -> str:
    path = draw.choice(TYPED)
    holder, key = at(manifest, path)
    kind = type(holder[key])
    odd = [v for v in ODD if type(v) is not kind and not (kind is float and type(v) is int)]
    odd += [-1, 1 << 70] if path in ("nodes", "built.time", "built.rank", "built.world") else []
    holder[key] = draw.choice(odd)
    return "a value of another type"


def _left_out(manifest: dict[str, Any], draw: random.Random) -> str:
    holder, key = at(manifest, draw.choice(NEEDED))
    del holder[key]
    return "a key left out"


def _another_fingerprint(manifest: dict[str, Any], draw: random.Random) -> str:
    fields = manifest["fingerprint"]
    name = draw.choice(sorted(fields))
    way = draw.randrange(3)
    if way == 0:
        del fields[name]
    elif way == 1:
        fields[name] = draw.choice([value for value in ODD if value != fields[name]])
    else:
        fields[f"{name} "] = fields[name]
    return "another fingerprint"


def _no_contract(manifest: dict[str, Any], draw: random.Random) -> str:
    contract = manifest["contract"]
    if draw.random() < 0.5:
        tree = contract["out_spec"]
        at = draw.randrange(len(tree))
        contract["out_spec"] = draw.choice(["", "x", "[1]", "{}", "[99, {}]", tree[:at]])
    else:
        text = draw.choice(
            [
                "n0 ==",
                "import os",
                "n0 < x.y",
                "(",
                "\0",
                "lambda: n0",
                "n99 < 2",
                "n0.real",
                "1 < 2",
            ]
        )
        contract["sizes"] = [{"name": "x", "dim": 0, "low": 2, "high": 9}]
        contract["guards"] = [{"text": text, "line": "train.py:1"}]
    return "a contract that can't be read"


def _another_requirement(manifest: dict[str, Any], draw: random.Random) -> str:
    requires = manifest["requires"]
    key = draw.choice(["torch", "torch_git", "machine", "python_abi", "cpu_features", "ops"])
    other: Any = "other"
    if key == "cpu_features":
        other = ["an instruction unheard of"]
    if key == "ops":
        other = ["nowhere::op.default"]
    requires[key] = other
    return "built for something else"
