"""What became of one program, judged from what its ranks left behind; runs nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

ESTABLISHED, REFUSED, FAILED = "established", "refused", "FAILED"
PARTS = ("captured", "portable", "checked", "built", "loaded", "bitwise")
MOST_OFF = 0.05  # of a call together, where rounding may differ: bfloat16 has 3 digits
WRONG = "LS500"  # what a right program must not be told


@dataclass(frozen=True)
class Refusal:
    """What a rank was told in place of a program."""

    code: str
    what: str
    where: str = ""
    fixes: tuple[str, ...] = ()

    @property
    def missing(self) -> str:
        """What a stranger would lack to act on it; "" where nothing."""
        if self.code == WRONG:
            return "a right program is told that its gradients are wrong"
        if not self.where:
            return "the refusal names no line"
        return "" if self.fixes else "the refusal does not say what to do"


@dataclass(frozen=True)
class Row:
    """One program and what was established of it.

    Args:
        parts: of PARTS, whether it was; none of a refused one.
        told: why it failed, or what else is to be known.
        unequal: eager itself gives other numbers at a second run, so that no program can be equal.
        rounded: its graph has other bits than eager, which rounding explains; the manifest says so.
    """

    name: str
    package: str
    status: str
    parts: Mapping[str, bool] = field(default_factory=dict)
    refusal: Refusal | None = None
    told: str = ""
    unequal: bool = False
    rounded: bool = False
    noted: bool = False
    seconds: float = 0.0


@dataclass(frozen=True)
class Start:
    """One start of a program under torchrun.

    Args:
        code: the job's exit code.
        results: by rank what it left: {"refused": ...} or {"calls": [...]}, None for nothing.
        roles, digests: by rank, of the program it ran, out of the journals.
        likeness: the certificate in the artifact that two ranks captured one graph.
        eager: what the artifact says of its graph beside the step.
        text: what was printed, for what failed.
    """

    code: int
    results: Sequence[Any]
    roles: Sequence[str] = ()
    digests: Sequence[str] = ()
    likeness: Mapping[str, Any] | None = None
    eager: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""

    @property
    def refusals(self) -> list[Refusal]:
        """What the ranks were told, in their order."""
        found = [result["refused"] for result in self.results if result and "refused" in result]
        return [Refusal(**{**one, "fixes": tuple(one["fixes"])}) for one in found]

    def calls(self, key: str) -> bool:
        """Whether something holds of every call on every rank; there has to be one."""
        calls = [call for result in self.results for call in (result or {}).get("calls", [None])]
        return bool(calls) and all(call is not None and call[key] for call in calls)

    @property
    def farthest(self) -> float:
        """How far the values of a call are off together, at most."""
        return max((c["off"] for r in self.results for c in (r or {}).get("calls", [])), default=0)


@dataclass(frozen=True)
class Check:
    """What a check of a program found, and what it left open."""

    findings: tuple[str, ...] = ()
    undecided: tuple[str, ...] = ()

    @property
    def silent(self) -> bool:
        """Whether nothing was found, and nothing left open."""
        return not self.findings and not self.undecided


def judge(row: Row, first: Start, second: Start, check: Check | None) -> Row:
    """The row of a program.

    Args:
        row: its name and package.
        first: from an empty store.
        second: the same again; of a refused one its eager run, with LOCKSTEP=off.
        check: None where it was refused.
    """
    if first.refusals:
        return _refused(row, first, second)
    parts = {
        "captured": bool(first.results) and all("calls" in (r or {}) for r in first.results),
        "portable": _portable(first),
        "checked": check is not None and check.silent,
        "built": sorted(first.roles)[:1] == ["built"] and first.roles.count("built") == 1,
        "loaded": bool(second.roles) and set(second.roles) == {"loaded"} and _same(first, second),
        "bitwise": all(start.calls("equal") for start in (first, second)),
    }
    unequal = all(start.calls("repeats") for start in (first, second)) is False
    noisy = unequal and first.calls("close") and second.calls("close")
    near = first.farthest <= MOST_OFF and second.farthest <= MOST_OFF
    rounded = first.eager.get("result") == "rounding" and not parts["bitwise"] and near
    excused = noisy or rounded
    lacking = [name for name in PARTS if not parts[name] and not (name == "bitwise" and excused)]
    seconds = sum(
        (start.results[0] or {}).get("seconds", 0.0) for start in (first, second) if start.results
    )
    unequal = noisy and not parts["bitwise"]
    row = replace(row, parts=parts, seconds=seconds, unequal=unequal, rounded=rounded)
    if lacking:
        return replace(row, status=FAILED, told=_why(lacking, first, second, check))
    told = "eager differs from eager by as much" if row.unequal else ""
    told = f"as eager but for rounding: {first.eager['why']}" if row.rounded else told
    return replace(row, status=ESTABLISHED, told=told)


def _portable(first: Start) -> bool:
    """One digest on all ranks, and a certificate that two of them captured the same graph."""
    compared = (first.likeness or {}).get("ranks", [])
    return len(set(first.digests)) == 1 and len(compared) == 2


def _same(first: Start, second: Start) -> bool:
    return len(set(first.digests)) == 1 and set(first.digests) == set(second.digests)


def _refused(row: Row, first: Start, eager: Start) -> Row:
    named = [refusal for refusal in first.refusals if not refusal.missing]
    refusal = (named or first.refusals)[0]
    why = refusal.missing
    if len(first.refusals) != len(first.results):
        why = why or "not every rank was told"
    if not why and (eager.code or not eager.calls("equal")):
        why = f"it does not run eagerly either:\n{eager.text}"
    return replace(row, status=FAILED if why else REFUSED, refusal=refusal, told=why)


def _why(lacking: list[str], first: Start, second: Start, check: Check | None) -> str:
    words = [f"not {', '.join(lacking)}"]
    if "captured" in lacking:
        words.append(first.text)
    elif "loaded" in lacking:
        words.append(second.text)
    if "checked" in lacking and check is not None:
        words += [*check.findings, *check.undecided]
    for start in (first, second):
        told = [call["told"] for r in start.results for call in (r or {}).get("calls", [])]
        words += [line for line in dict.fromkeys(told) if line and "bitwise" in lacking]
    return "\n".join(words)


LEAST, PACKAGES = 20, 6


def holds(rows: Sequence[Row], least: int = LEAST, packages: int = PACKAGES) -> bool:
    """Whether enough programs were each established or refused, and none is anything else."""
    enough = len(rows) >= least and len({row.package for row in rows}) >= packages
    return enough and all(row.status in (ESTABLISHED, REFUSED) for row in rows)


def figures(rows: Sequence[Row]) -> list[str]:
    """The closing lines; the last one is the figure."""
    noted = [row for row in rows if row.noted]
    bitwise = sum(row.parts.get("bitwise", False) for row in noted)
    refused = sum(row.status == REFUSED for row in noted)
    count = {status: sum(row.status == status for row in rows) for status in _ALL}
    unequal, rounded = sum(row.unequal for row in rows), sum(row.rounded for row in rows)
    beside = [f"{unequal} where eager differs from itself"] if unequal else []
    beside += [f"{rounded} but for rounding, as the manifest says"] if rounded else []
    told = f" ({', '.join(beside)})" if beside else ""
    return [
        f"named in the notes as bitwise: {bitwise} of {len(noted)}, refused by name: {refused}",
        f"{len(rows)} programs of {len({row.package for row in rows})} packages: "
        f"{count[ESTABLISHED]} established{told}, "
        f"{count[REFUSED]} refused with their line, {count[FAILED]} failed",
    ]


_ALL = (ESTABLISHED, REFUSED, FAILED)
