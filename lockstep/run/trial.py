"""Before a program is built: its captured graph comes to all ranks, and is run beside the step.

One rank captures; the graph is shipped as it is, by the back end "graph", whatever the program is
then lowered by. It is kept in no store.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lockstep.build.artifact import Artifact
from lockstep.build.backends import lower
from lockstep.build.fingerprint import Fields, file_of
from lockstep.errors import LoweringError
from lockstep.fleet.nowhere import Nowhere
from lockstep.fleet.scope import Scope
from lockstep.fleet.store import ArtifactStore
from lockstep.run.loader import load_program
from lockstep.run.rehearsal import Rehearsal
from lockstep.run.session import Session
from lockstep.run.variant import Variant

if TYPE_CHECKING:
    from lockstep.run.admit import Build

NOBODY = "it was built where no rank could run the step"
ROLES = "ranks of other roles run other programs, and the step's collectives may wait for theirs"


@dataclass(frozen=True)
class Trial:
    """How the ranks come together for it.

    Args:
        topic: `step/variant`, as of the program itself.
        call: which call of the step it is.
        tools: what this rank would build with.
        scope: the ranks that share the program; None: all.
    """

    here: Session
    topic: str
    call: int
    tools: dict[str, Any]
    scope: Scope | None

    def rehearsal_of(
        self, build: Build, store: ArtifactStore, tell: Callable[[], None]
    ) -> Callable[[], None] | None:
        """What all ranks do before a program is built; None where it is not to be compared.

        Args:
            store: of the program.
            tell: called on the rank that captures, before it does.
        """
        if build.options.eager_check == "off":
            return None
        if build.options.roles:
            build.memo["eager"] = {"mode": "on", "result": "not run", "why": ROLES}
            return None
        return lambda: self._rehearse(build, store, tell)

    def _rehearse(self, build: Build, store: ArtifactStore, tell: Callable[[], None]) -> None:
        """Run both on all ranks, and note in the build what came of it.

        Raises:
            EagerMismatch: on every rank, they differ.
        """
        begin, topic = time.monotonic(), f"{self.topic} as captured"
        file = file_of(build.wanted)

        def captured(stage: Callable[[str], None]) -> bytes:
            tell()
            return graph_bytes(build, stage)

        obtained = self.here.fleet.obtain(
            topic,
            {"graph of": file},
            file,
            Nowhere(store, file),
            captured,
            call=self.call,
            second=build.second,
            toolchain=self.tools,
            scope=self.scope,
        )
        came = time.monotonic()
        found = self._found(build, obtained.data, topic.replace("/", " "))
        seconds = round(time.monotonic() - came, 3)
        build.memo["eager"] = {"mode": "on", **found, "seconds": seconds}
        self.here.journal.event("eager", step=build.step.name, topic=self.topic,
                                wait=round(came - begin, 4), **build.memo["eager"])  # fmt: skip
        speaks = (self.scope or self.here.fleet.everyone).ranks[0] == self.here.rank
        if speaks and found["result"] != "equal":
            self.here.say(f"{build.step.name} and its graph: {found['result']}: {found['why']}")

    def _found(self, build: Build, data: bytes, name: str) -> Fields:
        if data.startswith(b"{"):
            return {"result": "not run", **json.loads(data)}
        artifact = Artifact.from_bytes(data, name)
        build.memo["likeness"] = artifact.manifest.get("compared")
        graph = Variant(artifact, load_program(artifact), name)
        ranks = self.here, f"eager/{self.topic}", self.scope
        return Rehearsal(build.step, build.call, build.bound, graph, *ranks).run()


def graph_bytes(build: Build, stage: Callable[[str], None]) -> bytes:
    """The captured graph for all ranks, without its effects; JSON says why, where it is none.

    Raises:
        As `Build.run`.
    """
    made = build.made(stage)
    likeness = build.compared(made, stage)
    try:
        program = made.program = lower(made.graph, "graph")
    except LoweringError as error:
        if build.options.backend == "graph":
            raise
        return json.dumps({"why": f"the back end graph cannot hold it: {error.what}"}).encode()
    stage("ship the graph")
    return build.packed(made.graph, program, made.checked, likeness, {}, tells=False)
