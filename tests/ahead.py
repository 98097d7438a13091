"""Show that what is built ahead of time is what real ranks build, at any size of the world.

    python -m tests.ahead

The example's step is built for 4 ranks that are not there. Then 4 real ranks make its graph and its
code each for itself, a job of 4 loads the artifact, and one builds its own. The same script is then
built for 64 ranks. Exits with 0 only where all of it holds; the figures stand last.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from lockstep.ahead.build import Ahead, Job, build
from lockstep.build.artifact import Artifact
from tests.ranks.launch import ROOT, Ended, Torchrun

SCRIPT = ROOT / "examples" / "train_llama.py"
ARGUMENTS = ("--steps", "4", "--batch", "2", "--length", "32")
RANKS, MANY = 4, 64
MOST = 1.2  # times the seconds and the memory of the small world
LIMIT_S = 1500.0


def built(world: int, root: Path) -> Ahead:
    """Build the example for a world, from empty caches."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(root / "inductor")
    job = Job(SCRIPT, ARGUMENTS, world, {}, store=str(root / "store"), limit_s=LIMIT_S)
    ahead = build(job)
    if ahead.code:
        raise SystemExit(f"the build for {world} ranks failed\n{ahead.failed or ahead.refused}")
    return ahead


def real(torchrun: Torchrun, what: str, folder: Path, store: Path, caches: Path) -> Ended:
    """Run the example on real ranks; see `tests.ranks.ahead_llama`."""
    env = {"LOCKSTEP_STORE": str(store), "TORCHINDUCTOR_CACHE_DIR": str(caches)}
    words = (what, str(SCRIPT), *ARGUMENTS)
    ended = torchrun.run(
        "tests.ranks.ahead_llama", *words, folder=folder, world=RANKS, limit=LIMIT_S, env=env
    )
    if ended.code:
        raise SystemExit(f"{what} on real ranks failed\n{ended.report()}")
    return ended


def other_code(data: bytes, ranks: list[dict[str, Any]]) -> list[str]:
    """In what the ranks' own graphs and code differ from an artifact's, in words."""
    artifact = Artifact.from_bytes(data)
    sources = {
        name.removeprefix("kernels/").removesuffix(".cpp"): blob.decode()
        for name, blob in artifact.blobs.items()
        if name.endswith(".cpp")
    }
    wanted = {
        "graph": artifact.manifest["compared"]["digest"],
        "text": artifact.blobs["program.py"].decode(),
        "sources": sources,
    }
    return [
        f"rank {rank} has another {what}"
        for rank, found in enumerate(ranks)
        for what, value in wanted.items()
        if found[what] != value
    ]


def other_losses(loaded: Ended, own: Ended) -> list[str]:
    """In what a job that loaded differs from one that built for itself, in words."""
    roles = sorted(event["role"] for event in loaded.of("ready"))
    found = [] if roles == ["loaded"] * RANKS else [f"roles of the loading job: {roles}"]
    if loaded.of("stage") or loaded.of("viewed"):
        found.append("a rank of the loading job traced")
    if loaded.results != own.results or len(loaded.results[0]) != 4:
        found.append(f"losses {loaded.results} after loading, {own.results} after building")
    return found


def larger(small: Ahead, large: Ahead) -> dict[str, float]:
    """How many times the seconds and the memory of the small world the large one took."""
    return {key: large.used[key] / small.used[key] for key in ("seconds", "peak_mb")}


def main() -> int:
    """Build, run, compare, print; 0 where all holds."""
    with tempfile.TemporaryDirectory(prefix="lockstep-ahead-") as name:
        root = Path(name)
        small = built(RANKS, root / "small")
        store, caches = root / "small" / "store", root / "small" / "inductor"
        with Torchrun() as torchrun:
            alone = real(torchrun, "code", root / "code", store, caches)  # made anew all the same
            loaded = real(torchrun, "losses", root / "loaded", store, caches)
            own = real(torchrun, "losses", root / "own", root / "empty", caches)
        large = built(MANY, root / "large")
    odd = other_code(small.built[0].data, alone.results) + other_losses(loaded, own)
    ratio = larger(small, large)
    found = odd + [f"{key}: {times:.2f} times" for key, times in ratio.items() if times > MOST]
    _show(small, large, ratio, found, "differ" if odd else "are those built ahead")
    return 1 if found else 0


def _show(
    small: Ahead, large: Ahead, ratio: dict[str, float], found: list[str], alike: str
) -> None:
    console = Console()
    table = Table("ranks", "traced", "seconds", "CPU seconds", "MB at most", title="Ahead of time")
    for world, ahead in ((RANKS, small), (MANY, large)):
        used = ahead.used
        cells = f"{used['seconds']:.1f}", f"{used['cpu_s']:.1f}", f"{used['peak_mb']:.0f}"
        table.add_row(str(world), str(used["ranks"]), *cells)
    console.print(table)
    for line in found:
        console.print(f"FAILS  {line}", markup=False, highlight=False)
    manifest = small.built[0].manifest
    console.print(
        f"{manifest['nodes']} nodes, {len(manifest['schedule'])} collectives: graph, code and "
        f"kernel sources of {RANKS} real ranks {alike}, "
        f"which load on all and train alike; {MANY} ranks in {ratio['seconds']:.2f} times the "
        f"time and {ratio['peak_mb']:.2f} times the memory, at most {MOST}"
    )


if __name__ == "__main__":
    sys.exit(main())
