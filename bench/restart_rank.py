"""One start of a step, timed from its first call to the end of it. Started by restart.py.

torch is imported, the model made and the step decorated before the clock starts, whatever the way.
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import json
import marshal
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import tyro

import lockstep as ls
from bench.restart import FLOOR, OURS, TORCH
from lockstep import _compat
from lockstep.models import llama

PARTS = ("fingerprint", "fetch", "verify", "load", "first call")


def train_step(model: llama.Llama, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Forward, loss, backward and the reduction of gradients."""
    loss = ls.loss(model(tokens, labels), dp="mean")
    loss.backward()
    ls.reduce_grads(model, dp="mean")
    return loss.detach()


class Parts:
    """Seconds by part of a start: what a part calls that is a part itself counts there alone."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self._inside = [0.0]

    def time(self, owner: Any, name: str, part: str) -> None:
        """Time every call of a function or method from now on."""
        function = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            self._inside.append(0.0)
            begin = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                spent = time.perf_counter() - begin
                self.seconds[part] += spent - self._inside.pop()
                self._inside[-1] += spent

        setattr(owner, name, timed)


def ours(arguments: tuple[Any, ...], mesh: Any) -> dict[str, Any]:
    """Call Lockstep's step for the first time."""
    from lockstep.fleet.fleet import Fleet
    from lockstep.run import step as module
    from lockstep.run.hit import Hit
    from lockstep.run.variant import Variant

    parts = Parts()
    parts.time(module, "Bound", "fingerprint")
    parts.time(module, "contract", "fingerprint")
    parts.time(module.CompiledStep, "fingerprint", "fingerprint")
    parts.time(Fleet, "obtain", "fetch")
    parts.time(Hit, "serves", "verify")
    parts.time(module, "load", "load")
    parts.time(Variant, "run", "first call")
    step = ls.compile(mesh=mesh, data="dp")(train_step)
    seen = first_call(lambda: step(*arguments))
    compilers = [n for n in sys.modules if n.startswith(_compat.COMPILER_PACKAGES)]
    return {**seen, "parts": parts.seconds, "compilers": compilers}


def compiled(arguments: tuple[Any, ...], _mesh: Any) -> dict[str, Any]:
    """Call what torch.compile makes of the step for the first time."""
    step = torch.compile(train_step)
    return first_call(lambda: step(*arguments))


def floor(arguments: tuple[Any, ...], mesh: Any) -> dict[str, Any]:
    """Read, hash and open the artifact's bytes and run its program once, knowing all beforehand."""
    [path] = Path(os.environ["LOCKSTEP_STORE"]).glob("*.lockstep")
    from lockstep.build import bytecode
    from lockstep.build.artifact import Artifact
    from lockstep.run.kernels import scope_for

    artifact = Artifact.from_bytes(path.read_bytes())
    libraries = {n: data for n, data in artifact.blobs.items() if n.endswith(".so")}
    for name in libraries:
        del artifact.blobs[name]
    scope, code, opened = scope_for(artifact), artifact.blobs[bytecode.BLOB], dict[str, Any]()
    scope["kernel"] = opened.__getitem__
    inputs = inputs_of(artifact, arguments)
    with tempfile.TemporaryDirectory() as folder:
        files = {}
        for name, data in libraries.items():
            files[Path(name).stem] = Path(folder, Path(name).name)
            files[Path(name).stem].write_bytes(data)

        def start() -> Any:
            hashlib.sha256(path.read_bytes()).hexdigest()
            opened.update({digest: library(digest, file) for digest, file in files.items()})
            exec(marshal.loads(code), scope)
            with torch.no_grad():
                outputs = scope["call"](inputs)
            [at] = [row["index"] for row in artifact.manifest["contract"]["returns"]]
            return outputs[at]

        return first_call(start)


def library(digest: str, file: Path) -> Any:
    """Open a kernel's library."""
    loader = importlib.machinery.ExtensionFileLoader(f"{digest}.kernel", str(file))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module.kernel


def inputs_of(artifact: Any, arguments: tuple[Any, ...]) -> list[Any]:
    """What the program is given, as the product finds it."""
    from lockstep.capture.binding import Step
    from lockstep.run.key import Bound
    from lockstep.run.variant import Variant

    given: list[Any] = []

    class Given(Exception):
        pass

    def program(inputs: list[Any]) -> Any:
        given.extend(inputs)
        raise Given

    step = Step(train_step)
    call = step.call(arguments, {})
    try:
        Variant(artifact, program, "floor").run(call, Bound(step, call))
    except Given:
        return given
    raise AssertionError("the program was not called")


def first_call(call: Callable[[], torch.Tensor]) -> dict[str, Any]:
    """Time one call to the end of its step."""
    begin = time.perf_counter()
    loss = call().item()
    return {"seconds": time.perf_counter() - begin, "loss": loss}


def main(way: str, out: Path, layers: int) -> None:
    """Start in one way and write what was seen.

    Args:
        way: "Lockstep", "floor" or "torch.compile".
        out: a JSON file to write.
        layers: of the Llama.
    """
    torch.set_num_threads(1)
    mesh = ls.mesh("cpu", dp=-1)
    torch.manual_seed(0)
    small = llama.config("debug", layers=layers, dim=64, ffn=128)
    tokens = torch.randint(256, (2, 33))
    arguments = (llama.Llama(small), tokens[:, :-1], tokens[:, 1:])
    seen = {OURS: ours, FLOOR: floor, TORCH: compiled}[way](arguments, mesh)
    out.write_text(json.dumps(seen))


if __name__ == "__main__":
    tyro.cli(main)
