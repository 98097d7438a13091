"""What a set of posted votes means: pure functions, so that any rank may judge and all agree."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
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
    "toolchain": "install the same versions on every node",
    "torch": "install the same versions on every node",
    "version": "install the same versions on every node",
    "mesh": "make the mesh from the same sizes and names on every rank",
}
CANDIDATES = 4
GROUPS, SHOWN = 64, 8  # kinds of odd ranks that are looked at, and fields that are told

Posted = Sequence[dict[str, Any]]


@dataclass(frozen=True)
class OddField:
    """A field in which ranks differ from most: each odd value with the ranks that have it."""

    name: str
    got: tuple[tuple[str, str], ...]
    want: str

    def told(self) -> str:
        """As "inputs.x f32[4] on rank 2, f32[2] on rank 3"."""
        return f"{self.name} " + ", ".join(f"{value} on {ranks}" for value, ranks in self.got)


def judge_vote(posted: Posted, ranks: Sequence[int] | None = None) -> dict[str, Any]:
    """Return the verdict on one vote: a fault, a hit, who may build, or what to ask for instead.

    Args:
        posted: by rank: step, contract, have (digest or None), size, node, local_rank, toolchain,
            and the rank's place where it can ask with formulas in place of its own numbers.
        ranks: who posted each; None: ranks 0, 1, and so on.
    """
    ranks = range(len(posted)) if ranks is None else ranks
    fault = _different_steps(posted, ranks)
    found = _formulas(posted) if fault is None else []
    asked = [{**vote, "contract": settled(vote["contract"], found)} for vote in posted]
    fault = fault or _different_contracts(_with_toolchains(asked if found else posted), ranks)
    if fault is not None:
        return {"fault": fault.record()}
    if found:
        return {"early": [[path, formula.record()] for path, formula in found]}
    held: dict[str, list[int]] = defaultdict(list)
    for at, vote in enumerate(posted):
        if vote["have"]:
            held[vote["have"]].append(at)
    if held:
        digest = max(held, key=lambda digest: (len(held[digest]), digest))
        by = held[digest][0]
        lack = len(posted) - len(held[digest])
        done = {"digest": digest, "by": ranks[by], "node": posted[by].get("node", 0), "lack": lack}
        done |= {"size": posted[by]["size"], "built": False}
        return {"done": done, **_nodes(posted)}
    order = sorted(range(len(posted)), key=lambda at: (posted[at]["local_rank"] > 0, ranks[at]))
    return {"candidates": [ranks[at] for at in order[:CANDIDATES]], **_nodes(posted)}


def _nodes(posted: Posted) -> dict[str, list[int]]:
    """The nodes of those who posted, where they are not all from the first one on."""
    nodes = sorted({vote.get("node", 0) for vote in posted})
    return {} if nodes == list(range(len(nodes))) else {"nodes": nodes}


def judge_contracts(posted: Posted, ranks: Sequence[int]) -> dict[str, Any]:
    """Return the verdict on what ranks say of themselves: a fault unless all say the same.

    Args:
        posted: by rank: step, contract, toolchain.
    """
    fault = _different_contracts(_with_toolchains(posted), ranks)
    return {"ok": True} if fault is None else {"fault": fault.record()}


def judge_tags(posted: Posted, ranks: Sequence[int]) -> dict[str, Any]:
    """Return the verdict on the calls that ranks enter together: a fault unless it is one call.

    Args:
        posted: by rank: call, in words.
    """
    groups = groups_of([vote["call"] for vote in posted], ranks)
    if len(groups) == 1:
        return {"ok": True}
    (usual, most), *others = groups
    odd = sorted(rank for _, members in others for rank in members)
    fault = Fault(
        kind="mismatch",
        rank=odd[0] if len(odd) == 1 and len(most) > 1 else None,
        what=f"{ranks_text(odd)} would run another call together with {ranks_text(most)}",
        got="; ".join(f"{call} on {ranks_text(members)}" for call, members in others[:SHOWN]),
        want=f"{usual} on {ranks_text(most)}",
        why="what one rank computes would be summed with another's step",
        fix="let no rank leave out a step alone: decide on all, or give its batch no weight",
    )
    return {"fault": fault.record()}


def judge_digests(posted: Posted, ranks: Sequence[int] | None = None) -> dict[str, Any]:
    """Return the verdict on what ranks hold: a fault unless all digests are equal."""
    ranks = range(len(posted)) if ranks is None else ranks
    groups = groups_of([vote["digest"] for vote in posted], ranks)
    if len(groups) == 1:
        return {"ok": True}
    (usual, _), *odd = groups
    those = sorted(rank for _, members in odd for rank in members)
    fault = Fault(
        kind="odd",
        rank=those[0] if len(those) == 1 else None,
        what=f"{ranks_text(those)} would load other bytes than the rest",
        got=", ".join(f"{digest[:12]} on {ranks_text(members)}" for digest, members in odd),
        want=usual[:12],
    )
    return {"fault": fault.record()}


def _different_steps(posted: Posted, ranks: Sequence[int]) -> Fault | None:
    groups = groups_of([vote["step"] for vote in posted], ranks)
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


def _formulas(posted: Posted) -> Formulas:
    """What the ranks read of their ranks before the step, where all can ask again."""
    places = [vote.get("place") for vote in posted]
    known = [place for place in places if place is not None]
    return formulas([v["contract"] for v in posted], known) if len(known) == len(places) else []


def _with_toolchains(posted: Posted) -> list[dict[str, Any]]:
    """The votes with each rank's toolchain in its contract.

    A rank that lacks a part of it builds nothing with that, and is no odd one for it.
    """
    names = sorted({name for vote in posted for name in vote.get("toolchain", {})})
    usual: dict[str, Any] = {}
    for name in names:
        counted = Counter(vote.get("toolchain", {}).get(name) for vote in posted)
        usual[name] = next((value for value, _ in counted.most_common() if value), None)
    if not usual:
        return list(posted)
    return [
        {
            **vote,
            "contract": {
                **vote["contract"],
                "toolchain": {n: vote["toolchain"].get(n) or usual[n] for n in names},
            },
        }
        for vote in posted
    ]


def _different_contracts(posted: Posted, ranks: Sequence[int]) -> Fault | None:
    groups = groups_of([encoded(vote["contract"]) for vote in posted], ranks)
    if len(groups) == 1:
        return None
    contracts = [vote["contract"] for vote in posted]
    paths = unlike(contracts)
    if all(values_at(contracts, path) for path in paths):
        return _own_numbers(posted[0]["step"], contracts, paths, ranks)
    by_rank = dict(zip(ranks, contracts, strict=True))
    usual = groups[0][1]
    odd = sorted(rank for _, members in groups[1:] for rank in members)
    wanted = by_rank[usual[0]]
    fields = _odd_fields(wanted, [(members, by_rank[members[0]]) for _, members in groups[1:]])
    fault = odd_contract(posted[0]["step"], odd, fields, ranks_text(usual))
    return replace(fault, path=tuple(next(differing_paths(wanted, by_rank[groups[1][1][0]]))))


def _odd_fields(
    wanted: dict[str, Any], others: Iterable[tuple[list[int], dict[str, Any]]]
) -> list[OddField]:
    """Every field in which any group of ranks differs, with all that they have in its place."""
    got: dict[str, dict[str, list[int]]] = {}
    want: dict[str, str] = {}
    for members, contract in list(others)[:GROUPS]:
        for name, value, usual in differing(contract, wanted):
            got.setdefault(name, {}).setdefault(value, []).extend(members)
            want[name] = usual
    return [
        OddField(name, tuple((v, ranks_text(sorted(r))) for v, r in values.items()), want[name])
        for name, values in got.items()
    ]


def _own_numbers(
    step: str, contracts: list[dict[str, Any]], paths: list[list[Any]], ranks: Sequence[int]
) -> Fault:
    """The fault of ints that differ between ranks, and follow no formula of their coordinates."""
    rows = []
    for path in paths[:4]:
        groups = groups_of([str(value) for value in values_at(contracts, path)], ranks)
        told = [f"{value} on {ranks_text(those)}" for value, those in sorted(groups, key=_first)]
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


def odd_contract(step: str, odd: list[int], fields: list[OddField], rest: str) -> Fault:
    """Return the fault of ranks whose contract differs, each field with all values."""
    names = ", ".join(field.name for field in fields[:SHOWN]) or "no field of the contract"
    names += f" and {len(fields) - SHOWN} more" if len(fields) > SHOWN else ""
    return Fault(
        kind="odd",
        rank=odd[0] if len(odd) == 1 else None,
        what=f"{ranks_text(odd)} differ{'s' * (len(odd) == 1)} in {names} at {step}",
        got="; ".join(field.told() for field in fields[:SHOWN]) or None,
        want="; ".join(f"{f.name} {f.want} on {rest}" for f in fields[:SHOWN]) or None,
        why="one program runs on every rank, so all must ask for the same one",
        fix=_fix(fields[0].name, fields[0].got[0][0]) if fields else _fix("", ""),
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


def groups_of(values: Sequence[str], ranks: Sequence[int]) -> list[tuple[str, list[int]]]:
    """Group ranks by value: the largest group first, of equals the one with the lowest rank.

    Example:
        >>> groups_of(["a", "b", "a"], [4, 5, 6])
        [('a', [4, 6]), ('b', [5])]
    """
    groups: dict[str, list[int]] = defaultdict(list)
    for rank, value in zip(ranks, values, strict=True):
        groups[value].append(rank)
    return sorted(groups.items(), key=lambda item: (-len(item[1]), item[1][0]))
