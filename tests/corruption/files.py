"""Real artifacts of both back ends, with a canary in program, byte code and a pickle."""

from __future__ import annotations

import builtins
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import lockstep as ls
from lockstep.build.artifact import Artifact, pack
from lockstep.build.program import Program

CANARY = "lockstep_test_canary"
_SINGS = f"import builtins\nbuiltins.{CANARY} = getattr(builtins, '{CANARY}', 0) + 1\n"
_OWN = ("blobs", "backend", "requires", "code", "repeats")


def sung() -> int:
    """How often a canary has run in this process."""
    return getattr(builtins, CANARY, 0)


class Pickled:
    """What sings when it is unpickled."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return exec, (_SINGS,)


@dataclass(frozen=True)
class Real:
    """An artifact's file.

    Args:
        name: its step and back end.
        data: the file.
        wanted: the fingerprint of the job that wants it.
        signed: whether it is signed, with the key that the job trusts.
    """

    name: str
    data: bytes
    wanted: dict[str, Any]
    signed: bool


class Net(nn.Module):
    """Two layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(width, 2 * width), nn.Linear(2 * width, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(torch.relu(self.one(x)))


def train(model: Net, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A step with a backward."""
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    return loss


def evaluate(model: Net, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A step without."""
    with torch.no_grad():
        return (model(x) - y).abs().sum()


def built(step: Callable[..., Any], backend: str, folder: Path) -> Artifact:
    """Build a step's artifact as a job does, and put canaries into it."""
    store = folder / f"{step.__name__}-{backend}"
    torch.manual_seed(0)
    compiled = ls.compile(step, mesh=ls.mesh(dp=-1), backend=backend, store=store)
    compiled(Net(8), torch.ones(16, 8), torch.zeros(16, 4))
    (path,) = store.glob("*.lockstep")
    return with_canaries(Artifact.from_bytes(path.read_bytes()))


def with_canaries(artifact: Artifact, seal: Callable[[bytes], bytes] | None = None) -> Artifact:
    """The same artifact, whose program and an additional pickle sing where they are run."""
    blobs = dict(artifact.blobs)
    libraries, sources = _kernels(blobs, ".so"), _kernels(blobs, ".cpp")
    text = blobs.pop("program.py").decode()
    text = text if CANARY in text else _SINGS + text
    blobs.pop("program.code")
    blobs["extra.pickle"] = pickle.dumps(Pickled())
    told = {key: value for key, value in artifact.manifest.items() if key not in _OWN}
    kept = artifact.manifest
    program = Program(
        kept["backend"], text, libraries, kept["requires"],
        {digest: source.decode() for digest, source in sources.items()},
        repeats=kept.get("repeats", {}),
    )  # fmt: skip
    return pack(told, program, blobs, seal)


def real_files(
    backends: tuple[str, ...], folder: Path, seal: Callable[[bytes], bytes]
) -> list[Real]:
    """Two steps by each back end, each unsigned and signed.

    Args:
        folder: for stores.
        seal: signs.
    """
    found = []
    for backend in backends:
        for step in (train, evaluate):
            plain = built(step, backend, folder)
            for one in (plain, with_canaries(plain, seal)):
                signed = one is not plain
                name = f"{step.__name__}, {backend}{', signed' if signed else ''}"
                wanted = one.manifest["fingerprint"]
                found.append(Real(name, one.to_bytes(), wanted, signed))
    return found


def _kernels(blobs: dict[str, bytes], kind: str) -> dict[str, bytes]:
    names = [name for name in blobs if name.startswith("kernels/") and name.endswith(kind)]
    return {name.removeprefix("kernels/").removesuffix(kind): blobs.pop(name) for name in names}
