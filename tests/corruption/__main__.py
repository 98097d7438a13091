"""Show that no changed artifact runs: thousands of mutations, each refused in words.

    python -m tests.corruption

Real artifacts of both back ends, unsigned and signed, are flipped, cut, spliced, swapped, forged;
their streams are cut, or inflate to gigabytes; of half of them all digests are computed again. A
job that trusts one key is offered those of signed files. Exits with 0 only where every one is
refused in words, in time and in a bounded memory, and where no canary in a program, in its byte
code or in a pickle has run; of the files as they were built, it runs.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from lockstep.build.keys import generate
from lockstep.build.signature import sealer
from tests.corruption.bombs import bombs
from tests.corruption.bundled import bundled, unlike_byte_code
from tests.corruption.deflated import streams
from tests.corruption.files import Real, real_files, sung
from tests.corruption.forged import Seal, forged_form, forged_signed
from tests.corruption.judge import Judge, Mutation, Outcome, faults, growth
from tests.corruption.torn import torn

LEAST, SLOWEST_S, GREATEST = 2000, 10.0, 1 << 30
SEED = 20261129


def seal_of(folder: Path, name: str) -> tuple[Seal, Path]:
    """What signs with a new key, and the file of its public key."""
    public, _ = generate(folder / name)
    os.environ["LOCKSTEP_SIGN"] = str(folder / name)
    try:
        return sealer(), public
    finally:
        del os.environ["LOCKSTEP_SIGN"]


def mutations(
    files: list[Real], scale: int, draw: random.Random, trusted: Seal, stranger: Seal
) -> Iterator[Mutation]:
    """Yield all kinds.

    Args:
        scale: how many of a kind, roughly.
    """
    yield from torn(files, 2 * scale, draw)
    yield from forged_signed(files, scale, draw, stranger)
    yield from forged_form(files, scale, draw)
    yield from bombs(files, 2 * scale, draw)
    yield from streams(files, scale, draw)
    yield from bundled(files, max(1, scale // 4), draw, trusted)
    yield from unlike_byte_code(files, max(1, scale // 8), draw)


def table_of(outcomes: list[Outcome]) -> Table:
    """Counts by kind: how many, how many refused, and the codes of the refusals."""
    table = Table("what was done", "digests", "made", "refused", "as")
    kinds = sorted({(one.mutation.rehashed, one.mutation.kind) for one in outcomes})
    for rehashed, kind in kinds:
        rows = [o for o in outcomes if (o.mutation.rehashed, o.mutation.kind) == (rehashed, kind)]
        codes = Counter(row.told[:5] for row in rows if row.became == "refused")
        told = ", ".join(f"{code} {count}" for code, count in sorted(codes.items()))
        agree = "agree" if rehashed else "old"
        table.add_row(kind, agree, str(len(rows)), str(sum(codes.values())), told)
    return table


def main(backends: tuple[str, ...] = ("graph", "inductor"), scale: int = 64) -> int:
    """Make and judge all mutations; print the table and the figures."""
    draw = random.Random(SEED)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (trusted, public), (stranger, _) = seal_of(folder, "one"), seal_of(folder, "stranger")
        files = real_files(backends, folder, trusted)
        judge = Judge(folder, public)
        sound = [judge.judge(Mutation("none", r.data, r.wanted, True, r.signed)) for r in files]
        at_first = sung()
        with growth() as grown:
            made = mutations(files, scale, draw, trusted, stranger)
            outcomes = [judge.judge(one) for one in made]
        runs = sung() - at_first
    Console(width=140).print(table_of(outcomes))
    wrong = faults(outcomes, SLOWEST_S)
    print("\n".join(wrong[:40]))
    broken = [one.told for one in sound if one.became != "accepted"]
    print(
        f"of {len(files)} files as built, {len(sound) - len(broken)} run; canary: {at_first} times"
    )
    print("\n".join(broken))
    return _figures(outcomes, wrong, runs, grown[0], at_first == len(files) and not broken)


def _figures(outcomes: list[Outcome], wrong: list[str], runs: int, grown: int, live: bool) -> int:
    agree = sum(one.mutation.rehashed for one in outcomes)
    became = Counter(one.became for one in outcomes)
    enough = len(outcomes) >= LEAST and 2 * agree >= len(outcomes)
    slowest = max(one.seconds for one in outcomes)
    refused = became.pop("refused", 0)
    rest = "".join(f", {count} {what}" for what, count in sorted(became.items()))
    print(
        f"{len(outcomes)} mutations, {agree} with digests that agree: {refused} refused in words"
        f"{rest or ', 0 otherwise'}; canary: {runs} runs; slowest {slowest:.2f} s; "
        f"memory +{grown / 1e6:.0f} MB"
    )
    held = not wrong and enough and live and runs == 0 and grown < GREATEST
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
