"""Show that rank-only logging in a step is kept as eager does it, or refused at its line.

    python -m tests.logging_forms

Each kept form runs on 2 and 4 real ranks, built and then loaded: under `graph` every rank tells
what it tells eagerly, to the character and at each call; under `inductor` the same words with its
own numbers. Prints a table and the figures; exits with 0 only where all of it holds.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.logging_forms import kept
from tests.logging_forms.judge import Launch, launch, refusals
from tests.ranks.launch import Torchrun

WORLDS = (2, 4)
WHAT = "graph,inductor:all"
MOST, LEAST_KEPT = 30, 20


def main() -> int:
    """Judge every form; print the table and the counts."""
    rows, launches = refusals(), _launches()
    table = Table("form", "became", *[f"{when}, {n} ranks" for n, when in launches], "told")
    for form in [*kept.OURS, *kept.FORMS]:
        cells = [made.found.get(form.__name__, "-") for made in launches.values()]
        became = "kept" if set(cells) == {"equal"} else "not kept"
        odd = next((cell for cell in cells if cell != "equal"), "")
        table.add_row(form.__name__, became, *[cell[:12] for cell in cells], odd[:80])
    table.add_row("all as one, inductor", "", *[_inductor(made)[:12] for made in launches.values()])
    for row in rows:
        told = row.told.partition("LS100: ")[2].splitlines()[0] if row.told else ""
        table.add_row(row.name, row.became, *[""] * len(launches), told[:80])
    Console(width=200).print(table)
    wrong = [f"{row.name}: {row.became} {row.told}" for row in rows if row.became != "refused"]
    wrong += [text for where, made in launches.items() for text in _wrong(where, made)]
    print("\n".join(wrong), end="\n" if wrong else "")
    counts = Counter(row.became for row in rows)
    unmodified = len(kept.FORMS) + len(rows)
    enough = unmodified >= MOST and len(kept.FORMS) >= LEAST_KEPT
    told = ", ".join(f"{count} {became}" for became, count in sorted(counts.items()))
    print(
        f"{unmodified} unmodified forms: {len(kept.FORMS)} kept, {told}; {len(kept.OURS)} of "
        f"ls.log and ls.on_rank; on 2 and 4 ranks, by both back ends, built and loaded: "
        f"{'all right' if not wrong else f'{len(wrong)} wrong'}"
    )
    return 1 if wrong or not enough else 0


def _launches() -> dict[tuple[int, str], Launch]:
    """Run all kept forms on each world, from an empty store and from what that left."""
    found = {}
    with tempfile.TemporaryDirectory() as folder, Torchrun() as torchrun:
        for world in WORLDS:
            store = Path(folder) / f"store{world}"
            for when in ("built", "loaded"):
                place = Path(folder) / f"{when}{world}"
                found[world, when] = launch(torchrun, place, world, store, WHAT)
    return found


def _inductor(made: Launch) -> str:
    return made.found.get("all, by inductor", "-")


def _wrong(where: tuple[int, str], made: Launch) -> list[str]:
    world, when = where
    odd = [f"{where}: {name}: {told}" for name, told in made.found.items() if told != "equal"]
    first = "built" if when == "built" else "loaded"
    if made.roles != {tuple(sorted([first, *["loaded"] * (world - 1)]))}:
        odd.append(f"{where}: came as {made.roles}")
    if not made.digests:
        odd.append(f"{where}: the ranks' programs differ")
    return odd


if __name__ == "__main__":
    sys.exit(main())
