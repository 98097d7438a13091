"""Messages along an axis: what is captured, what is refused, and the order that compilers keep."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import lockstep as ls
from lockstep.build.in_order import messages, tie
from lockstep.build.outputs import split_outputs
from lockstep.capture.capture import capture
from lockstep.capture.sent import messages_of
from lockstep.errors import CaptureError, UsageError
from lockstep.run.roles import judge_messages, refuse_unanswered
from lockstep.spmd.point_to_point import BEHIND, RECV, SEND, SETTLE, tag_of


@pytest.fixture(scope="module")
def mesh():
    return ls.mesh("cpu", pp=1, dp=1)


def turn(x: torch.Tensor) -> torch.Tensor:
    ls.send(x * 2, "pp", to=1)
    got = ls.recv(x, "pp", from_=-1)
    ls.send(got, "pp", to=1)
    return ls.settle(got + 1)


def reduced(x: torch.Tensor, group: dist.ProcessGroup) -> None:
    ls.send(x, "pp", to=1)
    dist.all_reduce(x, group=group)
    ls.recv(x, "pp", from_=-1)
    dist.all_reduce(x, group=group)
    ls.settle(x)


def test_a_step_with_messages_is_a_graph_that_names_places_alone(mesh):
    graph = capture(turn, torch.zeros(3, 4))
    rows = messages_of(graph.gm)
    told = [(row["op"], row["axis"], row["place"], row["number"], row["shape"]) for row in rows]
    assert told == [
        ("send", "pp", 1, 0, ["3", "4"]),
        ("recv", "pp", -1, 0, ["3", "4"]),
        ("send", "pp", 1, 1, ["3", "4"]),
    ]
    assert all("test_messages.py" in row["line"] for row in rows)
    again = messages_of(capture(turn, torch.zeros(3, 4)).gm)
    assert [row["number"] for row in again] == [0, 0, 1]  # each capture counts anew


def test_each_message_comes_after_the_one_before(mesh):
    first, second, third, last = messages(capture(turn, torch.zeros(2)).gm.graph)
    assert [n.target for n in (first, second, third, last)] == [SEND, RECV, SEND, SETTLE]
    assert [n.args[1] for n in (first, second, third, last)] == [None, first, second, third]


def test_what_only_communicates_is_kept_for_the_compiler(mesh):
    def last(x: torch.Tensor) -> torch.Tensor:
        ls.send(x, "pp", to=1)
        ls.settle(x)
        return x + 1

    split = split_outputs(capture(last, torch.zeros(2)).gm)
    outputs = next(iter(split.gm.graph.find_nodes(op="output"))).args[0]
    assert [node.target for node in outputs][1] is SETTLE and "return [made[0]]" in split.epilogue
    assert len(next(iter(split_outputs(capture(turn, torch.zeros(2)).gm).gm.graph.find_nodes(
        op="output"))).args[0]) == 1  # returned anyway  # fmt: skip


def test_collectives_and_messages_are_tied_to_each_other(mesh):
    gm = capture(reduced, torch.zeros(2), mesh.get_group("dp")).gm
    plain = [str(node.target) for node in gm.graph.nodes]
    tie(gm.graph)
    gm.graph.lint()
    sent, got, done = messages(gm.graph)
    starts = gm.graph.find_nodes(
        op="call_function", target=torch.ops._c10d_functional.all_reduce.default
    )
    before = [node.args[0] for node in starts]
    assert [n.target for n in before] == [BEHIND] * 2
    assert [n.args[1] for n in before] == [[sent], [got]]
    assert got.args[1].target is BEHIND and got.args[1].args == (sent, [starts[0]])
    assert done.args[1].args == (got, [starts[1]])
    assert len(gm.graph.nodes) == len(plain) + 4


def test_a_graph_without_messages_is_let_be(mesh):
    gm = capture(lambda x: dist.all_reduce(x), torch.zeros(2)).gm
    count = len(gm.graph.nodes)
    tie(gm.graph)
    assert len(gm.graph.nodes) == count


def test_a_message_that_nothing_waits_for_is_refused_at_its_line(mesh):
    def loose(x: torch.Tensor) -> torch.Tensor:
        ls.send(x, "pp", to=1)
        return x + 1

    with pytest.raises(CaptureError, match=r"never calls ls\.settle") as found:
        capture(loose, torch.zeros(2))
    assert "test_messages.py" in str(found.value.where)


@pytest.mark.parametrize("place", [0, 1.0, 2, -2])
def test_a_place_is_another_rank(place, mesh):
    with pytest.raises(UsageError, match=r"ls\.send with to="):
        ls.send(torch.zeros(2), "pp", to=place)
    with pytest.raises(UsageError, match=r"ls\.recv with from_="):
        ls.recv(torch.zeros(2), "pp", from_=place)


def test_a_rank_alone_and_other_devices_are_refused(mesh):
    with pytest.raises(UsageError, match="where this rank is alone"):
        ls.send(torch.zeros(2), "pp", to=1)
    with pytest.raises(UsageError, match=r"ls\.send of a tensor on meta"):
        ls.send(torch.zeros(2, device="meta"), "pp", to=1)
    ls.settle(torch.zeros(()))


def test_tags_tell_directions_apart(mesh):
    tags = {tag_of("pp", to, number) for to in (1, -1) for number in (0, 1)}
    assert len(tags) == 4 and min(tags) >= 0
    with pytest.raises(UsageError, match="more than 65536 messages"):
        tag_of("pp", 1, 1 << 16)


# -- what roles make of each other's messages


def row(op: str, place: int, number: int = 0, shape: str = "4", line: str = "a.py:1") -> dict:
    return {
        "op": op, "axis": "pp", "place": place, "number": number, "shape": [shape],
        "dtype": "f32", "line": line,
    }  # fmt: skip


def verdict(*programs: list[dict]) -> str:
    posted = [{"at": [at], "messages": rows} for at, rows in enumerate(programs)]
    posted.append({"at": [0]})  # a second rank of the first role posts no messages
    found = judge_messages(posted, ("pp",), {"pp": len(programs), "dp": 2})
    return found["fault"]["what"] if "fault" in found else "ok"


def test_roles_that_answer_each_other_are_let_be():
    assert verdict([row("send", 1), row("recv", 1)], [row("recv", -1), row("send", -1)]) == "ok"
    ring = [row("send", 1), row("recv", -1)]
    assert verdict(ring, ring, ring) == "ok"


@pytest.mark.parametrize(
    ("first", "second", "told"),
    [
        ([row("send", 1)], [], "pp=0 sends message 1 to 1 along pp, and pp=1 does not take it"),
        (
            [],
            [row("recv", -1)],
            "pp=1 waits for message 1 from -1 along pp, and pp=0 does not send",
        ),
        ([row("send", 1)], [row("recv", 1)], "pp=0 sends message 1 to 1 along pp, and pp=1 does"),
        ([row("send", 1)], [row("recv", -1, shape="8")], "and pp=1 takes another form"),
        (
            [row("recv", 1), row("send", 1)],
            [row("recv", -1), row("send", -1)],
            "the roles wait for each other",
        ),
    ],
)
def test_roles_that_do_not_are_refused_in_words(first, second, told):
    assert told in verdict(first, second)


def test_one_program_of_all_ranks_has_to_answer_itself(mesh):
    refuse_unanswered([row("send", 1), row("recv", -1)], mesh)
    refuse_unanswered([], None)
    with pytest.raises(ls.LockstepError, match="every rank sends message 1 to 1 along pp") as found:
        refuse_unanswered([row("send", 1)], mesh)
    assert 'ls.recv(like, "pp", from_=-1) in the program of every rank' in str(found.value)
