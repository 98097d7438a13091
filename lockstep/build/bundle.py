"""A bundle: the artifacts of a job in one file, which is what `LOCKSTEP_STORE=FILE` reads.

It is a file of the same format with another magic: each blob is a whole artifact's file, under the
name that a store gives it, and its manifest tells their steps. Nothing here executes what a bundle
holds, and only the standard library is used.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO

from lockstep.build import format, shape
from lockstep.build.artifact import Artifact
from lockstep.build.signature import sealer
from lockstep.errors import ArtifactError

_ROW = {"name!": str, "step!": str, "digest!": str, "role": str}
BUNDLE = {"artifacts!": [_ROW]}


def pack_bundle(
    artifacts: Mapping[str, bytes], seal: Callable[[bytes], bytes] | None = None
) -> bytes:
    """Put artifacts into one file; the same artifacts always give the same bytes.

    Args:
        artifacts: an artifact's name in a store -> its file's bytes.
        seal: what signs, from `sealer`; by default by the key that LOCKSTEP_SIGN names.

    Returns:
        The bundle's bytes.

    Raises:
        ArtifactError: LS210, one of them is no sound artifact.
        UsageError: LS001, a name that no store gives.

    Example:
        >>> from lockstep.build.artifact import pack
        >>> from lockstep.build.program import Program
        >>> one = pack({"step": "train"}, Program("graph", "def call(inputs): ...", {}, {}))
        >>> data = pack_bundle({"0a.lockstep": one.to_bytes()})
        >>> list(read_bundle(data)), read_bundle(data)["0a.lockstep"] == one.to_bytes()
        (['0a.lockstep'], True)
    """
    rows = []
    for name in sorted(artifacts):
        one = Artifact.from_bytes(artifacts[name], name)
        row = {"name": name, "step": one.manifest.get("step", ""), "digest": one.digest}
        role = one.manifest.get("fingerprint", {}).get("options role")
        rows.append(row | ({"role": role} if role else {}))
    return format.encode(format.BUNDLE, {"artifacts": rows}, artifacts, seal or sealer())


def read_bundle(data: bytes, source: str = "<bytes>") -> dict[str, bytes]:
    """Verify a bundle's every byte; return each artifact's name in a store -> its bytes.

    The artifacts themselves are verified by `Artifact.from_bytes`.

    Raises:
        ArtifactError: LS210 or LS211, as `Artifact.from_bytes`; or a file that is no bundle.
    """
    held = format.decode(format.BUNDLE, data, source)
    check_bundle(held.manifest, source)
    return held.blobs


def is_bundle(stream: BinaryIO) -> bool:
    """Return whether an open file begins as a bundle does; it is then at its first byte again."""
    stream.seek(0)
    magic = stream.read(len(format.BUNDLE))
    stream.seek(0)
    return magic == format.BUNDLE


class Bundle:
    """An open bundle, of which single artifacts are read: the others aren't.

    Args:
        path: what messages call it.
        stream: the open file.

    Raises:
        ArtifactError: LS210 or LS211; header, signature, manifest and table are verified.
    """

    def __init__(self, path: str | os.PathLike[str], stream: BinaryIO) -> None:
        self._reader = format.open_file(path, stream)
        self._reader.want(format.BUNDLE)
        check_bundle(self._reader.manifest, os.fspath(path))

    @property
    def roles(self) -> dict[str, str]:
        """Each artifact's name in a store -> the role it is of; "" for all ranks."""
        return {row["name"]: row.get("role", "") for row in self._reader.manifest["artifacts"]}

    @property
    def steps(self) -> dict[str, str]:
        """Each artifact's name in a store -> its step."""
        return {row["name"]: row["step"] for row in self._reader.manifest["artifacts"]}

    def read(self, name: str) -> bytes | None:
        """Return an artifact's bytes, that are those which were packed; None where there is none.

        Raises:
            ArtifactError: LS210, they were changed.
        """
        return self._reader.blob(name)


def check_bundle(manifest: dict[str, Any], source: str) -> None:
    """Refuse a manifest that is not of a bundle's form.

    Raises:
        ArtifactError: LS210.
    """
    found = shape.misfit(manifest, BUNDLE)
    if not found:
        told = [(row["name"], row["digest"]) for row in manifest["artifacts"]]
        if told != [(row["name"], row["sha256"]) for row in manifest["blobs"]]:
            found = "artifacts that are not its blobs"
    if found:
        raise ArtifactError(
            "the manifest is not that of a bundle",
            where=source,
            got=found,
            want="what docs/format.md says",
            fix=format.AGAIN,
        )
