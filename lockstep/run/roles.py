"""Declared roles: along an axis such as the stages of a pipeline, ranks run other programs.

Ranks that are equal on all declared axes share one program: they vote, build and load together.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from lockstep.build.fingerprint import Fields
from lockstep.fleet.fleet import Fleet
from lockstep.fleet.judge import Posted, judge_contracts
from lockstep.fleet.scope import Scope
from lockstep.run.stages import Roles

# What the programs of all roles have in common, by how the fields of a fingerprint begin.
_COMMON = ("version ", "flag ", "machine", "mesh ", "order of axes", "backend", "build ")
_numbers = itertools.count(1)


def scope_of(mesh: Any, roles: tuple[str, ...]) -> Scope:
    """The ranks of this rank's role.

    Args:
        mesh: a DeviceMesh that this rank is in.
        roles: the declared axes.
    """
    at = dict(zip(mesh.mesh_dim_names, mesh.get_coordinate(), strict=True))
    chosen = tuple(at[axis] if axis in roles else slice(None) for axis in at)
    ranks = mesh.mesh[chosen].flatten().tolist()
    return Scope(name_of({axis: at[axis] for axis in roles}), tuple(sorted(ranks)))


def name_of(place: Mapping[str, int]) -> str:
    """What a role is called, from its coordinates along the declared axes.

    Example:
        >>> name_of({"pp": 1})
        'pp=1'
    """
    return ",".join(f"{axis}={at}" for axis, at in place.items())


class Meeting:
    """All ranks of all roles, before and after they get the first programs of a step.

    They agree on what their programs have in common, and none starts to run while another role
    still builds: it would wait in a collective, where nobody can tell for what.

    Args:
        limit_s: how long one role may take.
    """

    def __init__(self, fleet: Fleet, roles: tuple[str, ...], limit_s: float) -> None:
        self._fleet, self._limit_s = fleet, limit_s
        self._topic = f"roles/{next(_numbers)}"
        self._roles, self._axes = roles, ", ".join(roles)

    def begin(self, wanted: Fields, toolchain: Fields) -> None:
        """Agree on versions, flags and the mesh.

        Raises:
            FleetError: names the odd ranks and fields.
        """
        common = {name: value for name, value in wanted.items() if name.startswith(_COMMON)}
        step = f"a step with roles along {self._axes}"
        value = {"step": step, "contract": common, "toolchain": toolchain}
        about = f"call a step with roles along {self._axes}"
        self._fleet.agree(f"{self._topic}/begin", value, judge_contracts, about)

    def end(self, step: str, mesh: Any, messages: list[dict[str, Any]]) -> None:
        """Wait until every role has its program, and see that they answer each other's messages.

        Args:
            messages: what this rank's program sends and receives.

        Raises:
            FleetError: one role waits for what the other does not send.
        """
        scope = scope_of(mesh, self._roles)
        at = dict(zip(mesh.mesh_dim_names, mesh.get_coordinate(), strict=True))
        value = {"step": step, "at": [at[axis] for axis in self._roles]}
        if self._fleet.rank == scope.ranks[0]:  # the others have the same program
            value["messages"] = messages
        sizes = dict(zip(mesh.mesh_dim_names, mesh.shape, strict=True))
        about = f"have the program of its role along {self._axes}"

        def judge(posted: Posted, ranks: Any) -> dict[str, Any]:
            return judge_messages(posted, self._roles, sizes)

        self._fleet.agree(f"{self._topic}/end", value, judge, about, limit=self._limit_s)


def judge_messages(
    posted: Posted, axes: tuple[str, ...], sizes: Mapping[str, int]
) -> dict[str, Any]:
    """The verdict on the messages of all roles.

    Args:
        posted: by rank: its place along `axes`, and of one rank of each role its messages.
    """
    programs = {tuple(one["at"]): one["messages"] for one in posted if "messages" in one}
    fault = Roles(axes, sizes, programs).fault()
    return {"ok": True} if fault is None else {"fault": fault.record()}


def refuse_unanswered(messages: list[dict[str, Any]], mesh: Any) -> None:
    """Refuse the one program of all ranks whose messages are not answered by itself.

    Raises:
        FleetError: as `Meeting.end`.
    """
    sizes = dict(zip(mesh.mesh_dim_names, mesh.shape, strict=True)) if messages else {}
    fault = Roles((), sizes, {(): messages}).fault()
    if fault is not None:
        raise fault.error()
