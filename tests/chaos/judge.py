"""What must hold of a cell: no hang, no bad file, and everybody knows who it was."""

from __future__ import annotations

import math
import re

from tests.chaos.cells import Cell
from tests.chaos.launch import PROCESSES, Seen
from tests.chaos.strikes import INJECTED

_RANKS = re.compile(r"\branks? (\d+(?:(?:, | and )\d+)*)")
_STORE = re.compile(r"the rendezvous store at \S+:\d+ (?:is gone|has not answered)")
_OWN_WORDS = {"read-only store": "LS230", "caught and slept": "still running"}
ALL_TRAIN = (
    "all well", "half-warm store", "full store", "slow rank", "slow builder", "out of memory",
)  # fmt: skip


def faults(cell: Cell, seen: Seen) -> list[str]:
    """What does not hold, in words; an empty list where all does."""
    if seen.impossible:
        return []
    found = [] if seen.struck else ["it never came to the strike"]
    late = [p for p in PROCESSES if seen.ends.get(p, math.inf) > cell.limit_of(p)]
    if late:
        found.append(f"process {late} was still there {cell.limit_s():.0f} s after the strike")
    found += [f"bad file {name}: {wrong}" for name, wrong in seen.files.items() if wrong]
    for process in PROCESSES:
        if not _is_told(cell, seen, process):
            found.append(f"process {process} ended without the culprit's name")
    if cell.special in ALL_TRAIN and len(seen.trained) < 4:
        found.append(f"only {sorted(seen.trained)} trained")
    if cell.target == "two jobs" and not {2, 3} <= seen.trained:
        found.append("the other job did not train")
    return found + _special(cell, seen)


def _is_told(cell: Cell, seen: Seen, process: int) -> bool:
    """Whether it went on, was ended by its own agent, is the culprit itself, or names it."""
    if process in seen.trained or process in seen.by_agent or process not in seen.ends:
        return True
    text = seen.texts.get(process, "")
    if cell.target == "store":
        return _STORE.search(text) is not None
    culprit = cell.builder if cell.special == "read-only store" else cell.struck
    if process == culprit and cell.special != "hung compiler":
        own = _OWN_WORDS.get(cell.special, INJECTED)
        return cell.action in ("KILL", "STOP") or own in text
    return culprit in named(text)


def named(text: str) -> set[int]:
    """The ranks that the first error of ours in a text names.

    Example:
        >>> sorted(named("[lockstep rank 0] LS400: ranks 2, 3: no sign of life"))
        [2, 3]
        >>> named("nothing")
        set()
    """
    found = re.search(r"LS4\d\d: (.*)", text)
    lists = _RANKS.findall(found[1]) if found else []
    return {int(number) for numbers in lists for number in re.findall(r"\d+", numbers)}


def _special(cell: Cell, seen: Seen) -> list[str]:
    """What a special case is about."""
    told, events = "".join(seen.texts.values()), [row["event"] for row in seen.events]
    holds = {
        "all well": "LS4" not in told and len(seen.files) == 1,
        "half-warm store": "built" not in events and len(seen.files) == 2,
        "read-only store": "the store cannot keep" in told and not seen.files,
        "full store": "could not keep" in told and not seen.files and not seen.left,
        "slow rank": "s for rank 3 to call train_step" in told,
        "slow builder": "takeover" not in events and "rank 0 to build train_step" in told,
        "hung compiler": "rank 0 to build train_step (attempt 1, lower)" in told,
        "out of memory": "cannot build here, another rank may: MemoryError" in told,
        "caught and slept": "still running" in seen.texts.get(2, ""),
    }
    return [] if holds.get(cell.special, True) else [f"not so: {cell.special}"]


def outcome(seen: Seen) -> str:
    """A cell's outcome in a few letters, for the table.

    t: all trained on; e: ended, all told; a: an agent ended its ranks; b: another rank took the
    build over; then the seconds from the strike to the end of the last process.
    """
    if seen.impossible:
        return "n/a"
    letters = "t" if len(seen.trained) == 4 else "e"
    letters += "a" if seen.by_agent else ""
    letters += "b" if any(row["event"] == "takeover" for row in seen.events) else ""
    return f"{letters} {max(seen.ends.values(), default=0.0):.1f}"
