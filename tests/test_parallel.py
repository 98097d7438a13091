"""The parts of `lockstep.parallel` in one process: placements, padding, counts, what is refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lockstep as ls
from lockstep import parallel
from lockstep.errors import UsageError
from lockstep.models import llama, llama_plan, mixtral, mixtral_plan
from lockstep.parallel.become import become, read_through
from lockstep.parallel.context import own_positions
from lockstep.spmd.mesh import Axis
from lockstep.spmd.types import I, R, S
from tests.parallel.layouts import NARROW


@pytest.fixture
def one() -> object:
    return ls.mesh(dp=1, fsdp=1, tp=1, cp=1, ep=1)


class Place:
    """A process group of which only the size and this rank's place are asked."""

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def rank(self) -> int:
        return self._rank


def as_rank(monkeypatch: pytest.MonkeyPatch, rank: int, ranks: int) -> None:
    """Take this process for one rank of many along every axis."""

    def axis(name: str) -> Axis:
        return Axis(name, tuple(range(ranks)), Place(rank))  # type: ignore[arg-type]

    for module in ("placement", "ranks", "context"):
        monkeypatch.setattr(f"lockstep.parallel.{module}.axis_named", axis)


def test_a_model_keeps_its_names_and_its_numbers(one):
    tokens = torch.arange(8).view(2, 4)
    torch.manual_seed(0)
    whole = llama.Llama(llama.config("debug", **NARROW))
    wanted, names = whole(tokens), [name for name, _ in whole.named_parameters()]
    mesh = ls.mesh(dp=1, fsdp=1, tp=1)
    plan = llama_plan.Plan(sequence=True, recompute=True, regather=True)
    made = llama_plan.parallelize(whole, mesh, plan)
    assert [name for name, _ in made.named_parameters()] == names == list(made.state_dict())
    assert torch.equal(made(tokens), wanted)
    placed = parallel.placements(made)["layers.0.attention.wo.weight"]
    assert placed.types == {"dp": R, "tp": S(1), "fsdp": S(0)}
    assert placed.shape == placed.sizes == (16, 16)
    assert parallel.layout(made).data == ("dp", "fsdp")


@pytest.mark.parametrize(
    ("rank", "rows", "offset", "held"), [(0, [0, 1], 0, 2), (1, [2, 0], 2, 1), (3, [0, 0], 3, 0)]
)
def test_a_shard_is_padded_with_zeros(one, monkeypatch, rank, rows, offset, held):
    model = nn.Linear(1, 3, bias=False)
    model.weight.data = torch.tensor([[0.0], [1.0], [2.0]])
    parallel.place(model, {"*": {"dp": R}})
    as_rank(monkeypatch, rank, 2 if rank < 2 else 4)
    parallel.fully_shard(model, "fsdp")
    own = next(model.parameters())
    wide = rows if rank < 2 else rows[:1]
    assert own.flatten().tolist() == wide
    placed = parallel.placements(model)["weight"]
    assert (placed.offsets, placed.sizes) == ((offset, 0), (held, 1))
    assert placed.held(own).shape == (held, 1)


def test_a_tied_parameter_is_cut_once_and_stays_shared(one, monkeypatch):
    model = llama.Llama(llama.config("debug", **NARROW, tied=True))
    as_rank(monkeypatch, 1, 2)
    parallel.place(model, llama_plan.table({"tp": 2}))
    parallel.fully_shard(model, "fsdp")
    (weight,) = {p for n, p in model.named_parameters() if n == "tok_embeddings.weight"}
    assert weight.shape == (8, 16) and len(dict(model.named_parameters())) == 20


def test_positions_are_an_early_and_a_late_chunk(one, monkeypatch):
    found = []
    for rank in range(2):
        as_rank(monkeypatch, rank, 2)
        found.append(own_positions(8, "cp").tolist())
    assert found == [[0, 1, 6, 7], [2, 3, 4, 5]]


def test_a_share_counts_tokens_not_samples(one):
    losses, labels = torch.tensor([[1.0, 2.0], [3.0, 9.0]]), torch.tensor([[1, 1], [1, -100]])
    assert parallel.token_count(labels, "dp").item() == 3
    assert parallel.token_mean(losses, labels, "dp").item() == 2.0
    assert parallel.token_mean(losses, labels, count=torch.tensor(6)).item() == 1.0


def test_a_norm_is_of_all_gradients_and_clips_them(one):
    model = nn.Linear(2, 1)
    parallel.place(model, {"*": {"dp": R}})
    model.weight.grad, model.bias.grad = torch.tensor([[2.0, 3.0]]), torch.tensor([6.0])
    assert parallel.clip_grad_norm(model, 3.5).item() == 7.0
    assert model.bias.grad.item() == pytest.approx(3.0)
    assert parallel.clip_grad_norm(model, 10.0).item() == pytest.approx(3.5)
    assert model.bias.grad.item() == pytest.approx(3.0), "a small one is left as it is"


def test_reads_follow_one_another():
    module = nn.Linear(1, 1, bias=False)
    module.weight.data.fill_(3.0)
    read_through(module, "weight", lambda w: w + 1)
    read_through(module, "weight", lambda w: w * 2)
    assert module(torch.ones(1)).item() == 8.0 and next(module.parameters()).item() == 3.0
    assert become(module, type("Plain", (), {})) is module and module.weight.item() == 8.0


def test_micro_batches_that_do_not_divide_are_refused(one):
    model = llama_plan.parallelize(llama.Llama(llama.config("debug", **NARROW)), ls.mesh(dp=1))
    with pytest.raises(UsageError, match="3 micro-batches do not divide a rank's batch of 4"):
        parallel.forward_backward(model, *torch.zeros(2, 4, 8, dtype=torch.int64), micro_batches=3)


def test_what_no_plan_made_is_told():
    with pytest.raises(UsageError, match="Linear has no layout"):
        parallel.layout(nn.Linear(1, 1))
    with pytest.raises(UsageError, match="weight has no placement"):
        parallel.placements(nn.Linear(1, 1))


def test_a_table_that_leaves_a_parameter_out_is_refused(one):
    with pytest.raises(UsageError, match="leaves parameters out\n  got  bias"):
        parallel.place(nn.Linear(1, 1), {"weight": {"tp": I}})


LLAMA, SMALL = llama.config("debug"), llama.config("debug", dim=12, heads=6, kv_heads=3, ffn=9)
PLAN, SEQUENCE = llama_plan.Plan(), llama_plan.Plan(sequence=True)


@pytest.mark.parametrize(
    ("config", "sizes", "plan", "known", "told"),
    [
        (SMALL, {"tp": 4}, PLAN, {}, "tp=4 does not divide heads\n  got  6 heads"),
        (SMALL, {"tp": 2}, PLAN, {}, "tp=2 does not divide kv_heads"),
        (llama.config("debug", ffn=386), {"tp": 4}, PLAN, {}, "tp=4 does not divide kv_heads"),
        (llama.config("debug", ffn=385), {"tp": 2}, PLAN, {}, "tp=2 does not divide ffn"),
        (llama.config("debug", vocab=255), {"tp": 2}, PLAN, {}, "fix  vocab 256, or sizes of tp=2"),
        (LLAMA, {"dp": 2, "fsdp": 2}, PLAN, {"batch": 6}, "dp=2 x fsdp=2 does not divide seq"),
        (LLAMA, {"cp": 2}, PLAN, {"tokens": 6}, "does not divide tokens a sequence\n  got  6"),
        (LLAMA, {"tp": 2}, SEQUENCE, {"tokens": 7}, "tp=2 does not divide tokens a sequence"),
        (LLAMA, {"dp": 2}, SEQUENCE, {}, "sequence parallelism needs an axis tp"),
        (LLAMA, {"pp": 2}, PLAN, {}, "a Llama's plan has no axis pp\n  want some of dp, fsdp"),
    ],
)
def test_a_mesh_that_does_not_divide_is_refused(config, sizes, plan, known, told):
    with pytest.raises(UsageError) as raised:
        llama_plan.refuse(config, sizes, plan, **known)
    assert told in str(raised.value)
    assert raised.value.fixes or raised.value.want


def test_a_mesh_that_does_not_divide_experts_is_refused():
    config = mixtral.config("debug")
    with pytest.raises(UsageError, match="ep=3 does not divide experts\n  got  4 experts"):
        mixtral_plan.refuse(config, {"ep": 3}, mixtral_plan.Plan())
    with pytest.raises(UsageError, match="dp=2 x ep=2 does not divide sequences a step"):
        mixtral_plan.refuse(config, {"dp": 2, "ep": 2}, mixtral_plan.Plan(), batch=2)


def test_biases_move_against_the_load():
    from lockstep.parallel.expert import balanced

    moved = balanced(torch.zeros(3), torch.tensor([4.0, 0.0, 2.0]), 0.5)
    assert moved.tolist() == [-0.5, 0.5, 0.0]
