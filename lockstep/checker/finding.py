"""What a check says: findings in one text form, and what was established or left undecided."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lockstep.checker.repair.edits import Edit

MOST_LINES = 8  # of what is undecided that a text shows


@dataclass(frozen=True)
class Finding:
    """One fault, as one text.

    Args:
        code: "LS5xx", the kind; each has a page in the docs.
        what: one line, the finding itself.
        line: the user's "file:number"; "" where none is known.
        source: that line's source, stripped.
        axis: the mesh axis it is about; None for all.
        got, want: the types or values found and needed.
        why: why it matters, in one sentence.
        fix: a line to paste, in the user's own names.
        fix_line: the "file:number" that it replaces, where that is not `line`.
        verified: the fix was applied in the simulated world and all witnesses came out silent.
        witness: who says so: "order", "randomness", "gold", "twin", "after" or "types".
        related: other lines that take part, each "file:number".
        live: it was found in a step that ran live, op by op, as no capture can hold it.

    Example:
        >>> print(Finding("LS520", "a gradient is partial", line="a.py:3", axis="tp"))
        LS520: a gradient is partial
          at   a.py:3  axis tp
    """

    code: str
    what: str
    line: str = ""
    source: str = ""
    axis: str | None = None
    got: str = ""
    want: str = ""
    why: str = ""
    fix: str | None = None
    verified: bool = False
    witness: str = ""
    related: tuple[str, ...] = ()
    fix_line: str = ""
    live: bool = False

    def __str__(self) -> str:
        at = "  ".join(part for part in (self.line, self.source) if part)
        if self.axis is not None:
            at += f"  axis {self.axis}"
        at += "  (live)" if self.live else ""
        rows = [("at", at.strip()), ("got", self.got), ("want", self.want), ("why", self.why)]
        rows.append(("fix", self._fix_text()))
        rows += [("see" if i == 0 else "", line) for i, line in enumerate(self.related)]
        body = [f"  {name:<4} {_indented(text)}" for name, text in rows if text]
        return "\n".join([f"{self.code}: {self.what}", *body])

    def _fix_text(self) -> str:
        if not self.fix:
            return ""
        notes = [f"for {self.fix_line}"] if self.fix_line else []
        notes += ["verified"] if self.verified else []
        return f"{self.fix}   ({', '.join(notes)})" if notes else self.fix


@dataclass
class Report:
    """All that one check found out.

    Args:
        findings: faults, the most telling first; empty where the step is right.
        established: what holds, and under what: size, point, control path, declarations.
        undecided: what must be known and is not, each with the line that would declare it.
        unknown_ops: operators that the types have no rule for, with how often they occur.
        untyped: nodes of whose type nothing is known, by operator; of those without a rule too.
        nodes: how many values the types were asked about.
        seconds: time spent, by part of the check.
        tried: fixes that were tried out.
        live: why the step was checked live, op by op, in place of a capture; "" where it was not.
    """

    findings: list[Finding] = field(default_factory=list)
    established: list[str] = field(default_factory=list)
    undecided: list[str] = field(default_factory=list)
    unknown_ops: Counter[str] = field(default_factory=Counter)
    untyped: Counter[str] = field(default_factory=Counter)
    nodes: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    tried: int = 0
    live: str = ""

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Add the seconds spent inside to those of a part of the check."""
        start = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - start
            self.seconds[part] = round(self.seconds.get(part, 0.0) + spent, 4)

    def __str__(self) -> str:
        found = len(self.findings)
        parts = [str(finding) for finding in self.findings]
        if found:
            parts.append(f"{found} finding{'s' if found > 1 else ''}{self._tried_text()}")
        if self.live:
            parts.append(f"checked live, op by op, as it cannot be captured: {self.live}")
        parts += [_listed("established", self.established)]
        parts += [_listed("undecided", _shortened(self.undecided))]
        if self.unknown_ops:
            named = [f"{op} ({count})" for op, count in self.unknown_ops.most_common(8)]
            parts.append(_listed("no type rule for", named))
        return "\n".join(part for part in parts if part)

    def __repr__(self) -> str:
        """The text, as `assert report.ok, report` shows it."""
        return str(self) or "nothing found, nothing established"

    def _tried_text(self) -> str:
        if not self.tried:
            return ""
        right = sum(finding.verified for finding in self.findings)
        return f"; {self.tried} fix{'es' if self.tried > 1 else ''} tried out, {right} verified"

    def patch(self, folder: str | Path = ".") -> str:
        """Return the verified fixes as a unified diff, as `git apply` and `patch -p1` take it.

        Args:
            folder: where it is to be applied; a file outside of it is left out.

        Returns:
            The diff; "" where no fix was verified.
        """
        from lockstep.checker.repair.patch import patch_of

        return patch_of(self.edits(), Path(folder)).text

    def edits(self) -> list[Edit]:
        """The verified fixes, each with the line that it replaces."""
        from lockstep.checker.repair.edits import Edit

        return [Edit(f.fix_line or f.line, f.fix or "") for f in self.findings if f.verified]

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {
            "ok": self.ok,
            "findings": [asdict(finding) for finding in self.findings],
            "established": self.established,
            "undecided": self.undecided,
            "unknown_ops": dict(self.unknown_ops),
            "untyped": dict(self.untyped),
            "nodes": self.nodes,
            "seconds": self.seconds,
            "tried": self.tried,
            "live": self.live or None,
        }


def _shortened(lines: list[str]) -> list[str]:
    """The first lines; a model of a thousand parameters would bury the rest of a report."""
    left = len(lines) - MOST_LINES
    return lines if left <= 1 else [*lines[:MOST_LINES], f"and {left} more; the JSON has them all"]


def _listed(title: str, lines: list[str]) -> str:
    return "\n".join([f"{title}:", *(f"  {line}" for line in lines)]) if lines else ""


def _indented(text: str) -> str:
    return text.replace("\n", "\n       ")
