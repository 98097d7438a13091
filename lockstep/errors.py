"""One family of errors. Every message says what, where, got, wanted, why, and what to do.

The family is a RuntimeError: Python swallows a TypeError raised inside an operator, and a message
that vanishes helps nobody.
"""

from __future__ import annotations

from collections.abc import Sequence


class LockstepError(RuntimeError):
    """The base of everything Lockstep raises on purpose.

    Args:
        what: one line, the finding itself.
        where: the user's `file:line`, object or path it is about.
        got: what was found.
        want: what was needed instead.
        why: why it matters, in one sentence.
        fix: what to write or run; several are listed, the best first.

    Example:
        >>> print(LockstepError("odd batch", got="f32[3]", want="f32[4]", fix="pad it"))
        LS000: odd batch
          got  f32[3]
          want f32[4]
          fix  pad it
    """

    code = "LS000"

    def __init__(
        self,
        what: str,
        *,
        where: str | None = None,
        got: str | None = None,
        want: str | None = None,
        why: str | None = None,
        fix: str | Sequence[str] | None = None,
    ) -> None:
        self.what, self.where, self.got, self.want, self.why = what, where, got, want, why
        self.fixes = [fix] if isinstance(fix, str) else list(fix or [])
        super().__init__(self._text())

    def _text(self) -> str:
        rows = [("at", self.where), ("got", self.got), ("want", self.want), ("why", self.why)]
        rows += [("fix" if i == 0 else "or", fix) for i, fix in enumerate(self.fixes)]
        body = [f"  {name:<4} {_indented(text)}" for name, text in rows if text]
        return "\n".join([f"{self.code}: {self.what}", *body])


def _indented(text: str) -> str:
    return text.replace("\n", "\n       ")


class UsageError(LockstepError):
    """A public function was called with arguments that cannot be meant."""

    code = "LS001"


class CaptureError(LockstepError):
    """A step holds something that one graph for all ranks cannot hold."""

    code = "LS100"


class UnreducedError(CaptureError):
    """A step ends with gradients that a wrapper of its model has not reduced."""

    code = "LS514"


class LoweringError(LockstepError):
    """A back end cannot hold this graph, and says which can."""

    code = "LS200"


class ToolchainError(LoweringError):
    """The building machine lacks what a back end needs, such as a compiler; another may have it."""

    code = "LS201"


class ArtifactError(LockstepError):
    """An artifact is damaged, foreign, or not the one this job wants."""

    code = "LS210"


class SignatureError(ArtifactError):
    """An artifact is not signed by whom this job trusts, or a key cannot be used."""

    code = "LS211"


class AlarmError(LockstepError):
    """Something traced, compiled or started a process where only loading was allowed."""

    code = "LS220"


class StoreError(LockstepError):
    """An artifact store cannot be used as asked."""

    code = "LS230"


class ContractError(LockstepError):
    """A call does not fit the compiled step's contract."""

    code = "LS300"


class ReplicaError(ContractError):
    """Parameters that are said to be equal on all ranks are not, at the first call."""

    code = "LS310"


class FleetError(LockstepError):
    """A rank failed, or the ranks do not agree; the message names the rank."""

    code = "LS400"


class StepMismatch(FleetError):
    """Ranks entered different calls of a guarded step; nothing of the call has run."""

    code = "LS410"


class EagerMismatch(FleetError):
    """A captured graph does not do what its step does eagerly; no artifact of it is made."""

    code = "LS420"


class CheckError(LockstepError):
    """The check of a step that was to be built found a fault in its gradients."""

    code = "LS500"


def first_line(error: BaseException) -> str:
    """The first line of what an error says; of one without words, its kind.

    Example:
        >>> first_line(KeyError()), first_line(ValueError("odd\\nbatch"))
        ('KeyError', 'odd')
    """
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
