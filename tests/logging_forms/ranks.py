"""The script of one rank: each kept form eagerly and compiled, and what this rank told each time.

Under `graph` each form is a step of its own, and tells what eager tells, to the character. Under
`inductor` all forms are one step, whose numbers are its own.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import lockstep as ls
from tests.logging_forms.kept import FORMS, OURS
from tests.logging_forms.outlets import Outlets, seen
from tests.ranks.launch import Here

STEPS = 4
NUMBER = re.compile(r"-?\d+\.?\d*(?:e[+-]?\d+)?")

here = Here()
mesh = ls.mesh("cpu", dp=-1, tp=2)


def compiled(form: Callable[..., Any], backend: str) -> Callable[..., Any]:
    return ls.compile(mesh=mesh, backend=backend, check="off")(form)


def together(x: Tensor, mesh: Any, out: Outlets) -> list[Tensor]:
    return [form(x.clone(), mesh, out) for form in [*OURS, *FORMS]]


def told(step: Callable[..., Any]) -> list[tuple[list[Any], Any]]:
    """What a step tells at each call, and what it returns."""
    found, out = [], Outlets()
    for i in range(STEPS):
        out.verbose = i % 2 == 0
        draw = torch.Generator().manual_seed(100 * i + here.rank)
        with seen() as words:
            result = step(torch.rand(2, 3, generator=draw), mesh, out)
        found.append((words, result))
    return found


def exactly(form: Callable[..., Any]) -> str:
    """Compare a form with eager, to the character."""
    eager, ours = told(form), told(compiled(form, "graph"))
    for i, ((want, value), (got, its)) in enumerate(zip(eager, ours, strict=True)):
        if want != got:
            return f"call {i}: {got} instead of {want}"
        if not torch.equal(value, its):
            return f"call {i}: {its} instead of {value}"
    return "equal" if any(words[:2] != ["", ""] or words[2] for words, _ in eager) else "silent"


def alike(backend: str) -> str:
    """Compare all forms as one step: the same words in the same order, and its own numbers."""
    eager = told(together)
    ours = told(compiled(together, backend))
    for i, ((want, _), (got, results)) in enumerate(zip(eager, ours, strict=True)):
        if not _alike(want, got):
            return f"call {i}: {got} instead of {want}"
        own = f"or {results[len(OURS)].item()!r}\n"
        if here.rank == 0 and own not in got[0]:
            return f"call {i}: {own} is not in {got[0]}"
    return "equal"


def _alike(want: Any, got: Any) -> bool:
    if isinstance(want, str):
        numbers = [list(map(float, NUMBER.findall(text))) for text in (want, got)]
        if NUMBER.sub("#", want) != NUMBER.sub("#", got) or len(numbers[0]) != len(numbers[1]):
            return False
        return all(map(_close, *numbers))
    if isinstance(want, list):
        return len(want) == len(got) and all(map(_alike, want, got))
    if isinstance(want, dict):
        return want.keys() == got.keys() and all(_alike(want[k], got[k]) for k in want)
    return _close(want, got) if isinstance(want, float) else bool(want == got)


def _close(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=1e-4, abs_tol=2e-4)


def main(backends: list[str], names: list[str]) -> None:
    found: dict[str, str] = {}
    if "graph" in backends:
        for form in [*OURS, *FORMS]:
            if not names or form.__name__ in names:
                found[form.__name__] = exactly(form)
    for backend in ("graph", "inductor"):
        if f"{backend}:all" in backends:
            found[f"all, by {backend}"] = alike(backend)
    here.result(found)


if __name__ == "__main__":
    main(sys.argv[1].split(","), sys.argv[2:])
    dist.destroy_process_group()
