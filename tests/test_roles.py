"""Roles and guards as they are declared: what is refused, and what is no fault of theirs."""

from __future__ import annotations

import pytest
import torch

import lockstep as ls
from lockstep.errors import UsageError
from lockstep.run.call_guard import guard_of, name_of_call
from lockstep.run.roles import scope_of


@pytest.fixture(scope="module")
def mesh():
    return ls.mesh("cpu", pp=1, dp=1)


def total(x: torch.Tensor) -> torch.Tensor:
    return x.sum()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"roles": "tp"}, "roles='tp' names no axis of the mesh"),
        ({"roles": 3}, "roles=3"),
        ({"roles": "dp", "data": "dp"}, "dp is an axis of roles= and of data="),
        ({"roles": "pp", "check": "full"}, "its simulated ranks all run one program"),
        ({"roles": "pp", "mesh": None}, "roles='pp' names no axis of the mesh"),
        ({"guard": "step"}, "guard='step'"),
    ],
)
def test_what_cannot_be_meant_is_refused(given, told, mesh):
    with pytest.raises(UsageError, match=told):
        ls.compile(**{"mesh": mesh, **given})(total)


def test_a_role_is_in_the_fingerprint_and_its_coordinate_a_number(mesh, tmp_path):
    def branching(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if mesh.get_local_rank("pp") == 0 else x - 1

    options = {"mesh": mesh, "backend": "graph", "store": tmp_path, "check": "off"}
    step = ls.compile(**options, roles="pp", guard=True)(branching)
    assert step(torch.zeros(2)).tolist() == [1.0, 1.0]
    assert scope_of(mesh, ("pp",)).name == "pp=0"
    call = step.step.call((torch.zeros(2),), {})
    bound = step.bind(call)
    assert step.fingerprint(call, bound, {})["options role"] == "pp=0"
    with pytest.raises(ls.LockstepError, match="rank"):
        ls.compile(**options)(branching)(torch.zeros(2))


def test_a_guard_costs_a_job_of_one_nothing_and_tells_calls_apart(mesh):
    assert guard_of(mesh, 1, 9.0) is guard_of(None, 1, 9.0)
    guard_of(mesh, 1, 9.0).enter(None, "call 1")  # type: ignore[arg-type]
    names = {name_of_call(*one) for one in (
        ("a", "v0", 1, None), ("b", "v0", 1, None), ("a", "v1", 1, None), ("a", "v0", 2, None),
        ("a", "v0", 1, lambda: 7), ("", "v0", 1, None),
    )}  # fmt: skip
    assert len(names) == 6
