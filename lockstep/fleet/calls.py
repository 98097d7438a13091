"""Whether all ranks enter the same call: first calls compared, and votes that only some hold."""

from __future__ import annotations

import time
from typing import Any

from lockstep.build.early import agreeing
from lockstep.fleet.client import Client
from lockstep.fleet.faults import Fault
from lockstep.fleet.judge import OddField, differing, odd_contract
from lockstep.fleet.say import ranks_text
from lockstep.fleet.scope import Scope
from lockstep.fleet.state import State

FIRST_OF_JOB = 8  # calls of any step, compared by their place in the job
FIRST_OF_STEP = 3  # calls of each variant, compared by their number
SETTLE = 2  # beats in which the other ranks post theirs too


def note_call(state: State, step: str, variant: str, number: int, scope: Scope) -> None:
    """Remember that the main thread enters a call; the watcher posts the first ones."""
    state.calls += 1
    state.entered[step] = (number, variant)
    times = state.times[step, variant] = state.times.get((step, variant), 0) + 1
    told = f"{step} ({variant}), its call {number}"
    if state.calls <= FIRST_OF_JOB:
        state.posts.append((scope, f"call/job/{state.calls}", told))
    elif times <= FIRST_OF_STEP:
        state.posts.append((scope, f"call/step/{step}/{number}", told))


def compare_call(client: Client, state: State, scope: Scope, key: str, mine: str) -> Fault | None:
    """Post one call and return the fault if another rank of the scope entered another one.

    Costs two store calls a rank; only a difference costs more.
    """
    key = scope.key(key)
    client.put(f"{key}/{state.rank}", mine)
    if client.create(key, mine) == mine:
        return None
    time.sleep(SETTLE * state.timing.beat)
    groups: dict[str, list[int]] = {}
    for rank in scope.ranks:
        other = client.get(f"{key}/{rank}")
        if other is not None:
            groups.setdefault(other, []).append(rank)
    ordered = sorted(groups.items(), key=lambda item: (-len(item[1]), item[1][0]))
    odd = sorted(rank for _, ranks in ordered[1:] for rank in ranks)
    usual, ranks = ordered[0]
    return Fault(
        kind="odd",
        rank=odd[0] if len(odd) == 1 and len(ranks) > 1 else None,
        what=f"{ranks_text(odd)} entered another call than {ranks_text(ranks)}",
        got="; ".join(f"{call} on {ranks_text(those)}" for call, those in ordered[1:]),
        want=f"{usual} on {ranks_text(ranks)}",
        why="their collectives would wait for each other for ever",
        fix="call the same step on every rank, in the same order",
    )


def lone_vote(client: Client, state: State) -> Fault | None:
    """Return the fault if others vote on a call that this rank has entered with a known variant.

    The rank that votes waits for all; this one may wait for it in a collective. Neither would end.
    """
    return next(filter(None, (_lone_in(client, state, s) for s in state.scopes.values())), None)


def _lone_in(client: Client, state: State, scope: Scope) -> Fault | None:
    ordinal = state.votes[scope.name] + 1
    topic = scope.key(f"vote/{ordinal}")
    notice = client.get(f"{topic}/notice")
    if notice is None:
        return None
    number, variant = state.entered.get(notice["step"], (0, ""))
    if number < notice["call"] or state.votes[scope.name] >= ordinal:
        return None
    client.add(f"{topic}/known/{state.rank}", 1)
    time.sleep(SETTLE * state.timing.beat)
    voters, known = _sides(client, scope, topic)
    fields = _fields(state, notice, variant)
    if len(known) < len(voters):
        mirrored = [(name, want, got) for name, got, want in fields]
        return _lone(notice, known, voters, mirrored, f"went on with {variant}")
    return _lone(notice, voters, known, fields, "met something new")


def _sides(client: Client, scope: Scope, topic: str) -> tuple[list[int], list[int]]:
    voters = [rank for rank in scope.ranks if client.has(f"{topic}/{rank}")]
    known = [rank for rank in scope.ranks if client.has(f"{topic}/known/{rank}")]
    return voters, known


def _fields(state: State, notice: dict[str, Any], variant: str) -> list[tuple[str, str, str]]:
    mine = state.contracts.get((notice["step"], variant))
    return [] if mine is None else differing(agreeing(notice["contract"], mine, None), mine)


def _lone(
    notice: dict[str, Any],
    odd: list[int],
    rest: list[int],
    fields: list[tuple[str, str, str]],
    meets: str,
) -> Fault:
    where = f"call {notice['call']} of {notice['step']}"
    rows = [OddField(name, ((got, ranks_text(odd)),), want) for name, got, want in fields]
    fault = odd_contract(where, odd, rows, ranks_text(rest))
    also = f": it alone {meets}" if len(odd) == 1 else f": they alone {meets}"
    return Fault(**{**fault.record(), "what": fault.what + also, "gone": ()})
