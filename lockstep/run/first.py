"""The first calls of a step whose model DDP wraps: they run as they are, until it has its buckets.

DDP puts its gradients into buckets by the order in which the first backward gave them. A program
holds the buckets, so it is built once they are final; all ranks come to that at the same call.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from lockstep import _compat_ddp
from lockstep.capture.binding import Call
from lockstep.capture.hooks import swapped
from lockstep.run.key import Bound
from lockstep.run.replicas import Replicas
from lockstep.run.session import Session

MOST = 3  # runs that reduce and leave them open: two make them under static_graph=True


class FirstCalls:
    """Which calls of a step run as they are.

    Args:
        name: of the step.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._runs: dict[Any, int] = {}  # by what a call asks for
        self.replicas: Replicas | None = None  # as the parameters were before the first of them

    def wait(self, call: Call, bound: Bound) -> bool:
        """Whether this call runs as it is, since a wrapper of its state has not its last buckets.

        A call that reduces nothing needs none: it runs so once.
        """
        open_ = [one for one in bound.state.wrappers if not one.final]
        if not any(one.switches[0] for one in open_):
            return False
        return self._runs.get(bound.asked(call), 0) < MOST

    def run(
        self,
        here: Session,
        step: Callable[[], Any],
        call: Call,
        bound: Bound,
        replicas: Callable[[Bound], Replicas | None],
    ) -> Any:
        """Run a call as it is. Collective, as the step itself.

        Args:
            replicas: what the parameters are: ranks that are not reduced drift apart from here on.
        """
        if not self._runs:
            found = replicas(bound)
            self.replicas = found.taken() if found is not None else None
        begin, key, reduced = time.monotonic(), bound.asked(call), []
        _, last = _compat_ddp.around_forward()

        def after(original: Any, args: Any, kwargs: Any) -> Any:
            if torch.is_grad_enabled() and args[0].require_backward_grad_sync:
                reduced.append(args[0])
            return original(*args, **kwargs)

        if not self._runs and here.rank == 0:
            names = ", ".join(one.name for one in bound.state.wrappers if one.kind == "DDP")
            here.say(
                f"{self._name} runs as it is until DDP has the last buckets of {names}, "
                "which its first backward decides; then it is captured"
            )
        with here.fleet.guard(f"running {self._name} as it is"), swapped({last: after}):
            result = step()
        for wrapper in bound.state.wrappers:
            wrapper.settle()
        self._runs[key] = self._runs.get(key, 0) + 1 if reduced else MOST
        here.journal.event("as_it_is", step=self._name, seconds=round(time.monotonic() - begin, 4))
        return result
