"""What a check of a script says: as text, as one JSON object, or as GitHub's annotations."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from lockstep.checker.finding import Finding
from lockstep.checker.source import full_path
from lockstep.report.check_world import Judged, JudgedStep


def as_text(judged: Judged) -> str:
    """A block for each step, notes, and a last line that counts."""
    parts = []
    for step in judged.steps:
        head = f"{step.step}:\n" if len(judged.steps) > 1 else ""
        parts.append(head + (step.refused or str(step.report)))
    parts += [f"{name} was not called, and is not checked" for name in judged.not_called]
    if judged.failed:
        parts.append(f"the script failed later:\n{judged.failed}")
    return "\n".join([*parts, verdict(judged)])


def verdict(judged: Judged) -> str:
    """One line: what every step came to."""
    found = sum(len(step.report.findings) for step in judged.steps)
    refused = [step.step for step in judged.steps if step.refused]
    right = [step.step for step in judged.steps if step.ok]
    words = [f"{', '.join(right)}: nothing found"] if right else []
    words += [f"{found} finding{'s' if found > 1 else ''}"] if found else []
    words += [f"{', '.join(refused)}: not captured"] if refused else []
    return "; ".join(words)


def as_json(judged: Judged) -> str:
    """One object: `ok`, the steps with all fields of their reports, and what was not called."""
    steps = [
        {"step": step.step, "refused": step.refused or None, **step.report.to_json()}
        for step in judged.steps
    ]
    for row, step in zip(steps, judged.steps, strict=True):
        row["ok"] = step.ok
    rest = {"not_called": judged.not_called, "failed": judged.failed or None}
    return json.dumps({"ok": judged.ok, "steps": steps, **rest}, indent=1)


def as_annotations(judged: Judged) -> str:
    """Workflow commands that GitHub shows beside the lines of a pull request, then the verdict."""
    return "\n".join([*_annotations(judged), verdict(judged)])


def _annotations(judged: Judged) -> Iterator[str]:
    for step in judged.steps:
        for finding in step.report.findings:
            yield annotation(finding)
        if step.refused:
            yield f"::error title={_property(_code(step))}::{_data(step.refused)}"
        for line in step.report.undecided:
            yield f"::notice title=lockstep::{_data(f'undecided: {line}')}"


def annotation(finding: Finding) -> str:
    """One finding as a workflow command."""
    file, _, number = finding.line.rpartition(":")
    where = f"file={_property(_from_here(file))},line={number}," if file else ""
    text = str(finding).partition(": ")[2]
    return f"::error {where}title={finding.code}::{_data(text)}"


def _code(step: JudgedStep) -> str:
    return step.refused.partition(":")[0]


def _from_here(file: str) -> str:
    """A file's path from the working directory, as a repository has it."""
    path = Path(full_path(file)).absolute()
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
