"""The layouts: a mesh, a model's plan, and the step that all of them share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lockstep import parallel
from lockstep.models import llama, llama_plan, llama_stages, mixtral, mixtral_plan
from lockstep.parallel.fully_sharded import gathered_once
from lockstep.parallel.loss import job_loss

BATCH, TOKENS, VOCAB, MOST = 4, 8, 32, 0.5
NARROW = {"dim": 16, "layers": 2, "heads": 4, "kv_heads": 2, "ffn": 32, "vocab": VOCAB}


@dataclass(frozen=True)
class Case:
    """One layout.

    Args:
        name: as it is printed.
        mesh: axis -> ranks, outermost first.
        plan: of the model's kind.
        micro_batches: of a step.
        once: whether shards are gathered once for all of them.
    """

    name: str
    mesh: dict[str, int]
    plan: Any
    micro_batches: int = 1
    once: bool = False

    @property
    def experts(self) -> bool:
        """Whether the model is a mixture of experts."""
        return isinstance(self.plan, mixtral_plan.Plan)

    @property
    def data(self) -> tuple[str, ...]:
        """The axes along which batches differ."""
        return tuple(axis for axis in self.mesh if axis in ("dp", "fsdp", "ep"))

    @property
    def step(self) -> Any:
        """What is checked."""
        return step

    @property
    def ranks(self) -> int:
        """How many there are."""
        return int(torch.tensor([*self.mesh.values()]).prod())

    def whole(self, **changes: Any) -> Any:
        """The model before it is laid out, the same on every rank; not to be drawn twice."""
        torch.manual_seed(0)
        if self.experts:
            return mixtral.Mixtral(mixtral.config("debug", **changes))
        return llama.Llama(llama.config("debug", **changes))

    def laid_out(self, mesh: Any, model: Any) -> Any:
        """The model over a mesh with some of this case's axes."""
        plan = mixtral_plan if self.experts else llama_plan
        return plan.parallelize(model, mesh, self.plan)

    def own(self, mesh: Any, *whole: Tensor) -> tuple[Tensor, ...]:
        """This rank's rows of the job's batch."""
        for axis in self.data:
            size, rank = mesh[axis].size(), mesh.get_local_rank(axis)
            whole = tuple(tensor.chunk(size)[rank] for tensor in whole)
        return tuple(tensor.clone() for tensor in whole)

    def make(self, mesh: Any) -> Any:
        """The narrow model and a batch on one rank, for `ls.check`."""
        model = self.laid_out(
            mesh, self.whole(**NARROW, **({"shared": 16} if self.experts else {}))
        )
        return (model, *self.own(mesh, *batch())), {
            "micro_batches": self.micro_batches,
            "once": self.once,
        }


class Stages(Case):
    """A Llama whose parts lie on other ranks along "pp"."""

    @property
    def step(self) -> Any:
        return stage_step

    def laid_out(self, mesh: Any, model: Any) -> Any:
        return llama_stages.cut(model, mesh)


def batch(rows: int = BATCH, tokens: int = TOKENS, vocab: int = VOCAB) -> tuple[Tensor, Tensor]:
    """The tokens and labels of the whole job; labels are left out, unequally many on each rank."""
    drawn = torch.Generator().manual_seed(3)
    text = torch.randint(vocab, (rows, tokens + 1), generator=drawn)
    labels = text[:, 1:].clone()
    labels[0, : tokens // 4] = -100
    return text[:, :-1].clone(), labels


def step(
    model: nn.Module, tokens: Tensor, labels: Tensor, micro_batches: int = 1, once: bool = False
) -> Any:
    """Forward, backward, reduction and clipping; the optimizer is the caller's."""
    if once:
        loss = gathered_once_step(model, tokens, labels, micro_batches)
    else:
        loss = parallel.forward_backward(model, tokens, labels, micro_batches=micro_batches)
    parallel.reduce_grads(model)
    norm = parallel.clip_grad_norm(model, MOST)
    if isinstance(model, mixtral.Mixtral):
        mixtral_plan.balance_experts(model)
    return loss, norm


def gathered_once_step(model: nn.Module, tokens: Tensor, labels: Tensor, count: int) -> Tensor:
    """As a stage of a pipeline does it: `forward_backward` gathers for each micro-batch."""
    axes, shares = parallel.layout(model).tokens, []
    tokens_of_all = parallel.token_count(labels, *axes)
    with gathered_once() as once:
        for part, known in zip(tokens.chunk(count), labels.chunk(count), strict=True):
            losses = parallel.layout(model).losses(model(part), known)
            share = parallel.token_mean(losses, known, *axes, count=tokens_of_all)
            once.last = len(shares) == count - 1
            share.backward()
            shares.append(share.detach())
    return job_loss(torch.stack(shares).sum(), *axes)


def stage_step(
    stage: nn.Module, tokens: Tensor, labels: Tensor, micro_batches: int = 1, once: bool = False
) -> Any:
    """The same of one stage of a pipeline."""
    assert isinstance(stage, parallel.Stage)
    loss = parallel.pipeline_step(stage, tokens, labels, micro_batches=micro_batches)
    parallel.reduce_grads(stage)
    return loss, parallel.clip_grad_norm(stage, MOST)


LLAMA, SEQUENCE, MIXTRAL = llama_plan.Plan(), llama_plan.Plan(sequence=True), mixtral_plan.Plan()
CASES = [
    Case("dp2", {"dp": 2}, LLAMA),
    Case("fsdp2", {"fsdp": 2}, LLAMA),
    Case("tp2", {"tp": 2}, LLAMA),
    Case("tp2+sp", {"tp": 2}, SEQUENCE),
    Case("dp2 x tp2", {"dp": 2, "tp": 2}, LLAMA),
    Case("fsdp2 x tp2+sp", {"fsdp": 2, "tp": 2}, SEQUENCE),
    Case("cp2", {"cp": 2}, LLAMA),
    Case("experts, ep2", {"ep": 2}, MIXTRAL),
    Case("experts, dp2 x ep2", {"dp": 2, "ep": 2}, MIXTRAL),
]
# Beside those of the claim: what only some plans use.
MORE = [
    Case("hybrid dp2 x fsdp2", {"dp": 2, "fsdp": 2}, LLAMA),
    Case("fsdp2, regathered", {"fsdp": 2}, llama_plan.Plan(regather=True)),
    Case("tp2+sp, recomputed", {"tp": 2}, llama_plan.Plan(sequence=True, recompute=True)),
    Case("fsdp2, bf16", {"fsdp": 2}, llama_plan.Plan(dtype=torch.bfloat16)),
    Case("dp2, two micro-batches", {"dp": 2}, LLAMA, 2),
    Case("fsdp2, gathered once", {"fsdp": 2}, LLAMA, 2, once=True),
    Case("fsdp2 x tp2+sp, gathered once", {"fsdp": 2, "tp": 2}, SEQUENCE, 2, once=True),
    Case("cp2 x tp2+sp", {"cp": 2, "tp": 2}, SEQUENCE),
    Case("experts, fsdp2", {"fsdp": 2}, MIXTRAL),
    Stages("pp2, two micro-batches", {"pp": 2}, LLAMA, 2),
]


def case(name: str) -> Case:
    """The one of this name."""
    return next(case for case in (*CASES, *MORE) if case.name == name)
