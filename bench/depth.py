"""What depth costs to compile: 4, 8, 16 and 32 layers, repeated ones compiled once, or one by one.

    python bench/depth.py

A Llama whose middle layer has another structure; each layer has its own weights. Every build is a
process of its own with empty caches. Then, for each depth, one process loads both artifacts and
runs their steps in turn, from the same weights, on one thread. Seconds are those of the CPU, the
C++ compiler's included. Capture gives the whole graph, which the parts are proved against, so it
grows with depth; it is judged with lowering, as a user waits for both. Of 4 layers with an odd one
none repeats four times: they are compiled one by one either way.
"""

from __future__ import annotations

import json
import os
import statistics
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

ONCE, FLAT = "once", "flat"
GROWTH, SLOWER = 1.3, 1.03
SIZE = {"dim": 256, "heads": 4, "kv_heads": 2, "ffn": 512, "vocab": 256}
BATCH, LENGTH = 8, 64
LIMIT_S = 1200


def program(layers: int, kind: str, store: Path) -> tuple[Any, Any]:
    """Return one way's step with its model and batch bound, and the model."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    import lockstep as ls
    from lockstep.models import llama

    class Other(nn.Module):
        """A feed-forward of two matrices, with a GELU."""

        def __init__(self, dim: int, ffn: int) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(dim, ffn), nn.Linear(ffn, dim)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.down(F.gelu(self.up(x)))

    torch.set_num_threads(1)
    mesh = ls.mesh("cpu", dp=-1)
    torch.manual_seed(0)
    model = llama.Llama(llama.config("debug", layers=layers, **SIZE))
    model.layers[layers // 2].feed_forward = Other(SIZE["dim"], SIZE["ffn"])  # type: ignore[union-attr]
    tokens = torch.randint(SIZE["vocab"], (BATCH, LENGTH + 1))

    def train_step(model: Any, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        loss = ls.loss(model(tokens, labels), dp="mean")
        loss.backward()
        ls.reduce_grads(model, dp="mean")
        return loss.detach()

    step = ls.compile(mesh=mesh, data="dp", store=store)(train_step)
    os.environ["LOCKSTEP_REPEATS"] = kind
    loss = step(model, tokens[:, :-1], tokens[:, 1:])  # builds, or loads what was built
    bits = [loss, *(parameter.grad.clone() for parameter in model.parameters())]
    return lambda: step(model, tokens[:, :-1], tokens[:, 1:]), (model, bits)


def build(layers: int, kind: str, store: Path) -> dict[str, Any]:
    """Build one artifact; return what it took and what is in it."""
    from bench.measure import cpu_seconds
    from lockstep.build.artifact import read_manifest
    from lockstep.run import admit

    seconds: dict[str, float] = {}

    def timed(name: str, function: Any) -> Any:
        def run(*args: Any) -> Any:
            start = cpu_seconds()
            result = function(*args)
            seconds[name] = cpu_seconds() - start
            return result

        return run

    admit.lower = timed("lower", admit.lower)
    admit.capture_call = timed("capture", admit.capture_call)
    program(layers, kind, store)
    (file,) = store.glob("*.lockstep")
    manifest = read_manifest(file)
    return {
        "seconds": seconds,
        "bytes": file.stat().st_size,
        "repeats": manifest["repeats"],
        "blobs": {row["name"]: row["size"] for row in manifest["blobs"]},
    }


def measure(layers: int, steps: int, folder: Path) -> dict[str, Any]:
    """Load both artifacts of a depth; return seconds, peaks, and whether all bits are equal."""
    import torch

    from bench.step import peak_bytes, seconds

    ways, models = {}, {}
    for kind in (ONCE, FLAT):
        ways[kind], models[kind] = program(layers, kind, folder / f"{kind}{layers}")

    def clear() -> None:
        for model, _ in models.values():
            model.zero_grad()

    seconds(ways, clear, 3)
    taken = seconds(ways, clear, steps)
    peaks = {}
    for kind, step in ways.items():
        clear()
        peaks[kind] = peak_bytes(step)
    once, flat = (bits for _, bits in models.values())
    ratios = [a / b for a, b in zip(taken[ONCE], taken[FLAT], strict=True)]
    return {
        "ms": {kind: 1e3 * statistics.median(values) for kind, values in taken.items()},
        "slower": statistics.median(ratios),
        "peak": peaks,
        "equal": all(torch.equal(a, b) for a, b in zip(once, flat, strict=True)),
    }


def child(folder: Path, name: str, *words: str) -> dict[str, Any]:
    """Run one part in a process of its own, with empty caches; return what it wrote."""
    out = folder / f"{name}.json"
    env = dict(os.environ)
    env |= {"TORCHINDUCTOR_CACHE_DIR": str(folder / name), "LOCKSTEP_RUNS": str(folder / "runs")}
    env |= {"KINETO_LOG_LEVEL": "99"}  # the profiler looks for accelerators, loudly
    command = [sys.executable, __file__, "--folder", str(folder), "--out", str(out), *words]
    subprocess.run(command, env=env, check=True, timeout=LIMIT_S, stdout=subprocess.DEVNULL)
    return json.loads(out.read_text())


def part(layers: int, kind: str, steps: int, folder: Path, out: Path) -> int:
    """Do what a child process is for."""
    if kind:
        found = build(layers, kind, folder / f"{kind}{layers}")
    else:
        found = measure(layers, steps, folder)
    out.write_text(json.dumps(found))
    return 0


def main(
    depths: tuple[int, ...] = (4, 8, 16, 32),
    steps: int = 40,
    layers: int = 0,
    kind: str = "",
    folder: Path | None = None,
    out: Path | None = None,
) -> int:
    """Measure, print, and return 0 where every line of the claim holds.

    Args:
        depths: numbers of layers, the first and the last of which are compared.
        steps: of each way that are timed.
        layers, kind, folder, out: of a child process.
    """
    if folder is not None and out is not None:
        return part(layers, kind, steps, folder, out)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        built: dict[tuple[str, int], dict[str, Any]] = {}
        for number in depths:
            for way in (ONCE, FLAT):
                words = ("--layers", str(number), "--kind", way)
                built[way, number] = child(place, f"build-{way}-{number}", *words)
        words = ("--steps", str(steps))
        ran = {
            number: child(place, f"run-{number}", "--layers", str(number), *words)
            for number in depths
        }
    Console(width=150).print(table(depths, built, ran))
    return verdict(depths, built, ran, time.monotonic() - begin)


def table(depths: tuple[int, ...], built: Any, ran: Any) -> Table:
    """Return the figures, a row a depth."""
    made = Table(
        "layers", "capture s", "lowering s, once", "one by one", "artifact KB, once", "one by one",
        "step ms, once", "one by one", "ratio", "peak MiB, once", "one by one", "bits",
        title="repeated layers compiled once, and one by one",
    )  # fmt: skip
    for number in depths:
        once, flat, run = built[ONCE, number], built[FLAT, number], ran[number]
        made.add_row(
            str(number), f"{once['seconds']['capture']:.1f}",
            f"{once['seconds']['lower']:.1f}", f"{flat['seconds']['lower']:.1f}",
            f"{once['bytes'] / 1e3:.0f}", f"{flat['bytes'] / 1e3:.0f}",
            f"{run['ms'][ONCE]:.1f}", f"{run['ms'][FLAT]:.1f}", f"{run['slower']:.3f}",
            f"{run['peak'][ONCE] / 2**20:.2f}", f"{run['peak'][FLAT] / 2**20:.2f}",
            "equal" if run["equal"] else "DIFFER",
        )  # fmt: skip
    return made


def verdict(depths: tuple[int, ...], built: Any, ran: Any, seconds: float) -> int:
    """Print what holds and what does not; return 0 where all does."""
    first, last = built[ONCE, depths[0]], built[ONCE, depths[-1]]
    both = sum(last["seconds"].values()) / sum(first["seconds"].values())
    size = last["bytes"] / first["bytes"]
    slower = max(run["slower"] for run in ran.values())
    peaks = all(run["peak"][ONCE] <= run["peak"][FLAT] for run in ran.values())
    lines = [
        (f"{depths[-1]} layers are built in {both:.2f} times {depths[0]}'s time", both <= GROWTH),
        (f"its artifact is {size:.2f} times as large", size <= GROWTH),
        (f"a step takes at most {slower:.3f} times that of one by one", slower <= SLOWER),
        ("its peak of live memory is no higher", peaks),
        ("loss and gradients are equal to the bit", all(run["equal"] for run in ran.values())),
    ]  # fmt: skip
    for line, holds in lines:
        print(f"{'holds' if holds else 'FAILS'}: {line}")
    failed = [line for line, holds in lines if not holds]
    print(f"{len(lines) - len(failed)} of {len(lines)} lines hold, in {seconds:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
