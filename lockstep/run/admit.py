"""From an unknown call to a loaded program: build the bytes, verify them, load them, and say so."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from lockstep.build import shape
from lockstep.build.artifact import check_step, pack
from lockstep.build.backends import lower
from lockstep.build.fingerprint import Fields
from lockstep.build.graph_table import BLOB, packed_table, table_of
from lockstep.build.likeness import compared, digest_of, failed, packed, rows_of
from lockstep.build.program import Program
from lockstep.build.signature import sealer
from lockstep.capture.binding import Call, Step
from lockstep.capture.capture import capture_call
from lockstep.capture.checking import Checking
from lockstep.capture.early import Early
from lockstep.capture.graph import StepGraph
from lockstep.capture.ranges import Size
from lockstep.capture.sent import messages_of
from lockstep.capture.trees import tree_of
from lockstep.errors import ArtifactError
from lockstep.fleet.obtain import Obtained
from lockstep.fleet.scope import Scope
from lockstep.fleet.second import Second
from lockstep.fleet.store import ArtifactStore
from lockstep.run import traced
from lockstep.run.dynamic import Guards
from lockstep.run.hit import artifact_of
from lockstep.run.key import Bound
from lockstep.run.loader import load_program
from lockstep.run.options import Options
from lockstep.run.passing import Passed, passed
from lockstep.run.replicas import Replicas
from lockstep.run.session import Here, Session
from lockstep.run.trial import NOBODY
from lockstep.run.variant import Variant


@dataclass
class Made:
    """A call's graph, captured and checked: what is then lowered.

    Args:
        rows: of the graph, for another rank's to be compared with; none in a world of one.
        checked: what the check established.
        seconds: by part of the build, so far.
        checking: the notes of the capture; None where nothing is checked.
        program: of the back end "graph", where it was lowered by that already.
    """

    graph: StepGraph
    rows: list[Any]
    checked: Fields
    seconds: dict[str, float]
    checking: Checking | None = None
    program: Program | None = None


@dataclass(frozen=True)
class Build:
    """Makes a call's artifact, on the building rank alone.

    Args:
        wanted: the fingerprint, kept in the manifest.
        replicas: what is known of the parameters of other ranks.

    `memo` is what a rehearsal of its graph on all ranks leaves for the build, on each of them:
    "eager", what stands in the manifest under that, and "likeness", as `packed` has it.
    """

    step: Step
    call: Call
    bound: Bound
    wanted: Fields
    options: Options
    here: Here
    replicas: Replicas | None = None
    sizes: tuple[Size, ...] = ()  # what may differ from call to call
    early: tuple[Early, ...] = ()  # ints of each rank that the wanted fingerprint has formulas for
    store: ArtifactStore | None = None  # whose artifacts may have parts of the program compiled
    memo: dict[str, Any] = field(default_factory=dict, init=False, repr=False)

    def run(self, stage: Callable[[str], None]) -> bytes:
        """Capture the call, check what it captured, lower the graph and pack the artifact.

        Args:
            stage: told what is being done, for those who wait.

        Raises:
            CaptureError: the step can't be captured.
            CheckError: the check finds a fault in its gradients.
            LoweringError: the back end can't hold its graph.
            SignatureError: the key to sign with can't be used; ToolchainError: there is none.
        """
        made = self.made(stage)
        with _timed(made.seconds, "lower"):
            stage("lower")
            backend = self.options.backend
            after = passed(self, made.graph, made.checking)
            tried = made.program if backend == "graph" and after.graph is made.graph else None
            program = tried or self.lowered(after.graph)
        likeness = self.compared(made, stage)
        stage("pack")
        return self.packed(made.graph, program, made.checked, likeness, made.seconds, after)

    def made(self, stage: Callable[[str], None]) -> Made:
        """The call's graph, captured and checked once on this rank; raises as `run`."""
        if "made" not in self.memo:
            seconds: dict[str, float] = {}
            sealer()  # a key to sign with that is missing is told before the build, not after it
            checking = noting(self.options)
            with _timed(seconds, "capture"):
                stage("capture")
                graph = self.captured(checking)
            rows = rows_of(graph) if self.here.world > 1 else []
            with _timed(seconds, "check"):
                stage("check")
                with graph.symbols.undecided() if graph.symbols else contextlib.nullcontext():
                    checked = self.checked(checking)
            self.memo["made"] = Made(graph, rows, checked, seconds, checking)
        made: Made = self.memo["made"]
        return made

    def lowered(self, graph: StepGraph) -> Program:
        """The program of a graph; what the store's artifacts have of it is not compiled again."""
        if self.store is None or self.options.backend == "graph":
            return lower(graph, self.options.backend)
        from lockstep.run.earlier import Earlier  # for a rank that builds

        earlier = Earlier(self.store, self.wanted)
        program = lower(graph, self.options.backend, earlier)
        if earlier.taken:
            parts = f"{earlier.taken} of {len(program.parts)} parts"
            self.here.say(f"{self.step.name}: {parts} were compiled before, and are taken")
        return program

    def compared(self, made: Made, stage: Callable[[str], None]) -> Fields | None:
        """The certificate that another rank captures the same; None where there is none."""
        if "likeness" not in self.memo:
            with _timed(made.seconds, "compare"):
                stage("compare")
                other = self.second.other()
                found = compared(self.here.rank, made.rows, other) if other is not None else None
            self.memo["likeness"] = found
        likeness: Fields | None = self.memo["likeness"]
        return likeness

    def packed(
        self,
        graph: StepGraph,
        program: Program,
        checked: Fields,
        likeness: Fields | None,
        seconds: dict[str, float],
        after: Passed | None = None,
        tells: bool = True,
    ) -> bytes:
        """The artifact's bytes.

        Args:
            checked: what the check established.
            likeness: the certificate that other ranks capture the same; None in a world of one.
            seconds: by part of the build.
            after: what passes made of the graph; None: the program is of the graph itself.
            tells: whether the program has the step's effects, and the file what people look at.
        """
        here, checked = self.here, dict(checked)
        types = checked.pop("types", {}), checked.pop("cotangents", {})
        sent = messages_of(graph.gm)
        manifest = {
            "step": self.step.name,
            "fingerprint": self.wanted,
            "contract": graph.contract() | ({} if tells else {"emits": []}),
            "schedule": (after.graph if after else graph).schedule,
            **({"passes": after.told} if after and after.told else {}),
            **({"messages": sent} if sent else {}),
            "nodes": len(graph.gm.graph.nodes),
            "check": checked,
            "eager": self.eager,
            "graph": graph.digest,
            **({"compared": likeness} if likeness is not None else {}),
            **({"early": sorted({str(one) for one in self.early})} if self.early else {}),
            "built": {
                "time": round(time.time()),
                "rank": here.rank,
                "world": here.world,
                "seconds": seconds,
            },
        }
        if not tells:
            return pack(manifest, program).to_bytes()
        extra = {BLOB: packed_table(graph.table, *types)}
        return pack(manifest, program, extra).to_bytes()

    @property
    def eager(self) -> Fields:
        """What stands in the manifest of how the graph was compared with the step itself."""
        if self.options.eager_check == "off":
            return {"mode": "off"}
        found: Fields = self.memo.get("eager", {"mode": "on", "result": "not run", "why": NOBODY})
        return found

    @functools.cached_property
    def second(self) -> Second:
        """The way by which another rank's capture comes to the one that builds."""
        return Second(self._view)

    def _view(self) -> Fields:
        """Capture the call on a rank that does not build, for the builder to compare."""
        rank = self.here.rank
        try:
            return packed(rank, rows_of(self.captured(None)))
        except Exception as error:  # the builder's own, if it meets it too, ends the job
            return failed(rank, error)

    def captured(self, checking: Checking | None) -> StepGraph:
        """The call's graph, as every rank captures it."""
        state = self.bound.state
        graph = capture_call(self.step, self.call, state, checking, self.sizes, self.early)
        rows = rows_of(graph)
        graph.digest, graph.table = digest_of(rows), table_of(graph.gm.graph.nodes, rows)
        return graph

    def checked(self, checking: Checking | None) -> Fields:
        """What the check says of a captured call, as it stands in the manifest.

        Raises:
            CheckError: it finds a fault.
        """
        if checking is None:
            return {"mode": "off"}
        if all(size == 1 for size in self.options.sizes.values()):
            said = "nothing: no axis of the mesh has a second rank"
            intended = checking.notes.reasons()
            return {"mode": self.options.check, "established": [said], "intended": intended}
        from lockstep.run.judged import judged  # the checker: not for a rank that only loads

        apart = self.replicas.apart() if self.replicas is not None else {}
        call = (self.step, self.call, self.bound, self.options)
        return judged(checking, *call, apart, self.here, self.early)


def noting(options: Options) -> Checking | None:
    """What takes notes for a check while a program is captured; None where none is made."""
    return Checking(ships=True) if options.check != "off" else None


def tell_unchecked(name: str, options: Options, here: Session) -> None:
    """Say, once at start and on rank 0, what of a step is not checked as it asks for."""
    if options.check == "off" and here.rank == 0:
        here.say(f"check='off': the gradients of {name} are not checked")


@contextlib.contextmanager
def _timed(seconds: dict[str, float], part: str) -> Iterator[None]:
    begin = time.monotonic()
    yield
    seconds[part] = round(time.monotonic() - begin, 3)


def load(
    obtained: Obtained, step: str, variant: str, here: Session, scope: Scope | None = None
) -> Variant:
    """Load the program, write who built and who loaded it into the journal; one rank prints it.

    Args:
        step, variant: their names, as in the topic that the ranks met under.
        scope: the ranks that share the program; None: all.
    """
    begin = time.monotonic()
    where = obtained.path or step
    artifact = artifact_of(obtained.data, where)
    check_step(artifact.manifest, where, shape.ADMITTED)
    _check_contract(artifact.manifest["contract"], where)
    program = traced.told(load_program(artifact), f"{step} {variant}")
    loaded = Variant(artifact, program, variant)
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
        **({"program_of": scope.name} if scope else {}),
        seconds={k: round(v, 4) for k, v in seconds.items()},
    )
    ranks, role = (scope.ranks, f" {scope.name}") if scope else (range(here.world), "")
    if here.rank == ranks[0]:
        here.journal.event("program", step=step, variant=variant, **noted(manifest))
        what = f"{step} {variant}{role}"
        here.say(_told(what, obtained, manifest["built"], seconds["load"], len(ranks)))
    return loaded


def _check_contract(contract: Fields, where: str) -> None:
    """Read what a variant will read, before anything of the program runs.

    Raises:
        ArtifactError: LS210, a tree or a guard that can't be read.
    """
    try:
        tree_of(contract["out_spec"])
        Guards(contract)
    except Exception as error:
        raise ArtifactError(
            "the artifact's contract can't be read",
            where=where,
            got=f"{type(error).__name__}: {error}",
            fix="delete it, and the next start builds it again",
        ) from error


def short(value: Any) -> str:
    """A value in at most 100 characters."""
    text = str(value)
    return text if len(text) <= 100 else text[:97] + "..."


def noted(manifest: Fields) -> Fields:
    """What the journal keeps of a program, once for all ranks."""
    fields = manifest["fingerprint"].items()
    versions = {k.removeprefix("version "): v for k, v in fields if k.startswith("version ")}
    kept = ("schedule", "check", "requires")
    return {"versions": versions, **{key: manifest[key] for key in kept if key in manifest}}


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
