"""What becomes of each form: kept on real ranks, built and loaded; or refused at its line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lockstep.capture.capture import capture
from lockstep.checker.world import simulated_rank
from lockstep.errors import LockstepError
from tests.logging_forms import refused
from tests.logging_forms.outlets import Outlets
from tests.rank_reads.judge import marked
from tests.ranks.launch import Ended, Torchrun

SCRIPT = "tests.logging_forms.ranks"
MESH = {"dp": 2, "tp": 2}


@dataclass(frozen=True)
class Row:
    """One form and what became of it; "baked" where nothing refused what none may keep."""

    name: str
    became: str
    told: str = ""


def refusal(form: Any, text: str) -> Row:
    """Capture a form that must be refused, with a text, at its marked line."""
    with simulated_rank(0, MESH) as mesh:
        out = Outlets()
        try:
            graph = capture(form, torch.rand(2, 3), mesh, out)
        except LockstepError as error:
            told = str(error)
            right = text in told and f"at   {marked(form)}\n" in told
            return Row(form.__name__, "refused" if right else "refused otherwise", told)
    return Row(form.__name__, "baked", str([emit.asdict() for emit in graph.emits]))


def refusals() -> list[Row]:
    """Every form that no program keeps."""
    return [refusal(form, text) for form, text in refused.FORMS]


@dataclass(frozen=True)
class Launch:
    """What one job on real ranks came to: by form "equal", or what differs on which rank.

    `roles`: of each step's ranks, sorted: one built and the others loaded, or all loaded.
    """

    found: dict[str, str]
    roles: set[tuple[str, ...]]
    digests: bool


def launch(
    torchrun: Torchrun, folder: Path, world: int, store: Path, what: str, *names: str
) -> Launch:
    """Run forms on real ranks.

    Args:
        what: "graph" for each form by itself, "graph:all" and "inductor:all" for all as one step.
        names: the forms; none: all of them.

    Raises:
        SystemExit: the job failed; with all that was printed.
    """
    # A builder on a machine that is busy with other things beats late, and is no dead one.
    env = {"LOCKSTEP_STORE": str(store), "LOCKSTEP_TIMING": "beat=0.2,lease=300,dead=600,ack=60"}
    ended = torchrun.run(SCRIPT, what, *names, folder=folder, world=world, limit=1800, env=env)
    if ended.code:
        raise SystemExit(ended.report())
    found = {}
    for name in ended.results[0]:
        odd = {rank: found[name] for rank, found in enumerate(ended.results) if _odd(found[name])}
        spoke = any(found[name] == "equal" for found in ended.results)
        found[name] = str(odd) if odd else "equal" if spoke else "silent"
    return Launch(found, *_made(ended))


def _odd(told: str) -> bool:
    return told not in ("equal", "silent")


def _made(ended: Ended) -> tuple[set[tuple[str, ...]], bool]:
    """How each variant came to the ranks, and whether all have the same bytes of it."""
    roles: dict[Any, list[str]] = {}
    digests: dict[Any, set[str]] = {}
    for event in ended.of("ready"):
        key = event["step"], event["variant"]
        roles.setdefault(key, []).append(event["role"])
        digests.setdefault(key, set()).add(event["digest"])
    return {tuple(sorted(r)) for r in roles.values()}, all(len(d) == 1 for d in digests.values())
