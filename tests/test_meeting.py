"""Where live ranks' collectives meet: results, what is not known yet, and ranks that part."""

from __future__ import annotations

import pytest
import torch

from lockstep.checker.live.meeting import Meeting, Parted, start
from lockstep.checker.ranks import coordinates, group_of

X = torch.ones(2)


def test_a_group_is_the_ranks_that_differ_along_its_axis_alone():
    mesh = {"dp": 2, "tp": 3}
    places = coordinates(mesh)
    assert places[4] == {"dp": 1, "tp": 1}
    assert group_of(places, mesh, 4, "tp") == [3, 4, 5]
    assert group_of(places, mesh, 4, "dp") == [1, 4]
    assert group_of(places, mesh, 4, "world") == list(range(6))


def test_a_collective_is_computed_when_the_last_of_its_group_starts_it():
    meeting = Meeting({"dp": 2, "tp": 2})
    for rank in range(3):
        meeting.add(rank, start(1, "all_reduce", "tp", (X * (rank + 1), "sum"), "a.py:1"))
    assert sorted(meeting.meet()) == [(0, 1), (1, 1)]
    meeting.add(3, start(1, "all_reduce", "tp", (X * 4, "sum"), "a.py:1"))
    assert sorted(meeting.meet()) == [(2, 1), (3, 1)]
    assert meeting.meet() == []
    assert [meeting.results[r][1].tolist() for r in range(4)] == [[3, 3]] * 2 + [[7, 7]] * 2


def test_axes_are_met_apart_from_each_other():
    """So ranks may start what is on two axes in either order."""
    meeting = Meeting({"dp": 1, "tp": 2})
    for rank, order in enumerate((("tp", "world"), ("world", "tp"))):
        for number, axis in enumerate(order, 1):
            meeting.add(rank, start(number, "all_reduce", axis, (X, "sum"), "a.py:1"))
    assert sorted(meeting.meet()) == [(0, 1), (0, 2), (1, 1), (1, 2)]


def test_an_operand_that_is_not_known_yet_is_waited_for():
    meeting = Meeting({"tp": 2})
    meeting.add(0, start(1, "all_reduce", "tp", (X, "sum"), "a.py:1").knowing(None))
    meeting.add(1, start(1, "all_reduce", "tp", (X, "sum"), "a.py:1"))
    assert meeting.meet() == []
    meeting.add(0, start(1, "all_reduce", "tp", (X * 2, "sum"), "a.py:1"))
    assert len(meeting.meet()) == 2
    assert meeting.results[1][1].tolist() == [3, 3]


@pytest.mark.parametrize(
    "other",
    [
        start(1, "all_reduce", "tp", (torch.ones(3), "sum"), "b.py:2"),
        start(1, "all_reduce", "tp", (X, "max"), "b.py:2"),
        start(1, "broadcast", "tp", (X, 0), "b.py:2"),
    ],
)
def test_ranks_that_start_different_ones_part_with_both_lines(other):
    meeting = Meeting({"tp": 2})
    meeting.add(0, start(1, "all_reduce", "tp", (X, "sum"), "a.py:1"))
    meeting.add(1, other)
    with pytest.raises(Parted) as parted:
        meeting.meet()
    finding = parted.value.finding
    assert (finding.code, finding.axis, finding.line) == ("LS510", "tp", "a.py:1")
    assert finding.got.splitlines()[0] == "rank 0: all_reduce sum of f32[2], at a.py:1"
    assert "b.py:2" in finding.got.splitlines()[1]


def test_ranks_of_which_none_goes_on_are_told_with_where_each_one_is():
    meeting = Meeting({"tp": 2})
    meeting.add(0, start(1, "all_reduce", "tp", (X, "sum"), "a.py:1"))
    assert meeting.meet() == []
    finding = meeting.stuck({0: 1})
    assert finding.got == (
        "rank 0: waits in all_reduce sum of f32[2], at a.py:1, on tp\nrank 1: has left the step"
    )
    assert (finding.code, finding.line, finding.axis) == ("LS510", "a.py:1", "tp")


def test_an_operand_is_a_copy():
    meeting = Meeting({"tp": 1})
    x = torch.ones(2)
    meeting.add(0, start(1, "all_reduce", "tp", (x, "sum"), "a.py:1"))
    x.zero_()
    meeting.meet()
    assert meeting.results[0][1].tolist() == [1, 1]
