"""The portable ways, and a vocabulary in parts, on four real ranks: each against eager there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.ranks.launch import Ended, Torchrun

SCRIPT = "tests.rank_reads.ranks"


def run_on_real_ranks(folder: Path) -> dict[str, str]:
    """Return by way "equal", or on which ranks it is not, or what ended the job."""
    with Torchrun() as torchrun:
        ended = torchrun.run(SCRIPT, folder=folder, world=4, limit=400)
    return _judged(ended)


def _judged(ended: Ended) -> dict[str, str]:
    if ended.code:
        raise SystemExit(ended.report())
    found: dict[str, str] = {}
    for name in ended.results[0]["equal"]:
        odd = [rank for rank, result in enumerate(ended.results) if not result["equal"][name]]
        found[name] = f"not equal on ranks {odd}" if odd else "equal"
    for kind, step in {"Vocab": "vocabulary", "EarlyVocab": "vocabulary#2"}.items():
        digests: list[Any] = [event["digest"] for event in ended.of("ready", step=step)]
        one = len(set(digests)) == 1 and len(digests) == 4
        found[kind] += f", {'one artifact' if one else digests}"
    return found
