"""What a build costs where the store has compiled most of it, and what all cores are worth.

    python bench/rebuild.py

A Llama of 8 layers, one of them of another structure, is built anew: with one compiler at a time,
then with as many as there are cores. Then a value that no operator reads is changed, and then the
odd layer's activation, each with the store that has the first program, and with an empty one.
Every build is a process of its own whose compiler has empty caches, as on a new machine. Seconds
are those on the clock, for lowering alone: capture and check are the same whatever a store has.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))  # run as a script

SAME, CORES = 0.1, 0.95
SIZE = {"dim": 64, "heads": 4, "kv_heads": 2, "ffn": 128, "vocab": 256}
LAYERS, LIMIT_S = 8, 1200

# By name: the store's folder, the value that is not read, the activation, compilers at a time.
BUILDS = {
    "new, one compiler at a time": ("alone", 0, "gelu", 1),
    "new": ("store", 0, "gelu", None),
    "another value": ("store", 1, "gelu", None),
    "another layer": ("store", 1, "relu", None),
    "another layer, an empty store": ("fresh", 1, "relu", None),
}
ALONE, NEW, VALUE, LAYER, FRESH = BUILDS


def build(store: Path, value: int, activation: str) -> dict[str, Any]:
    """Build one artifact; return the seconds of its parts, and what is in it."""
    import torch
    from torch import nn

    import lockstep as ls
    from lockstep import _compat
    from lockstep.build.artifact import read_manifest
    from lockstep.models import llama

    class Other(nn.Module):
        """A feed-forward of two matrices."""

        def __init__(self, dim: int, ffn: int) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(dim, ffn), nn.Linear(ffn, dim)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.down(getattr(nn.functional, activation)(self.up(x)))

    def train_step(model: Any, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        assert value < 2
        loss = ls.loss(model(tokens, labels), dp="mean")
        loss.backward()
        ls.reduce_grads(model, dp="mean")
        return loss.detach()

    compiled: list[Any] = []
    original = _compat.compile_to_python

    def counted(gm: Any, fakes: list[Any]) -> str:
        compiled.append(gm)
        return original(gm, fakes)

    _compat.compile_to_python = counted
    torch.set_num_threads(1)
    mesh = ls.mesh("cpu", dp=-1)
    torch.manual_seed(0)
    model = llama.Llama(llama.config("debug", layers=LAYERS, **SIZE))
    model.layers[LAYERS // 2].feed_forward = Other(SIZE["dim"], SIZE["ffn"])  # type: ignore[union-attr]
    tokens = torch.randint(SIZE["vocab"], (2, 33))
    before = set(store.glob("*.lockstep"))
    ls.compile(mesh=mesh, data="dp", store=store)(train_step)(model, tokens[:, :-1], tokens[:, 1:])
    (file,) = set(store.glob("*.lockstep")) - before
    manifest = read_manifest(file)
    kept = {"program.py", *(b["name"] for b in manifest["blobs"] if b["name"].endswith(".cpp"))}
    return {
        "seconds": manifest["built"]["seconds"],
        "parts": manifest["parts"],
        "compiled": len(compiled),
        "program": {b["name"]: b["sha256"] for b in manifest["blobs"] if b["name"] in kept},
    }


def child(folder: Path, number: int, name: str) -> dict[str, Any]:
    """Make one build in a process of its own, with empty caches."""
    *_, threads = BUILDS[name]
    out = folder / f"{number}.json"
    env = dict(os.environ)
    env |= {"TORCHINDUCTOR_CACHE_DIR": str(folder / str(number))}
    env |= {"LOCKSTEP_RUNS": str(folder / "runs"), "LOCKSTEP_REPEATS": "once"}
    env |= {"TORCHINDUCTOR_COMPILE_THREADS": str(threads)} if threads else {}
    words = ["--folder", str(folder), "--out", str(out), "--name", name]
    command = [sys.executable, __file__, *words]
    subprocess.run(command, env=env, check=True, timeout=LIMIT_S, stdout=subprocess.DEVNULL)
    return json.loads(out.read_text())


def main(name: str = "", folder: Path | None = None, out: Path | None = None) -> int:
    """Measure, print, and return 0 where every line of the claim holds.

    Args:
        name, folder, out: of a child process.
    """
    if folder is not None and out is not None:
        store, value, activation, _ = BUILDS[name]
        out.write_text(json.dumps(build(folder / store, value, activation)))
        return 0
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as made:
        seen = {name: child(Path(made), at, name) for at, name in enumerate(BUILDS)}
    Console(width=100).print(table(seen))
    return verdict(seen, time.monotonic() - begin)


def table(seen: dict[str, dict[str, Any]]) -> Table:
    """Return the figures, a row a build."""
    made = Table("build", "capture s", "check s", "lowering s", "parts", "compiled")
    for name, one in seen.items():
        seconds = one["seconds"]
        made.add_row(
            name, *(f"{seconds[part]:.1f}" for part in ("capture", "check", "lower")),
            str(len(one["parts"])), str(one["compiled"]),
        )  # fmt: skip
    return made


def verdict(seen: dict[str, dict[str, Any]], seconds: float) -> int:
    """Print what holds and what does not; return 0 where all does."""
    took = {name: one["seconds"]["lower"] for name, one in seen.items()}
    value, layer = took[VALUE] / took[NEW], took[LAYER] / took[FRESH]
    cores = took[NEW] / took[ALONE]
    parts, had = [key for key in seen[LAYER]["parts"] if key], set(seen[NEW]["parts"])
    new = sum(key not in had for key in parts)
    equal = seen[VALUE]["program"] == seen[NEW]["program"]
    lines = [
        (f"all cores lower in {cores:.2f} times one's time", CORES, cores <= CORES),
        (f"an equal graph is lowered in {value:.3f} times a new one's time", SAME, value <= SAME),
        (f"of a changed layer {new} of {len(parts)} parts are compiled, those that are new; "
         f"in {layer:.2f} times that", None, seen[LAYER]["compiled"] == new < len(parts) / 2),
        ("what is taken is what is compiled anew", None,
         equal and seen[LAYER]["program"] == seen[FRESH]["program"]),
    ]  # fmt: skip
    for line, most, holds in lines:
        bound = f", at most {most}" if most is not None else ""
        print(f"{'holds' if holds else 'FAILS'}  {line}{bound}")
    failed = sum(not holds for *_, holds in lines)
    print(f"{len(lines) - failed} of {len(lines)} lines hold, in {seconds:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
