"""What a set of posted votes means: pure functions, so that any rank may judge and all agree."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from lockstep.build.early import (
    Formulas,
    differing_paths,
    formulas,
    name_of,
    settled,
    unlike,
    values_at,
)
from lockstep.fleet.client import encoded
from lockstep.fleet.faults import Fault
from lockstep.fleet.say import ranks_text

SHAPES = "give every rank the same shapes: for batch, weights in ls.even_batches(loader, mesh)"
OWN = "read the rank inside the step, or hold what differs in a tensor: register_buffer(...)"
_TENSOR = re.compile(r"[a-z]+\d*\[[^\]]*\]")  # i64[8, 16]
_NUMBER = re.compile(r"-?\d+(\.\d+)?")
_FIXES = {
    "input": SHAPES,
    "source": "start every rank from the same files",
    "code": "start every rank from the same files",
    "torch": "install the same versions on every node",
    "version": "install the same versions on every node",
    "mesh": "make the mesh from the same sizes and names on every rank",
}
CANDIDATES = 4


def judge_vote(posted: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the verdict on one vote: a fault, a hit, who may build, or what to ask for instead.

    Args:
        posted: by rank: step, contract, have (digest or None), size, node, local_rank, and the
            rank's place where it can ask with formulas in place of its own numbers.
    """
    fault = _different_steps(posted)
    found = _formulas(posted) if fault is None else []
    asked = [{**vote, "contract": settled(vote["contract"], found)} for vote in posted]
    fault = fault or _different_contracts(asked if found else posted)
    if fault is not None:
        return {"fault": fault.record()}
    if found:
        return {"early": [[path, formula.record()] for path, formula in found]}
    held: dict[str, list[int]] = defaultdict(list)
    for rank, vote in enumerate(posted):
        if vote["have"]:
            held[vote["have"]].append(rank)
    if held:
        digest = max(held, key=lambda digest: (len(held[digest]), digest))
        by = held[digest][0]
        lack = len(posted) - len(held[digest])
        done = {"digest": digest, "by": by, "node": posted[by].get("node", 0), "lack": lack}
        return {"done": {**done, "size": posted[by]["size"], "built": False}}
    order = sorted(range(len(posted)), key=lambda rank: (posted[rank]["local_rank"] > 0, rank))
    return {"candidates": order[:CANDIDATES]}


def judge_digests(posted: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the verdict on what ranks hold: a fault unless all digests are equal."""
    groups = _groups([vote["digest"] for vote in posted])
    if len(groups) == 1:
        return {"ok": True}
    (usual, _), *odd = groups
    ranks = sorted(rank for _, members in odd for rank in members)
    fault = Fault(
        kind="odd",
        rank=ranks[0] if len(ranks) == 1 else None,
        what=f"{ranks_text(ranks)} would load other bytes than the rest",
        got=", ".join(f"{digest[:12]} on {ranks_text(members)}" for digest, members in odd),
        want=usual[:12],
    )
    return {"fault": fault.record()}


def _different_steps(posted: Sequence[dict[str, Any]]) -> Fault | None:
    groups = _groups([vote["step"] for vote in posted])
    if len(groups) == 1:
        return None
    where = "; ".join(f"{ranks_text(members)} called {step}" for step, members in groups)
    usual, odd = groups[0][1], [rank for _, members in groups[1:] for rank in members]
    return Fault(
        kind="odd",
        rank=odd[0] if len(odd) == 1 and len(usual) > 1 else None,
        what="ranks call different steps",
        got=where,
        want="the same compiled step on every rank, in the same order",
        why="each would wait for the others for ever",
        fix="call the steps in one order everywhere; keep `if rank == 0:` away from them",
    )


def _formulas(posted: Sequence[dict[str, Any]]) -> Formulas:
    """What the ranks read of their ranks before the step, where all can ask again."""
    places = [vote.get("place") for vote in posted]
    known = [place for place in places if place is not None]
    return formulas([v["contract"] for v in posted], known) if len(known) == len(places) else []


def _different_contracts(posted: Sequence[dict[str, Any]]) -> Fault | None:
    groups = _groups([encoded(vote["contract"]) for vote in posted])
    if len(groups) == 1:
        return None
    contracts = [vote["contract"] for vote in posted]
    paths = unlike(contracts)
    if all(values_at(contracts, path) for path in paths):
        return _own_numbers(posted[0]["step"], contracts, paths)
    usual = groups[0][1]
    odd = sorted(rank for _, members in groups[1:] for rank in members)
    wanted, got = posted[usual[0]]["contract"], posted[odd[0]]["contract"]
    same = [rank for _, members in groups[1:] if odd[0] in members for rank in members]
    fault = odd_contract(
        posted[0]["step"], odd, differing(got, wanted), ranks_text(same), ranks_text(usual)
    )
    return replace(fault, path=tuple(next(differing_paths(wanted, got))))


def _own_numbers(step: str, contracts: list[dict[str, Any]], paths: list[list[Any]]) -> Fault:
    """The fault of ints that differ between ranks, and follow no formula of their coordinates."""
    rows = []
    for path in paths[:4]:
        groups = _groups([str(value) for value in values_at(contracts, path)])
        told = [f"{value} on {ranks_text(ranks)}" for value, ranks in sorted(groups, key=_first)]
        rows.append(f"{name_of(path)}: {'; '.join(told)}")
    name = name_of(paths[0])
    return Fault(
        kind="odd",
        rank=None,
        what=f"{name} differs between the ranks of {step}, and by no formula of their coordinates",
        got="\n".join(rows),
        want="a + b * coordinate along the axes of the mesh, which each rank reads as it runs",
        why="one program runs on every rank, and it would hold the number of one of them",
        fix=OWN,
        path=tuple(paths[0]),
    )


def _first(group: tuple[str, list[int]]) -> int:
    return group[1][0]


def odd_contract(
    step: str, odd: list[int], fields: list[tuple[str, str, str]], those: str, rest: str
) -> Fault:
    """Return the fault of ranks whose contract differs, each field with both values."""
    names = ", ".join(name for name, _, _ in fields[:4]) or "no field of the contract"
    return Fault(
        kind="odd",
        rank=odd[0] if len(odd) == 1 else None,
        what=f"{ranks_text(odd)} differ{'s' * (len(odd) == 1)} in {names} at {step}",
        got="; ".join(f"{name} {got} on {those}" for name, got, _ in fields[:4]) or None,
        want="; ".join(f"{name} {want} on {rest}" for name, _, want in fields[:4]) or None,
        why="one program runs on every rank, so all must ask for the same one",
        fix=_fix(*fields[0][:2]) if fields else _fix("", ""),
    )


def differing(got: Any, want: Any, path: str = "") -> list[tuple[str, str, str]]:
    """Return (path, got, want) of every leaf in which two JSON values differ.

    Example:
        >>> differing({"inputs": {"x": "f32[4]"}}, {"inputs": {"x": "f32[8]"}})
        [('inputs.x', 'f32[4]', 'f32[8]')]
    """
    if isinstance(got, dict) and isinstance(want, dict):
        keys = [*want, *(key for key in got if key not in want)]
        parts = [(f"{path}.{key}" if path else str(key), key) for key in keys]
        return [row for name, key in parts for row in differing(got.get(key), want.get(key), name)]
    if isinstance(got, list) and isinstance(want, list) and len(got) == len(want):
        pairs = enumerate(zip(got, want, strict=True))
        return [row for i, (a, b) in pairs for row in differing(a, b, f"{path}[{i}]")]
    return [] if encoded(got) == encoded(want) else [(path, _shown(got), _shown(want))]


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else encoded(value)
    return "nothing" if value is None else text if len(text) <= 200 else f"{text[:200]}..."


def _fix(path: str, got: str) -> str:
    held = path.startswith(("module ", "object ", "value "))
    if held and (_NUMBER.fullmatch(got) or _TENSOR.match(got)):
        return OWN
    if _TENSOR.match(got):
        return SHAPES
    for word, fix in _FIXES.items():
        if word in path.lower():
            return fix
    return f"make {path or 'the call'} the same on every rank"


def _groups(values: Sequence[str]) -> list[tuple[str, list[int]]]:
    """Group ranks by value: the largest group first, of equals the one with the lowest rank."""
    groups: dict[str, list[int]] = defaultdict(list)
    for rank, value in enumerate(values):
        groups[value].append(rank)
    return sorted(groups.items(), key=lambda item: (-len(item[1]), item[1][0]))
