"""The verdict on a graph that all ranks have run beside the step itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from lockstep.fleet.faults import Fault
from lockstep.fleet.say import ranks_text

SHOWN = 6
Posted = Sequence[dict[str, Any]]


def judge_eager(posted: Posted, ranks: Sequence[int]) -> dict[str, Any]:
    """Return what ranks found together, or what they are to look at next.

    Args:
        posted: by rank: the step; what differs between it and its graph, by name, gradients first;
            collectives as (op, axis, times in the step, times in the graph), where these differ;
            "itself", None at first: what differs between two runs of one and the same; "beyond",
            None until it was measured: what differs by more than rounding explains; "times": by
            how many times what rounding does values differ.

    Returns:
        "result": "equal", "rounding" or "not comparable"; "again" and "measure": what is None is to
        be found out; or a fault.
    """
    counts = any(one["counts"] for one in posted)
    differs = any(one["differs"] for one in posted)
    if not (counts or differs):
        return {"result": "equal"}
    if counts:
        return {"fault": _fault(posted, ranks).record()}
    if any(one["itself"] is None for one in posted):
        return {"result": "again"}
    unsteady = [name for one in posted for name in one["itself"]]
    if unsteady:
        shown = ", ".join(dict.fromkeys(unsteady[:SHOWN]))
        return {"result": "not comparable", "why": f"two runs of it differ by themselves: {shown}"}
    if any(one["beyond"] is None for one in posted):
        return {"result": "measure"}
    if not any(one["beyond"] for one in posted):
        return {"result": "rounding", "why": _told(posted)}
    return {"fault": _fault(posted, ranks).record()}


def _told(posted: Posted) -> str:
    names = list(dict.fromkeys(name for one in posted for name in one["differs"]))
    times = max(one["times"] for one in posted)
    return (
        f"{len(names)} value(s) have other bits, {times:.1f} times as far off as rounding moves "
        "them, as where a package computes the same by other operators once it sees that it is "
        f"traced: {_names(names)}"
    )


def _fault(posted: Posted, ranks: Sequence[int]) -> Fault:
    step = posted[0]["step"]
    measured = all(one["beyond"] is not None for one in posted)
    how, key = ("more than rounding", "beyond") if measured else ("other bits", "differs")
    odd = [rank for rank, one in zip(ranks, posted, strict=True) if one["counts"] or one[key]]
    first = next((one for one in posted if one[key]), None)
    rows = dict.fromkeys(tuple(row) for one in posted for row in one["counts"])
    got = [_counted(*row) for row in list(rows)[:SHOWN]]
    if first is not None:
        got.append(f"{how} in {_kinds(first[key])}: {_names(first[key])}")
    return Fault(
        kind="eager",
        rank=odd[0] if len(odd) == 1 and len(ranks) > 1 else None,
        what=f"the captured graph of {step} does not do what {step} does: no artifact is made",
        where=first[key][0] if first is not None else None,
        got="\n".join(got) + (f"\non {ranks_text(odd)}" if len(ranks) > 1 else ""),
        want="the collectives of the step run eagerly from the same state, and but for rounding "
        "its values",
        why="a graph may lose or freeze what no rule knows of: a hook, a reducer, a value",
        fix=f'mend it, or ls.compile(eager_check="off") runs the graph as it is; '
        f"`lockstep check --eager SCRIPT` compares {step} again",
    )


def _counted(op: str, axis: str, step: int, graph: int) -> str:
    """One collective's counts.

    Example:
        >>> _counted("all_reduce", "dp", 2, 0)
        'all_reduce over dp: 2 in the step, 0 in the graph: 2 missing'
    """
    more = f"{step - graph} missing" if step > graph else f"{graph - step} extra"
    return f"{op} over {axis}: {step} in the step, {graph} in the graph: {more}"


def _names(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _kinds(names: list[str]) -> str:
    """How many of each kind.

    Example:
        >>> _kinds(["model.weight.grad", "output 0", "model.mean"])
        '1 gradient(s), 2 other value(s)'
    """
    kinds = Counter("gradient" if name.endswith(".grad") else "other value" for name in names)
    return ", ".join(f"{count} {kind}(s)" for kind, count in kinds.items())
