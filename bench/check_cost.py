"""What a check costs: its parts against depth, and Llama 3 70B by shape.

    python bench/check_cost.py

A tensor-parallel Llama over 2 x 2 ranks, of a growing number of layers, is checked by all
witnesses. Seconds are those of the CPU, the depths take turns, and each part's seconds are judged
in units of a fixed piece of Python that is timed before and after it: a machine that is slower for
a while is so for both. Nothing may grow faster than the number of graph nodes. Then Llama 3 70B
over 2 x 8 ranks is judged by its types alone, in a process of its own, right
and with one conversion forgotten.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))  # run as a script

TOLERANCE = 1.25  # of what may grow as the nodes do: the noise of a shared machine
SHORTEST_S = 0.02  # a part that takes less at the greatest depth is not judged
MOST_GIB = 8.0
LIMIT_S = 1200
WITNESSES = ("types", "gold", "twin")
PARTS = ("capture", "capture of one rank", "order", *WITNESSES, "randomness")
SMALL = {"dim": 16, "heads": 4, "kv_heads": 2, "ffn": 32, "vocab": 32}
BIG = {"dp": 2, "tp": 8}

LOOKS = 3  # judgements of one captured world; the least of each part's seconds counts

Row = tuple[int, dict[str, float], dict[str, float]]  # nodes, seconds and units of work by part
Turns = dict[int, list[Row]]  # by depth, what each turn measured


def program(config: Any, batch: int, tokens: int, without: str = "") -> tuple[Any, Any]:
    """Return the step of a tensor-parallel Llama, and what makes its arguments on a rank.

    Args:
        config: the Llama's.
        batch, tokens: of the whole job.
        without: a collective or a conversion that is left out, as `tests.silent.plan` has it.
    """
    import torch

    import lockstep as ls
    from lockstep.models import llama
    from tests.silent.plan import Plan, cross_entropy, parallelise

    def step(model: Any, tokens_BT: Any, labels_BT: Any, plan: Plan) -> Any:
        loss = ls.loss(cross_entropy(plan, model(tokens_BT), labels_BT), dp="mean")
        loss.backward()
        ls.reduce_grads(model, dp="mean")
        return loss

    def make(mesh: Any) -> Any:
        torch.manual_seed(0)
        plan = Plan(mesh["tp"].size(), mesh.get_local_rank("tp"), without=without)
        model = parallelise(llama.Llama(config), plan)
        ls.type_parameters(model, {"*": {"dp": ls.R}})
        whole = torch.randint(config.vocab, (batch, tokens + 1))
        mine = whole.chunk(mesh["dp"].size())[mesh.get_local_rank("dp")]
        parts = [ls.typed(part.clone(), tp=ls.I) for part in (mine[:, :-1], mine[:, 1:])]
        return (model, *parts), {"plan": plan}

    return step, make


def unit_s() -> float:
    """CPU seconds of a fixed piece of Python, now: how fast this machine is at this moment."""
    least = float("inf")
    for _ in range(5):
        start, held = time.thread_time(), {}
        for i in range(20_000):
            held[i % 997, i] = [str(i), held.get((i % 997, i - 1))]
        least = min(least, time.thread_time() - start)
    return least


def one_check(layers: int) -> Row:
    """Check a Llama of this depth by all witnesses; return its nodes, CPU seconds and units."""
    from lockstep.checker.check import judged
    from lockstep.checker.finding import Report
    from lockstep.checker.simulation import twin
    from lockstep.checker.world import capture_world
    from lockstep.models import llama

    class Timed(Report):
        @contextlib.contextmanager
        def timed(self, part: str) -> Iterator[None]:
            gc.collect()  # what earlier parts and checks left is not this part's
            before, start = unit_s(), time.thread_time()
            yield
            self.seconds[part] = spent = time.thread_time() - start
            work = 2 * spent / (before + unit_s())
            units[part] = min(units.get(part, work), work)

    units: dict[str, float] = {}

    step, make = program(llama.config("debug", **SMALL, layers=layers), batch=4, tokens=6)
    captures = Timed()
    with captures.timed("capture"):
        world = capture_world(step, make, {"dp": 2, "tp": 2})
    with captures.timed("capture of one rank"):
        one = capture_world(step, make, {"dp": 1, "tp": 1})
    looks = []
    for _ in range(LOOKS):
        report = Timed()
        judged(world, lambda gold: twin.beside(world, gold, one), report, ("dp",), {})
        if not report.ok or report.undecided:
            raise SystemExit(f"the Llama of {layers} layers is right; the check says:\n{report}")
        looks.append(report.seconds)
    least = {part: min(look[part] for look in looks) for part in looks[0]}
    return report.nodes, captures.seconds | least, units


def in_turn(check: Callable[[int], Row], depths: list[int], repeat: int) -> Turns:
    """Check every depth once in each of `repeat` turns, each turn beginning with another."""
    check(min(depths))  # what the first check of a process loads
    seen: Turns = {depth: [] for depth in depths}
    order = list(depths)
    for _ in range(repeat):
        for depth in order:
            seen[depth].append(check(depth))
        order.append(order.pop(0))
    return seen


def seconds_of(row: Row, part: str) -> float:
    """The seconds of one of `PARTS`, or of "all" of them."""
    return sum(row[1].values()) if part == "all" else row[1][part]


def units_of(row: Row, part: str) -> float:
    """A part's work in units, or that of "all" parts."""
    return sum(row[2].values()) if part == "all" else row[2][part]


def growth(found: Turns, part: str, low: int, high: int) -> float:
    """How many times faster a part's units grew between two depths than the nodes did; medians."""
    deep, flat = (
        statistics.median(units_of(row, part) for row in found[depth]) for depth in (high, low)
    )
    return deep / flat / (found[high][0][0] / found[low][0][0])


def judge(found: Turns) -> list[tuple[bool, str]]:
    """For each part whether it grows no faster than the nodes, with its figures.

    Over all depths, and over the last doubling, where what each check costs once weighs least.
    """
    *_, before, last = sorted(found)
    first, lines = min(found), []
    for part in (*PARTS, "all"):
        if max(seconds_of(row, part) for row in found[last]) < SHORTEST_S:
            continue
        whole, late = (growth(found, part, low, last) for low in (first, before))
        holds = max(whole, late) <= TOLERANCE
        told = f"{part}: work {first} -> {last} layers grow {whole:.2f} times as the nodes do"
        lines.append((holds, f"{told}, {before} -> {last} {late:.2f} times, at most {TOLERANCE}"))
    return lines


def table(found: Turns) -> Table:
    """Return seconds by part, and microseconds a node by witness: medians over turns."""
    made = Table("layers", "nodes", *PARTS, *(f"us a node, {name}" for name in WITNESSES))
    made.title = "CPU seconds of a check on 4 ranks (dp 2 x tp 2)"
    for depth, rows in sorted(found.items()):
        nodes = rows[0][0]
        seconds = {part: statistics.median(seconds_of(row, part) for row in rows) for part in PARTS}
        shown = [f"{seconds[part]:.3f}" for part in PARTS]
        each = [f"{1e6 * seconds[name] / nodes:.0f}" for name in WITNESSES]
        made.add_row(str(depth), str(nodes), *shown, *each)
    return made


# -- by shape


def by_shape(layers: int, without: str = "") -> dict[str, Any]:
    """Check Llama 3 70B by types alone in this process; what it said, its seconds and memory."""
    import lockstep as ls
    from lockstep.models import llama

    start = time.perf_counter()
    config = llama.config("70b", layers=layers)
    step, make = program(config, batch=16, tokens=8192, without=without)
    report = ls.check(step, make, mesh=BIG, data="dp", witnesses="types")
    return {
        "findings": [str(finding) for finding in report.findings],
        "undecided": report.undecided,
        "established": report.established,
        "seconds": time.perf_counter() - start,
        "parts": report.seconds,
        "nodes": report.nodes,
        "gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def in_a_process(layers: int, without: str = "") -> dict[str, Any]:
    """Return what `by_shape` gives in a fresh process, so that its peak of memory is its own."""
    command = [sys.executable, __file__, "--layers", str(layers), "--without", without]
    done = subprocess.run(
        [*command, "--alone"], stdout=subprocess.PIPE, text=True, timeout=LIMIT_S, env=os.environ
    )
    if done.returncode:
        raise SystemExit(f"the check by shape ended with {done.returncode}\n{done.stdout}")
    return json.loads(done.stdout.splitlines()[-1])


def judge_shape(right: dict[str, Any], wrong: dict[str, Any]) -> list[tuple[bool, str]]:
    """Whether the right program passes in little memory, and the wrong one is found."""
    told = f"{right['nodes']} nodes in {right['seconds']:.1f} s, peak {right['gib']:.2f} GiB"
    passes = not right["findings"] and not right["undecided"] and right["gib"] <= MOST_GIB
    found = [text for text in wrong["findings"] if text.startswith("LS504") and "axis tp" in text]
    first = wrong["findings"][0].splitlines()[0] if wrong["findings"] else "nothing"
    return [
        (passes, f"Llama 3 70B by shape, dp 2 x tp 8: {told}, at most {MOST_GIB:.0f} GiB"),
        (bool(found), f"without the conversion at a block's entry: {first}"),
    ]


def main(
    depths: list[int] = [2, 4, 8, 16],  # noqa: B006  (read alone)
    repeat: int = 3,
    layers: int = 80,
    without: str = "",
    alone: bool = False,
) -> int:
    """Measure, print, and return 0 where every line holds.

    Args:
        depths: layers of the small Llama.
        repeat: turns, in each of which every depth is checked.
        layers: of Llama 3 70B.
        without: left out of the program, with `alone`.
        alone: check by shape in this process alone, and print what came of it.
    """
    if alone:
        print(json.dumps(by_shape(layers, without)))
        return 0
    found = in_turn(one_check, depths, repeat)
    Console(width=140).print(table(found))
    right, wrong = in_a_process(layers), in_a_process(min(layers, 2), "entry")
    for line in right["established"]:
        print(f"  {line}")
    spent = ", ".join(f"{part} {seconds:.1f}" for part, seconds in right["parts"].items())
    print(f"  seconds: {spent}")
    lines = [*judge(found), *judge_shape(right, wrong)]
    for holds, line in lines:
        print(f"{'holds' if holds else 'FAILS'}  {line}")
    print(
        f"{sum(holds for holds, _ in lines)} of {len(lines)} lines hold; medians of {repeat} turns"
    )
    return 0 if all(holds for holds, _ in lines) else 1


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
