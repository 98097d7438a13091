"""What runs a rank's functional collectives while its step runs live."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from lockstep import _compat
from lockstep.capture.origin import META, user_line
from lockstep.checker.live.meeting import Start, start
from lockstep.errors import CaptureError
from lockstep.spmd import mesh as axes


class Kernels:
    """Starts collectives, and waits for their results, where they are computed.

    Args:
        mesh: the axes along which groups are known.
        say: is told each collective that starts, and its operand itself.
        result: gives the result of one, by its number; None if it is not known in this run.
        lacks: is told a tensor whose value is then not known.
    """

    def __init__(
        self,
        mesh: list[str],
        say: Callable[[Start, torch.Tensor], None],
        result: Callable[[int], torch.Tensor | None],
        lacks: Callable[[torch.Tensor], None] = lambda _: None,
    ) -> None:
        self._mesh, self._say, self._result, self._lacks = mesh, say, result, lacks
        self._number = 0
        self._open: list[tuple[int, torch.Tensor]] = []
        self.unknown: list[int] = []  # waited for, without a result

    def running(self) -> Any:
        """Run functional collectives by these while inside."""
        return _compat.collectives_run_by(
            {
                "all_reduce": lambda x, op, axis: self._start("all_reduce", axis, x, op),
                "all_reduce_": lambda x, op, axis: self._start("all_reduce", axis, x, op, out=x),
                "all_gather_into_tensor": self._all_gather,
                "reduce_scatter_tensor": self._reduce_scatter,
                "all_to_all_single": self._all_to_all,
                "broadcast": lambda x, src, axis: self._start("broadcast", axis, x, src),
                "wait_tensor": self._wait,
            }
        )

    def _all_gather(self, x: torch.Tensor, size: int, axis: str) -> torch.Tensor:
        out = x.new_empty([x.shape[0] * size, *x.shape[1:]])
        return self._start("all_gather_into_tensor", axis, x, size, out=out)

    def _reduce_scatter(self, x: torch.Tensor, op: str, size: int, axis: str) -> torch.Tensor:
        out = x.new_empty([x.shape[0] // size, *x.shape[1:]])
        return self._start("reduce_scatter_tensor", axis, x, op, size, out=out)

    def _all_to_all(
        self, x: torch.Tensor, comes: list[int], goes: list[int], axis: str
    ) -> torch.Tensor:
        out = x.new_empty([sum(comes), *x.shape[1:]])
        return self._start("all_to_all_single", axis, x, list(comes), list(goes), out=out)

    def _start(
        self, op: str, axis: str, x: torch.Tensor, *rest: Any, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        if axis not in self._mesh and axis != axes.WORLD:
            raise CaptureError(
                f"a collective on {axis}, which is no axis of the step's mesh",
                where=_line(),
                want=f"one of {', '.join(self._mesh)}",
            )
        self._number += 1
        self._say(start(self._number, op, axis, (x, *rest), _line()), x)
        made = torch.empty_like(x) if out is None else out
        self._open.append((self._number, made))
        return made

    def _wait(self, x: torch.Tensor) -> torch.Tensor:
        own = _compat.storage_identity(x)
        for at, (number, made) in enumerate(self._open):
            if _compat.storage_identity(made) == own:
                del self._open[at]
                result = self._result(number)
                if result is None:
                    self.unknown.append(number)
                    self._lacks(made.zero_())
                else:
                    made.copy_(result)
                break
        return x.view_as(x)


def _line() -> str:
    """The user's line of what runs now; in a backward, that of the forward it belongs to."""
    node = _compat.current_autograd_node()
    origin = node.metadata.get(META) if node is not None else None
    return origin.line if origin is not None else user_line()
