"""What became of each change: did it miss, and does the graph change?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from lockstep.build.fingerprint import differences
from tests.staleness.environment import Change
from tests.staleness.judge import Program, Seen, see
from tests.staleness.kinds import Ran, Row, kind_of
from tests.staleness.mutate import Mutant, mutants
from tests.staleness.unchanged import rewritings

MUST_HIT = "it must hit"


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


def compare(
    change: str, kind: str, base: Seen, now: Seen, why: Callable[[list[Row]], str]
) -> Outcome:
    """Hold a change's fingerprint and graph against those of the program as it was."""
    rows = differences(base.fields, now.fields)
    fields = tuple(name for name, _, _ in rows)
    if base.graph != now.graph:
        return Outcome(change, kind, "missed" if fields else "wrongly hit", fields)
    if fields:
        return Outcome(change, kind, "missed in vain", fields, why(rows))
    return Outcome(change, kind, "hit")


def base_of(program: Program) -> tuple[Seen, Ran]:
    """A program as it is, and the lines that run while its step is captured."""
    ran, sources = Ran(), program.sources()
    with ran.present():
        see(program, {m: ran.marked(m, text) for m, text in sources.items()}, during=ran.watching())
    return see(program, sources), ran


def judge_mutants(
    program: Program, only: Callable[[Mutant], bool], most: int = 0
) -> Iterable[Outcome]:
    """Each mutant of a program's modules that `only` lets through; `most` of them, 0 for all."""
    sources = program.sources()
    base, ran = base_of(program)
    made = [m for module, text in sources.items() for m in mutants(module, text) if only(m)]
    for mutant in made[: most or None]:
        yield _one(program, base, ran, mutant, sources)


def judge_changes(program: Program, changes: Iterable[Change]) -> Iterable[Outcome]:
    """Each change of what is around a program; one that must hit and misses is "other"."""
    sources = program.sources()
    base = see(program, sources)
    for change in changes:
        why = MUST_HIT if change.same else "kernels may compute otherwise"
        kind = "same" if change.same else "environment"
        try:
            with change.around():
                now = see(program, sources, change.inside, change.rank, change.mesh)
        except Exception as error:
            yield Outcome(change.name, kind, "failed", why=f"{type(error).__name__}: {error}")
            continue
        yield compare(change.name, kind, base, now, lambda rows, why=why: why)  # type: ignore[misc]


def judge_rewritings(program: Program) -> Iterable[Outcome]:
    """Each other text for the same program, which must hit."""
    sources = program.sources()
    base = see(program, sources)
    for module, text in sources.items():
        for what, other in rewritings(text):
            now = see(program, {**sources, module: other})
            yield compare(f"{module}.py: {what}", "same", base, now, lambda rows: MUST_HIT)


def _one(
    program: Program, base: Seen, ran: Ran, mutant: Mutant, sources: dict[str, str]
) -> Outcome:
    change = f"{mutant.module}.py:{mutant.line} {mutant.where or 'module'}: {mutant.told}"
    try:
        now = see(program, {**sources, mutant.module: mutant.text})
    except Exception as error:  # the program, or the capture that refuses it
        return Outcome(change, mutant.kind, "failed", why=type(error).__name__)
    text = sources[mutant.module]
    return compare(change, mutant.kind, base, now, lambda rows: kind_of(mutant, ran, text, rows))


def told(rows: Iterable[Outcome]) -> str:
    """Counts in words.

    Example:
        >>> told([Outcome("a", "literal", "missed"), Outcome("b", "default", "hit")])
        '1 missed, 1 hit'
    """
    found = Counter(row.became for row in rows)
    return ", ".join(f"{count} {became}" for became, count in found.most_common())
