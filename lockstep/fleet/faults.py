"""What went wrong on a rank: a record in the store, an error on the others."""

from __future__ import annotations

import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lockstep.errors import EagerMismatch, FleetError, LockstepError, StepMismatch

TRACE_LIMIT = 64 << 10  # characters; the store's values end at 8 MiB
_CONSEQUENCES = (
    "connection closed by peer",
    "connection reset",
    "connection refused",
    "connection was aborted",
    "broken pipe",
    "socket closed",
    "remote process exited",
    "timed out",
    "nccl error",
    "unhandled system error",
    "communicator was aborted",
)


_ERRORS: dict[str, type[FleetError]] = {"mismatch": StepMismatch, "eager": EagerMismatch}


@dataclass(frozen=True)
class Fault:
    """The first thing that went wrong; all ranks tell the same one.

    Args:
        kind: "error" (an exception), "silent", "odd" (ranks disagree), "mismatch" (they entered
            different calls), "eager" (a graph is not its step), "ended", "timeout", "store" or
            "watcher".
        rank: the culprit; None where it is not one rank.
        what: one line.
        got, want, why, fix: as in `LockstepError`.
        trace: the culprit's traceback.
        gone: ranks that cannot read this any more.
        where: as in `LockstepError`; each rank may add it, from the path.
        path: of what the ranks differ in, as a JSON value.
    """

    kind: str
    rank: int | None
    what: str
    got: str | None = None
    want: str | None = None
    why: str | None = None
    fix: str | None = None
    trace: str = ""
    gone: tuple[int, ...] = ()
    where: str | None = None
    path: tuple[Any, ...] = ()

    @classmethod
    def of(cls, error: BaseException, rank: int, doing: str) -> Fault:
        """Return the fault of an exception that left `doing` on `rank`."""
        name, text = type(error).__name__, str(error)
        first, _, rest = text.partition("\n")
        return cls(
            kind="error",
            rank=rank,
            what=f"rank {rank} failed while {doing}: {name}: {first}",
            got=text if rest else None,
            trace=_shortened(_traceback(error)),
        )

    @classmethod
    def read(cls, record: dict[str, Any]) -> Fault:
        """Return the fault that was posted as `record`."""
        tuples = {name: tuple(record.get(name, ())) for name in ("gone", "path")}
        return cls(**{**record, **tuples})

    def record(self) -> dict[str, Any]:
        """Return what is posted to the store."""
        return asdict(self)

    def error(self) -> FleetError:
        """Return the error that other ranks raise; `is_told` knows it again."""
        rows = {name: getattr(self, name) for name in ("where", "got", "want", "why", "fix")}
        error = _ERRORS.get(self.kind, FleetError)(self.what, **rows)
        error.fault = self  # type: ignore[attr-defined]
        return error

    def report(self) -> str:
        """Return what another rank prints: the error and, indented, the culprit's traceback."""
        text = str(self.error())
        if self.trace:
            rows = "\n".join(f"    {line}" for line in self.trace.rstrip().splitlines())
            text += f"\n  traceback of rank {self.rank}:\n{rows}"
        return text


def is_told(error: BaseException | None) -> bool:
    """Return whether an error was made from a fault that all ranks know of."""
    return isinstance(error, FleetError) and hasattr(error, "fault")


def is_consequence(error: BaseException) -> bool:
    """Return whether an error only says that a peer or the store went away."""
    if isinstance(error, LockstepError) or not isinstance(error, (RuntimeError, OSError)):
        return False
    text = str(error).lower()
    return any(sign in text for sign in _CONSEQUENCES)


def _traceback(error: BaseException) -> str:
    """Return an error's traceback without this folder's own frames at its start."""
    own, trace = str(Path(__file__).parent), error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(own):
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace or error.__traceback__))


def _shortened(text: str) -> str:
    if len(text) <= TRACE_LIMIT:
        return text
    half = TRACE_LIMIT // 2
    return f"{text[:half]}\n... {len(text) - TRACE_LIMIT} characters left out ...\n{text[-half:]}"
