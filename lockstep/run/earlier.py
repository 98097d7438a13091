"""What earlier builds of a store have compiled, for a build that would compile the same again.

A changed line gives the step another fingerprint, and most of its graph stays: of the parts that a
compiler is given, those that an artifact has under the same versions, flags and options are taken
from it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from lockstep.build.artifact import Artifact
from lockstep.build.fingerprint import Fields
from lockstep.build.keys import SIGN, trusted_keys
from lockstep.build.parts import held_part
from lockstep.build.rewrite import Rewritten
from lockstep.errors import LockstepError
from lockstep.fleet.store import ArtifactStore, Listed

MOST = 24  # artifacts that are looked at, those first that were used last

# Of a fingerprint, what decides the code of a part beside the part itself.
_NAMES = {"backend", "machine"}
_NAMES |= {f"version {name}" for name in ("lockstep", "python", "torch", "torch_git")}
_KINDS = ("build ", "flag ", "contract mode ")


class Earlier:
    """The parts of a store's artifacts, by their keys; call it for one.

    Args:
        wanted: the fingerprint of what is built.
    """

    def __init__(self, store: ArtifactStore, wanted: Fields) -> None:
        self._store, self._wanted = store, deciding(wanted)
        self._listed: dict[str, Listed] | None = None
        self._read: dict[str, Artifact] = {}
        self.taken = 0

    def __call__(self, key: str) -> Rewritten | None:
        """The part of that key; None where no artifact has it."""
        try:
            if self._listed is None:
                self._listed = self._keys()
            found = self._held(self._listed[key], key) if key in self._listed else None
        except (OSError, LockstepError):  # the build goes on without
            return None
        self.taken += found is not None
        return found

    def _held(self, listed: Listed, key: str) -> Rewritten | None:
        name = listed.name
        if name not in self._read:
            data = self._store.read(name)
            if data is None:
                return None
            self._read[name] = Artifact.from_bytes(data, name)
        return held_part(self._read[name], key)

    def _keys(self) -> dict[str, Listed]:
        """Which artifact has which part."""
        if os.environ.get(SIGN) and trusted_keys() is None:
            return {}  # what is signed here is made here, or by whom this process trusts
        keys: dict[str, Listed] = {}
        for listed, manifest in self._manifests():
            if deciding(manifest.get("fingerprint", {})) == self._wanted:
                for key in manifest.get("parts", []):
                    keys.setdefault(key, listed)
        return keys

    def _manifests(self) -> Iterator[tuple[Listed, Fields]]:
        for listed in list(self._store.kept())[: -MOST - 1 : -1]:
            try:
                yield listed, listed.manifest()
            except (OSError, LockstepError):
                continue  # damaged, foreign, or just dropped


def deciding(fingerprint: Fields) -> Fields:
    """The fields of a fingerprint that decide the code of every part.

    Example:
        >>> deciding({"backend": "inductor", "source train": "0a1b", "flag cudnn": []})
        {'backend': 'inductor', 'flag cudnn': []}
    """
    return {k: v for k, v in fingerprint.items() if k in _NAMES or k.startswith(_KINDS)}
