"""The guard of a step, where it is asked for: all ranks enter one and the same call, or none does.

Before a call runs, the ranks compare a number that stands for it: one small all-reduce, in a group
of its own, so that nothing else is ever paired with it. Only where the numbers differ do they tell
each other which call it is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lockstep.fleet.judge import judge_tags
from lockstep.fleet.scope import Scope
from lockstep.run.together import Together

if TYPE_CHECKING:
    from lockstep.fleet.fleet import Fleet

Number = Callable[[], int | str]


class CallGuard:
    """Compares the calls that ranks of a mesh enter; all guarded steps of these ranks share one.

    Args:
        mesh: None: all ranks.
        scope: the mesh's ranks; None: all.
        timeout_s: how long to wait for the others.
    """

    def __init__(self, mesh: Any, scope: Scope | None, timeout_s: float) -> None:
        self._together, self._scope, self._checks = Together(mesh, timeout_s), scope, 0

    def enter(self, fleet: Fleet, call: str) -> None:
        """Return where all ranks enter the same call, told in words.

        Raises:
            StepMismatch: on every rank; names the odd ranks and their calls.
        """
        self._checks += 1
        if not self._together.same(number_of(call)):
            topic, value = f"guard/{self._checks}", {"call": call}
            fleet.agree(topic, value, judge_tags, "compare its call", scope=self._scope)


def number_of(call: str) -> int:
    """A number of 56 bits for a call.

    Example:
        >>> number_of("call 2 of step (v0)") == number_of("call 3 of step (v0)")
        False
    """
    return int.from_bytes(hashlib.blake2b(call.encode(), digest_size=7).digest(), "big")


def name_of_call(step: str, variant: str, number: int, own: Number | None) -> str:
    """What stands for a call.

    Args:
        step: its name; "" where ranks in other roles have other steps.
        number: which call of the step.
        own: gives the number that the training loop has for it.

    Example:
        >>> name_of_call("step", "v0", 3, None), name_of_call("step", "v0", 3, lambda: 17)
        ('call 3 of step (v0)', 'call 3 of step (v0), at 17')
    """
    told = f"call {number}" + (f" of {step} ({variant})" if step else "")
    return told if own is None else f"{told}, at {own()}"


_guards: dict[tuple[int, ...] | None, CallGuard] = {}


def guard_of(mesh: Any, world: int, timeout_s: float) -> CallGuard:
    """The guard of a mesh's ranks; made at the first use.

    Args:
        world: the number of all ranks.
    """
    ranks = None if mesh is None else tuple(sorted(mesh.mesh.flatten().tolist()))
    if ranks is not None and len(ranks) == world:
        ranks = None
    if ranks not in _guards:
        scope = None if ranks is None else Scope(f"ranks {ranks[0]} on", ranks)
        _guards[ranks] = CallGuard(mesh, scope, timeout_s)
    return _guards[ranks]
