"""Apply the passes that are asked for, each proved and typed anew before the next one.

What a pass made that is not proved equal, or that the types find a fault in, is left out: the
program is then made without that pass, and its manifest says so by the pass's name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lockstep.build.outline.nodes import calls, stays
from lockstep.build.passes.bucket import bucketed
from lockstep.build.passes.collectives import axis_of, is_start, is_wait
from lockstep.build.passes.memory import within
from lockstep.build.passes.overlap import overlapped
from lockstep.build.passes.proof import equal
from lockstep.build.passes.share import shared
from lockstep.build.passes.update import one_by_one

Told = dict[str, int | str]


@dataclass(frozen=True)
class Setting:
    """What passes may know of the job.

    Args:
        mode: the fake mode of the graph's values.
        sizes: axis -> number of ranks.
    """

    mode: Any
    sizes: Mapping[str, int]

    @property
    def pairs(self) -> frozenset[str]:
        """The axes of two ranks."""
        return frozenset(axis for axis, size in self.sizes.items() if size == 2)

    @property
    def alone(self) -> frozenset[str]:
        """The axes of one rank: nothing goes over them."""
        return frozenset(axis for axis, size in self.sizes.items() if size == 1)


@dataclass(frozen=True)
class Pass:
    """One pass.

    Args:
        run: changes a graph, within a limit of bytes, and returns how often it did something.
        local: whether it has to do where no other rank is.
        any_order: whether sums may be added in another order on more than two ranks.
    """

    run: Callable[[Any, Setting, int], int]
    local: bool = False
    any_order: bool = False


PASSES = {
    "update": Pass(lambda graph, _, __: one_by_one(graph), local=True),
    "share": Pass(lambda graph, _, __: shared(graph), local=True),
    "memory": Pass(lambda graph, _, most: within(graph, most), local=True),
    "bucket": Pass(lambda graph, job, most: bucketed(graph, job.mode, job.pairs, most)),
    "bucket_wide": Pass(
        lambda graph, job, most: bucketed(graph, job.mode, None, most), any_order=True
    ),
    "overlap": Pass(lambda graph, _, most: overlapped(graph, most)),
}


def applied(
    gm: Any,
    asked: Mapping[str, int],
    setting: Setting,
    faults: Callable[[Any], str] = lambda made: "",
) -> tuple[Any, Told]:
    """Apply passes to a graph.

    Args:
        gm: a flat graph of operators; it is not changed.
        asked: pass -> its limit in bytes.
        faults: what the types say of a graph that a pass made; empty where nothing is wrong.

    Returns:
        The graph that the last pass left, and by pass how often it did something, or why it is
        left out.
    """
    told: Told = {}
    starts = filter(is_start, calls(gm.graph))
    alone = all(axis_of(start) in setting.alone for start in starts)
    for name, one in PASSES.items():
        if name not in asked or (alone and not one.local):
            continue
        made = _copied(gm)
        count = one.run(made.graph, setting, asked[name])
        if not count:
            continue
        _sweep(made.graph)
        pairs = None if one.any_order else setting.pairs
        why = "" if equal(gm, made, pairs) else "it was not proved to keep every bit"
        why = faults(made) or why
        told[name] = f"left out: {why}" if why else count
        gm = gm if why else made
    return gm, told


def _sweep(graph: Any) -> None:
    """Take out what nothing reads, collectives too: each rank's program leaves out the same."""
    for node in reversed(calls(graph)):
        idle = is_start(node) or is_wait(node) or not stays(node)
        if idle and not node.users:
            graph.erase_node(node)
    graph.lint()


def _copied(gm: Any) -> Any:
    import torch

    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    return torch.fx.GraphModule({}, graph)
