"""A Llama in stages: what each keeps, the same numbers as the whole, and what is refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lockstep as ls
from lockstep import parallel
from lockstep.capture.capture import capture
from lockstep.capture.sent import messages_of
from lockstep.errors import UsageError
from lockstep.models import llama, llama_plan, llama_stages
from lockstep.parallel.pipeline import Pipe
from lockstep.run.stages import Roles
from lockstep.spmd.types import R, V
from tests.parallel.layouts import NARROW

TEXT = torch.arange(4 * 9).view(4, 9) % 7


@pytest.fixture(scope="module")
def mesh():
    return ls.mesh("cpu", pp=1, dp=1)


def whole(layers: int = 2) -> llama.Llama:
    torch.manual_seed(0)
    return llama.Llama(llama.config("debug", **{**NARROW, "layers": layers}))


def grads(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def step(stage: llama_stages.LlamaStage, tokens: torch.Tensor, labels: torch.Tensor, count: int):
    return parallel.pipeline_step(stage, tokens, labels, micro_batches=count)


@pytest.mark.parametrize("chunks", [1, 2])
def test_one_stage_alone_computes_what_the_whole_model_does(chunks, mesh):
    plain = llama_plan.parallelize(whole(), ls.mesh("cpu", dp=1))
    want = parallel.forward_backward(plain, TEXT[:, :-1], TEXT[:, 1:], micro_batches=2)
    stage = llama_stages.cut(whole(), mesh, chunks=chunks)
    got = step(stage, TEXT[:, :-1], TEXT[:, 1:], 2)
    assert torch.equal(got, want)
    found = grads(stage)
    assert sorted(found) == sorted(grads(plain))
    assert all(torch.equal(found[name], value) for name, value in grads(plain).items())


@pytest.mark.parametrize("chunks", [1, 2])
def test_the_forwards_alone_give_the_same_loss_and_no_gradient(chunks, mesh):
    stage = llama_stages.cut(whole(), mesh, chunks=chunks)
    text = TEXT[:, :-1], TEXT[:, 1:]
    told = parallel.pipeline_loss(stage, *text, micro_batches=2)
    assert not grads(stage)
    assert torch.equal(told, step(stage, *text, 2))


def stage_of(pipe: Pipe, layers: int = 5) -> llama_stages.LlamaStage:
    made = llama_stages.LlamaStage(whole(layers), pipe)
    made.layout = parallel.Layout(("dp",))
    return made


def test_each_stage_keeps_its_parts_under_their_names():
    held = [list(dict(stage_of(Pipe("pp", 2, at)).named_parameters())) for at in (0, 1)]
    assert sorted(held[0] + held[1]) == sorted(dict(whole(5).named_parameters()))
    assert [list(stage_of(Pipe("pp", 2, at)).layers) for at in (0, 1)] == [
        ["0", "1", "2"],
        ["3", "4"],
    ]
    assert held[0][-1] == "tok_embeddings.weight" and held[1][-1] == "output.weight"
    chunks = [stage_of(Pipe("pp", 2, at, 2)) for at in (0, 1)]
    assert [stage.held for stage in chunks] == [{0: [0, 1], 2: [3]}, {1: [2], 3: [4]}]


def test_placements_say_that_a_stage_s_parameters_are_its_own(mesh):
    placed = parallel.placements(llama_stages.cut(whole(), mesh))
    assert placed["layers.0.attention.wo.weight"].types == {"pp": V, "dp": R}


class Toy(parallel.Stage):
    """One matrix a part."""

    def __init__(self, pipe: Pipe) -> None:
        super().__init__(pipe)
        self.layout = parallel.Layout(("dp",))
        self.table = nn.Embedding(8, 8)
        self.inner = nn.ModuleDict({str(part): nn.Linear(8, 8) for part in pipe.own})

    def forward(self, part: int, x: torch.Tensor) -> torch.Tensor:
        return self.inner[str(part)](self.table(x) if part == 0 else x)

    def empty(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.table.weight.new_empty(*tokens.shape, 8)


def forwards(stage: parallel.Stage, tokens: torch.Tensor, labels: torch.Tensor, count: int):
    return parallel.pipeline_loss(stage, tokens, labels, micro_batches=count)


@pytest.mark.parametrize("run", [step, forwards])
@pytest.mark.parametrize(("stages", "chunks"), [(2, 1), (2, 2), (3, 1)])
def test_the_programs_of_all_stages_answer_each_other(stages, chunks, run, mesh):
    text = TEXT[: 6 - stages]
    programs = {}
    for at in range(stages):
        toy = Toy(Pipe("pp", stages, at, chunks))
        graph = capture(run, toy, text[:, :-1], text[:, 1:], len(text))
        programs[at,] = messages_of(graph.gm)
    assert Roles(("pp",), {"pp": stages}, programs).fault() is None
    lost = {**programs, (0,): programs[0,][1:]}
    assert Roles(("pp",), {"pp": stages}, lost).fault() is not None


def test_what_has_no_stages_is_refused(mesh):
    with pytest.raises(UsageError, match="a Llama in stages's plan has no axis ep"):
        llama_stages.cut(whole(), ls.mesh("cpu", pp=1, ep=1))
    with pytest.raises(UsageError, match="sequence parallelism needs an axis tp"):
        llama_stages.cut(whole(), mesh, llama_plan.Plan(sequence=True))
    with pytest.raises(UsageError, match="needs an axis pp"):
        llama_stages.cut(whole(), ls.mesh("cpu", dp=1))
    with pytest.raises(UsageError, match="2 layers do not fill 3 parts"):
        llama_stages.cut(whole(), mesh, chunks=3)
    with pytest.raises(UsageError, match="3 micro-batches do not divide a rank's batch of 4"):
        step(llama_stages.cut(whole(), mesh), TEXT[:, :-1], TEXT[:, 1:], 3)
