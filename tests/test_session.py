"""A process' session outlives a process group that its script destroyed, where it can."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

import lockstep as ls
from lockstep.errors import UsageError
from lockstep.run import session


def test_a_process_alone_goes_on_after_its_group_was_destroyed() -> None:
    step = ls.compile(backend="graph")(lambda x: x + 1)
    assert step(torch.zeros(1)).item() == 1
    dist.destroy_process_group()
    assert step(torch.ones(1)).item() == 2  # the program that it has
    assert step(torch.ones(2)).tolist() == [2, 2]  # another, built now
    assert dist.get_world_size() == 1


def test_a_rank_of_a_job_is_told_to_destroy_it_later(monkeypatch: pytest.MonkeyPatch) -> None:
    session.session()
    dist.destroy_process_group()
    with monkeypatch.context() as patch:
        patch.setattr(session, "_session", SimpleNamespace(world=4))
        with pytest.raises(UsageError, match="LS001: the process group was destroyed") as caught:
            session.session()
    assert "want the one of 4 ranks" in str(caught.value)
    assert "fix  call dist.destroy_process_group() after the last step" in str(caught.value)
    assert session.session().world == 1
