"""What capture costs by the number of nodes, up to a whole step of Llama 3 70B on fake tensors.

    python bench/capture.py

Forward, loss, backward, the reduction of gradients and AdamW, at full width: model and batch are
fake tensors, which have a shape and take no memory. Each depth is captured once in a process of its
own, after a capture of one layer that loads what a first capture loads. Seconds are those of the
CPU, judged in units of a fixed piece of Python that is timed before and after; bytes are by how
much the process' peak grew. Twice the nodes may cost at most 2.2 times the work and the bytes.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))  # run as a script

MOST = 1.1  # times as fast as the nodes: 2.2 for twice of them
BATCH, LENGTH = 2, 8192
LIMIT_S = 1800

Row = dict[str, float]


def program(layers: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return a training step, and its arguments as fakes: nothing is drawn or allocated."""
    import torch

    import lockstep as ls
    from lockstep import _compat
    from lockstep.models import llama

    def step(model: Any, optimizer: Any, tokens_BT: Any, labels_BT: Any) -> Any:
        loss = ls.loss(model(tokens_BT, labels_BT), dp="mean")
        loss.backward()
        ls.reduce_grads(model, dp="mean")
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    def undrawn(tensor: Any, *_: object, **__: object) -> Any:
        return tensor

    for name in [name for name in vars(torch.nn.init) if name.endswith("_") and name[0] != "_"]:
        setattr(torch.nn.init, name, undrawn)
    mode = _compat.fake_mode()
    mode.allow_non_fake_inputs = True
    with mode:
        model = llama.Llama(llama.config("70b", layers=layers))
        whole = torch.zeros(BATCH, LENGTH + 1, dtype=torch.long)
        parts = whole[:, :-1], whole[:, 1:]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)
    return step, (model, optimizer, *parts)


def measured(layers: int) -> Row:
    """Capture once in this process; return nodes, CPU seconds, units of work and bytes."""
    import lockstep as ls
    from bench.check_cost import unit_s
    from lockstep.capture.capture import capture

    ls.mesh("cpu", dp=-1)
    step, arguments = program(1)
    capture(step, *arguments)  # what a first capture loads
    step, arguments = program(layers)
    gc.collect()
    before, unit, start = _peak(), unit_s(), time.process_time()
    graph = capture(step, *arguments)
    seconds = time.process_time() - start
    work = 2 * seconds / (unit + unit_s())
    nodes = len(graph.gm.graph.nodes)
    return {"nodes": nodes, "seconds": seconds, "work": work, "bytes": _peak() - before}


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def in_a_process(layers: int) -> Row:
    """Return what `measured` gives in a fresh process, so that its peak of memory is its own."""
    done = subprocess.run(
        [sys.executable, __file__, "--alone", str(layers)],
        stdout=subprocess.PIPE, text=True, timeout=LIMIT_S, env=os.environ,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"a capture of {layers} layers ended with {done.returncode}")
    row: Row = json.loads(done.stdout.splitlines()[-1])
    return row


def judge(found: dict[int, Row]) -> list[tuple[bool, str]]:
    """For each step from a depth to the next one whether it costs as much as its nodes do."""
    lines = []
    for (low, less), (high, more) in pairwise(sorted(found.items())):
        nodes = more["nodes"] / less["nodes"]
        for what in ("work", "bytes"):
            grown = more[what] / less[what]
            told = f"{low} -> {high} layers: {grown:.2f} times the {what} for {nodes:.2f} times"
            lines.append((grown <= MOST * nodes, f"{told} the nodes, at most {MOST * nodes:.2f}"))
    return lines


def table(found: dict[int, Row]) -> Table:
    """Return the figures, a row a depth."""
    made = Table("layers", "nodes", "CPU s", "ms a node", "MiB", "KiB a node")
    made.title = "capture of a Llama 3 70B's training step, by layers"
    for layers, row in sorted(found.items()):
        nodes, seconds, size = row["nodes"], row["seconds"], row["bytes"]
        each = f"{1e3 * seconds / nodes:.2f}", f"{size / 2**20:.0f}", f"{size / 2**10 / nodes:.1f}"
        made.add_row(str(layers), str(nodes), f"{seconds:.1f}", *each)
    return made


def main(layers: tuple[int, ...] = (10, 20, 40, 80), alone: int = 0) -> int:
    """Measure, print, and return 0 where every line holds.

    Args:
        layers: of Llama 3 70B, which has 80.
        alone: capture this many layers in this process, and print what came of it.
    """
    if alone:
        print(json.dumps(measured(alone)))
        return 0
    found = {}
    for depth in layers:
        found[depth] = in_a_process(depth)
        print(f"{depth} layers: {found[depth]}", file=sys.stderr)
    Console(width=120).print(table(found))
    lines = judge(found)
    for holds, line in lines:
        print(f"{'holds' if holds else 'FAILS'}  {line}")
    last = found[max(found)]
    held = sum(holds for holds, _ in lines)
    print(
        f"{held} of {len(lines)} lines hold; {last['nodes']} nodes in {last['seconds']:.1f} CPU s, "
        f"{last['bytes'] / 2**20:.0f} MiB"
    )
    return 0 if held == len(lines) else 1


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
