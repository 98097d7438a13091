"""What became of each change: did it miss, and does the graph change?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from lockstep.build.fingerprint import differences
from tests.staleness.judge import Program, Seen, see
from tests.staleness.kinds import Ran, kind_of
from tests.staleness.mutate import Mutant, mutants


@dataclass(frozen=True)
class Outcome:
    """One change.

    `became` is "missed" (another fingerprint, another graph), "hit" (both the same), "wrongly hit"
    (the graph changed and the fingerprint did not), "missed in vain", or "failed": it does not run.
    """

    change: str
    kind: str
    became: str
    fields: tuple[str, ...] = ()
    why: str = ""


def compare(change: str, kind: str, base: Seen, now: Seen, why: Callable[[], str]) -> Outcome:
    """Hold a change's fingerprint and graph against those of the program as it was."""
    fields = tuple(name for name, _, _ in differences(base.fields, now.fields))
    if base.graph != now.graph:
        return Outcome(change, kind, "missed" if fields else "wrongly hit", fields)
    if fields:
        return Outcome(change, kind, "missed in vain", fields, why())
    return Outcome(change, kind, "hit")


def base_of(program: Program) -> tuple[Seen, Ran]:
    """A program as it is, twice: told alike each time, and with the lines that run."""
    ran = Ran(frozenset(program.modules))
    with ran.watching():
        base = see(program, program.sources())
    again = see(program, program.sources())
    assert again == base, differences(base.fields, again.fields)
    return base, ran


def judge_mutants(program: Program, only: Callable[[Mutant], bool]) -> Iterable[Outcome]:
    """Each mutant of a program's modules that `only` lets through."""
    sources = program.sources()
    base, ran = base_of(program)
    for module, text in sources.items():
        for mutant in filter(only, mutants(module, text)):
            yield _one(program, base, ran, mutant, sources)


def _one(
    program: Program, base: Seen, ran: Ran, mutant: Mutant, sources: dict[str, str]
) -> Outcome:
    change = f"{mutant.module}.py:{mutant.line} {mutant.where or 'module'}: {mutant.told}"
    try:
        now = see(program, {**sources, mutant.module: mutant.text})
    except Exception as error:  # the program, or the capture that refuses it
        return Outcome(change, mutant.kind, "failed", why=type(error).__name__)
    text = sources[mutant.module]
    return compare(change, mutant.kind, base, now, lambda: kind_of(mutant, ran, text))


def told(rows: Iterable[Outcome]) -> str:
    """Counts in words.

    Example:
        >>> told([Outcome("a", "literal", "missed"), Outcome("b", "default", "hit")])
        '1 missed, 1 hit'
    """
    found = Counter(row.became for row in rows)
    return ", ".join(f"{count} {became}" for became, count in found.most_common())
