"""From an unknown call to a loaded program: build the bytes, verify them, load them, and say so."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from lockstep.build.artifact import Artifact, pack
from lockstep.build.backends import lower
from lockstep.build.fingerprint import Fields, differences
from lockstep.capture.binding import Call, Step
from lockstep.capture.capture import capture_call
from lockstep.errors import ArtifactError
from lockstep.fleet.obtain import Obtained
from lockstep.run.key import Bound
from lockstep.run.loader import load_program
from lockstep.run.session import Session
from lockstep.run.variant import Variant


def build(
    step: Step,
    call: Call,
    bound: Bound,
    wanted: Fields,
    backend: str,
    here: Session,
    stage: Callable[[str], None],
) -> bytes:
    """Capture a call, lower its graph and pack the artifact; on the building rank alone.

    Args:
        wanted: the fingerprint, kept in the manifest.
        stage: told what is being done, for those who wait.

    Raises:
        CaptureError: the step can't be captured.
        LoweringError: the back end can't hold its graph.
    """
    stage("capture")
    begin = time.monotonic()
    graph = capture_call(step, call, bound.state)
    captured = time.monotonic()
    stage("lower")
    program = lower(graph, backend)
    lowered = time.monotonic()
    stage("pack")
    seconds = {"capture": round(captured - begin, 3), "lower": round(lowered - captured, 3)}
    manifest = {
        "step": step.name,
        "fingerprint": wanted,
        "contract": graph.contract(),
        "schedule": graph.schedule,
        "nodes": len(graph.gm.graph.nodes),
        "built": {
            "time": round(time.time()),
            "rank": here.rank,
            "world": here.world,
            "seconds": seconds,
        },
    }
    source_map = json.dumps(graph.source_map(), indent=0).encode()
    return pack(manifest, program, {"source_map.json": source_map}).to_bytes()


def verify(data: bytes, wanted: Fields, where: str) -> None:
    """Refuse bytes that are damaged, or that hold another program than the wanted one.

    Raises:
        ArtifactError: names the damage, or every field that differs, both sides.
    """
    artifact = Artifact.from_bytes(data, where)
    rows = differences(wanted, artifact.manifest.get("fingerprint", {}))
    if rows:
        shown = [f"{name}: {short(got)}" for name, _, got in rows[:8]]
        raise ArtifactError(
            f"the artifact is not the one this job wants: {len(rows)} field(s) differ",
            where=where,
            got="\n".join(shown),
            want="\n".join(f"{name}: {short(want)}" for name, want, _ in rows[:8]),
            fix="delete it, or unset LOCKSTEP_STORE, and the next start builds the right one",
        )


def load(obtained: Obtained, step: str, variant: str, here: Session) -> Variant:
    """Load the program, write who built and who loaded it into the journal; rank 0 prints it.

    Args:
        step, variant: their names, as in the topic that the ranks met under.
    """
    begin = time.monotonic()
    artifact = Artifact.from_bytes(obtained.data, obtained.path or step)
    loaded = Variant(artifact, load_program(artifact), variant)
    seconds = {**obtained.seconds, "load": time.monotonic() - begin}
    manifest = artifact.manifest
    here.journal.event(
        "ready",
        role=obtained.role,
        step=step,
        variant=variant,
        path=obtained.path,
        digest=obtained.digest,
        by=obtained.by,
        backend=manifest["backend"],
        bytes=len(obtained.data),
        nodes=manifest["nodes"],
        built=manifest["built"],
        mesh=_mesh_sizes(manifest["fingerprint"]),
        seconds={k: round(v, 4) for k, v in seconds.items()},
    )
    if here.rank == 0:
        here.say(
            _told(f"{step} {variant}", obtained, manifest["built"], seconds["load"], here.world)
        )
    return loaded


def short(value: Any) -> str:
    """A value in at most 100 characters."""
    text = str(value)
    return text if len(text) <= 100 else text[:97] + "..."


def _mesh_sizes(wanted: Fields) -> dict[str, int]:
    return {k.removeprefix("mesh "): v for k, v in wanted.items() if k.startswith("mesh ")}


def _told(what: str, obtained: Obtained, built: Fields, load: float, world: int) -> str:
    """The one line at start: loaded or built, by whom, how old, in what time, what it saved."""
    cost = sum(built["seconds"].values())
    where = f" -> {obtained.path}" if obtained.path else " (kept in no store)"
    head = f"{what} [{obtained.digest[:12]}]"
    if obtained.role == "built" or obtained.by is not None:
        saved = f"; {world - 1} x {cost:.1f} s saved" if world > 1 else ""
        return (
            f"{head}: built by rank {obtained.by} in {cost:.1f} s, loaded by {world} rank(s) in "
            f"{load:.2f} s{saved}{where}"
        )
    age = _age(time.time() - built["time"])
    return (
        f"{head}: loaded by {world} rank(s) in {load:.2f} s, built {age} ago by rank "
        f"{built['rank']} of {built['world']} in {cost:.1f} s; {world} x {cost:.1f} s saved{where}"
    )


def _age(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
