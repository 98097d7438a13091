"""Journals and graphs that nobody ran: as many ranks, or nodes, as one likes."""

from __future__ import annotations

import json
from pathlib import Path

from lockstep.build.artifact import pack
from lockstep.build.graph_table import BLOB
from lockstep.build.program import Program

T0 = 1_900_000_000.0
SCHEDULE = [
    {"op": "all_reduce", "axis": axis, "shape": ["4096", "1024"], "dtype": "f32", "phase": "after",
     "line": f"train.py:{line}"}
    for line, axis in ((21, "dp"), (22, "dp"), (30, "tp"))
]  # fmt: skip


def lines(rank: int, world: int, steps: int = 0) -> list[dict]:
    """The events of one rank: rank 0 builds, the others load."""
    static = {"rank": rank, "world": world, "torch": "2.14.1", "device": "cuda", "devices": 8,
              "index": rank % 8, "flag": False, "mode": "on"}  # fmt: skip
    late = (rank * 7919 % 1000) / 1000
    build = {"capture": 21.0, "check": 2.0, "lower": 60.0, "compare": 1.5}
    own = {"build": 85.0, "write": 0.2} if rank == 0 else {"wait": 84.0 - late}
    seconds = {"read": 0.01, "agree": 1.0 + late, **own, "ship": 0.5 + late, "confirm": 0.3}
    total = sum(seconds.values())
    ready = T0 + 100 + late
    step = {"step": "train_step", "variant": "v0"}
    argv = {"argv": ["python", "-u", "train.py"], "nproc": 8, "environment": {}}
    found = [
        {"time": T0 + 5 + late, "event": "start", "pid": 1000 + rank, "node": rank // 8,
         **(argv if rank == 0 else {})},
        {"time": T0 + 7 + late, "event": "waits", "what": "waits for rank 0 to build train_step"},
        {"time": ready, "event": "ready", **step, "role": "loaded" if rank else "built",
         "path": "/store/0a1b.lockstep", "digest": "ab" * 32, "by": 0, "backend": "inductor",
         "bytes": 1 << 20, "nodes": 1000, "mesh": {"dp": world // 8, "tp": 8},
         "built": {"time": T0, "rank": 0, "world": world, "seconds": build},
         "seconds": {**seconds, "total": total, "load": 0.05 + late / 10}},
        {"time": ready + 0.5, "event": "ran", **step, "call": 1, "seconds": 0.4},
    ]  # fmt: skip
    if rank == 0:
        check = {"mode": "types", "established": ["types along dp: nothing contradicts 9 of 9"]}
        found.append(
            {"time": ready, "event": "program", **step, "schedule": SCHEDULE, "check": check,
             "requires": {"torch": "2.14.1"}, "versions": {"python": "3.11.2"}}
        )  # fmt: skip
    for number in range(1, steps + 1):
        loss = 5.0 / number + late / 10
        found.append({"time": ready + number, "event": "record", "step": number, "loss": loss})
    return [{**event, **static} for event in found]


def journal(folder: Path, world: int, steps: int = 0) -> Path:
    """Write a run's folder: one journal a rank."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(world):
        text = "".join(json.dumps(event) + "\n" for event in lines(rank, world, steps))
        (folder / f"rank-{rank:05d}.jsonl").write_text(text)
    return folder


def artifact(path: Path, layers: int = 32) -> Path:
    """Write an artifact whose program does nothing, and whose graph is of so many layers."""
    rows = []
    for phase in ("forward", "backward"):
        for layer in range(layers):
            for part in ("attention.wq", "attention.wk", "attention.wo", "feed_forward.w1"):
                for i in range(60):
                    text = f"%{len(rows)} = aten.mm.default(%{i}, model.w) -> float32[4096, 4096]"
                    said = "dp: V, tp: S(1)"
                    row = [text, f"model.py:{i}", f"layers.{layer}.{part}", phase, said, said]
                    rows.append(row)
                call = f"%{len(rows)} = _c10d_functional.all_reduce.default(%1, sum, tp)"
                rows.append([call, "model.py:99", f"layers.{layer}.{part}", phase, "tp: R|I", ""])
    table = json.dumps(rows).encode()
    program = Program("graph", "def call(inputs): ...\n", {}, {})
    manifest = {"step": "train_step", "schedule": SCHEDULE, "nodes": len(rows)}
    path.write_bytes(pack(manifest, program, {BLOB: table}).to_bytes())
    return path
