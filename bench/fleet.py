"""What agreement and shipping cost by the number of ranks, and a model of it to 16,384.

    python bench/fleet.py

Jobs of 2 to 32 real processes on loopback agree on an artifact that their shared store has, and
ship one that a single node has. From the small jobs comes a model of the cost; the larger ones say
whether it holds. Beside it: no rank sends more messages in a larger job, each node reads the store
once, and bytes pass through as few nodes as a tree of four is deep.
"""

from __future__ import annotations

import math
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tyro
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent))  # run as a script

if TYPE_CHECKING:
    from bench.fleet_ranks import Costs

FAN = 4  # nodes that take the bytes from one
SMALL = 8  # ranks, up to which the model is made; what is larger is held to it
WITHIN = 2.0  # times: how near a larger job must be to the model
FAR = (64, 256, 1024, 4096, 16384)
ON_A_NODE = 8  # ranks, of the jobs that are not there
MOST_MORE = 3.0  # messages a rank that a larger job may cost


@dataclass(frozen=True)
class Model:
    """What one agreement or shipment costs, found in small jobs.

    Args:
        calls: messages to the rendezvous store, by rank.
        host_s: CPU seconds of the store's host, by message.
        rank_s: CPU seconds of a rank.
        judge_s: CPU seconds of the one rank that judges, by rank it judges.
        hop_s: seconds of the bytes from one node to the next.
    """

    calls: float
    host_s: float
    rank_s: float
    judge_s: float
    hop_s: float

    def cpu_s(self, ranks: int) -> float:
        """CPU seconds of a whole job."""
        return ranks * (self.rank_s + self.calls * self.host_s)

    def there(self, ranks: int) -> float:
        """Seconds of a job whose ranks have cores of their own, and whose store's host has one."""
        hops = depth(math.ceil(ranks / ON_A_NODE)) * self.hop_s
        return self.rank_s + hops + ranks * (self.calls * self.host_s + self.judge_s)


def model_of(costs: list[Costs], judge_s: float) -> Model:
    """Make the model from the small jobs among some."""
    small = [one for one in costs if one.ranks <= SMALL]
    return Model(
        statistics.median(map(calls_of, small)),
        small[-1].host_cpu_s,
        statistics.median(one.rank_cpu_s / one.ranks for one in small),
        judge_s,
        max(one.hop_s for one in small),
    )


def calls_of(one: Costs) -> float:
    """Messages of a rank."""
    return statistics.median(one.calls)


def cpu_of(one: Costs) -> float:
    """CPU seconds of a job, with those of the store's host."""
    return one.rank_cpu_s + sum(one.calls) * one.host_cpu_s


def depth(nodes: int) -> int:
    """How many levels a tree has below its root, in which each node serves `FAN` others.

    Example:
        >>> depth(1), depth(5), depth(6), depth(2048)
        (0, 1, 2, 6)
    """
    levels, held = 0, 1
    while held < nodes:
        levels += 1
        held += FAN**levels
    return levels


def judging(ranks: int) -> float:
    """Seconds to judge a vote of so many ranks, by rank."""
    import json

    from bench.fleet_ranks import CONTRACT
    from lockstep.fleet.judge import judge_digests, judge_vote

    vote = {"step": "step", "contract": CONTRACT, "have": "0" * 64, "size": 1, "node": 0}
    texts = [json.dumps({**vote, "local_rank": rank % 8, "place": None}) for rank in range(ranks)]
    begin = time.perf_counter()
    judge_vote([json.loads(text) for text in texts])
    judge_digests([{"digest": "0" * 64}] * ranks)
    return (time.perf_counter() - begin) / ranks


def judge(agreed: list[Costs], shipped: list[Costs], models: list[Model]) -> list[tuple[bool, str]]:
    """Return each line with whether it holds."""
    reads = [count for one in agreed for count in one.reads]
    lines = [
        (
            max(reads) == min(reads) == 1,
            f"reads from the shared store: {min(reads):g} to {max(reads):g} a node, 1 wanted",
        )
    ]
    for what, some in (("agrees", agreed), ("ships", shipped)):
        first = next((one for one in some if one.nodes > 1), some[0])  # alone nothing is shipped
        more = max(map(calls_of, some)) - calls_of(first)
        told = ", ".join(f"{calls_of(one):.1f} at {one.ranks}" for one in some)
        most = f"at most {MOST_MORE:g} more than at {first.ranks}"
        line = f"messages of a rank that {what}: {told}; {most}"
        lines.append((more <= MOST_MORE, line))
    deep = [one.ranks for one in shipped if one.hops > depth(one.nodes)]
    told = ", ".join(f"{one.hops} of {depth(one.nodes)} at {one.ranks}" for one in shipped)
    last = f"{depth(FAR[-1] // ON_A_NODE)} levels at {FAR[-1]} ranks"
    lines.append((not deep, f"nodes that bytes pass: {told}; {last}"))
    for what, some, model in zip(("agree", "ship"), (agreed, shipped), models, strict=True):
        for one in some:
            if one.ranks > SMALL:
                found, told_s = cpu_of(one), model.cpu_s(one.ranks)
                line = (
                    f"{one.ranks} ranks {what} in {1e3 * found:.1f} ms of CPU,"
                    f" {found / told_s:.2f} times the model's, at most {WITHIN:g}"
                )
                lines.append((1 / WITHIN <= found / told_s <= WITHIN, line))
    return lines


def table(agreed: list[Costs], shipped: list[Costs], models: list[Model]) -> Table:
    """Return what was measured, and what the model says beyond it."""
    made = Table(
        "ranks", "agree, ms", "ship, ms", "CPU of all, ms", "model", "levels",
        title="Agreement and shipping: measured here, all ranks on these cores; below, the model",
    )  # fmt: skip
    for one, other in zip(agreed, shipped, strict=True):
        walls = [f"{1e3 * min(some.wall_s):.1f}" for some in (one, other)]
        both = ((cpu_of(one), cpu_of(other)), [m.cpu_s(one.ranks) for m in models])
        cpu = [" + ".join(f"{1e3 * part:.1f}" for part in parts) for parts in both]
        made.add_row(str(one.ranks), *walls, *cpu, str(other.hops))
    for ranks in FAR:
        walls = [f"{1e3 * model.there(ranks):.0f}" for model in models]
        levels = depth(math.ceil(ranks / ON_A_NODE))
        made.add_row(f"{ranks}", *walls, "-", "-", str(levels))
    return made


def main(ranks: tuple[int, ...] = (2, 4, 8, 16, 32), rounds: int = 7, size: int = 1 << 20) -> int:
    """Measure, print, and return 0 where every line holds.

    Args:
        ranks: of the jobs, in growing order.
        rounds: of each job.
        size: of the artifact, in bytes.
    """
    from bench.fleet_ranks import Costs, job

    os.environ.setdefault("LOCKSTEP_TIMING", "peer=30")
    console, agreed, shipped = Console(), list[Costs](), list[Costs]()
    for count in ranks:
        for shared, into in ((True, agreed), (False, shipped)):
            with tempfile.TemporaryDirectory() as folder:
                into.append(job(count, rounds, size, shared, Path(folder)))
        console.print(f"{count} ranks", style="dim")
    judge_s = judging(FAR[-1])
    models = [model_of(some, judge_s) for some in (agreed, shipped)]
    console.print(table(agreed, shipped, models))
    lines = judge(agreed, shipped, models)
    for holds, line in lines:
        console.print(f"{'holds' if holds else 'FAILS'}  {line}", markup=False, highlight=False)
    held = sum(holds for holds, _ in lines)
    agree, ship = (model.there(FAR[-1]) for model in models)
    print(
        f"{held} of {len(lines)} lines hold; by the model {FAR[-1]} ranks agree in {agree:.2f} s"
        f" and ship {size / 2**20:g} MiB in {ship:.2f} s"
    )
    return 0 if held == len(lines) else 1


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
