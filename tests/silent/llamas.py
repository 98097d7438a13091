"""The debug Llama under data, tensor and sequence parallelism, as steps for `ls.check`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import lockstep as ls
from lockstep.models import llama
from tests.silent.plan import Plan, cross_entropy, parallelise

SMALL = dict(dim=16, layers=2, heads=4, kv_heads=2, ffn=32, vocab=32)
BATCH, TOKENS = 4, 6


@dataclass(frozen=True)
class Program:
    """One right program, and one that lacks a collective or a conversion of it.

    Args:
        name: of its row.
        mesh: axis -> ranks.
        step: gets what is left out, "" for nothing, and gives the step.
        make: gets the same, and gives what builds the step's arguments on a rank.
        without: what the wrong twin leaves out.
        line: a part of the source line that its first finding has to name; "" for any.
    """

    name: str
    mesh: dict[str, int]
    step: Callable[[str], Callable[..., Any]]
    make: Callable[[str], Callable[[Any], Any]]
    without: str
    line: str

    @property
    def data(self) -> str | tuple[str, ...]:
        """The axes along which batches differ."""
        return tuple(axis for axis in self.mesh if axis in ("dp", "ep"))


class Checkpointed(nn.Module):
    """A layer that is computed anew in the backward."""

    def __init__(self, layer: nn.Module, use_reentrant: bool) -> None:
        super().__init__()
        self.layer, self.use_reentrant = layer, use_reentrant

    def forward(self, *args: Tensor) -> Tensor:
        return checkpoint(self.layer, *args, use_reentrant=self.use_reentrant)


def batch() -> tuple[Tensor, Tensor]:
    """The tokens and labels of the whole job."""
    drawn = torch.Generator().manual_seed(3)
    tokens_BT = torch.randint(SMALL["vocab"], (BATCH, TOKENS + 1), generator=drawn)
    return tokens_BT[:, :-1].clone(), tokens_BT[:, 1:].clone()


def model(mesh: Any, **changes: Any) -> llama.Llama:
    """The whole model, alike on every rank, its parameters declared so along dp."""
    torch.manual_seed(0)
    made = llama.Llama(llama.config("debug", **{**SMALL, **changes}))
    if "dp" in mesh.mesh_dim_names:
        ls.type_parameters(made, {"*": {"dp": ls.R}})
    return made


def plan_of(mesh: Any, sequence: bool, without: str) -> Plan:
    """The plan of this rank; of one where there is no tp."""
    if "tp" not in mesh.mesh_dim_names:
        return Plan(1, 0, without=without)
    return Plan(mesh["tp"].size(), mesh.get_local_rank("tp"), sequence, without)


def own_rows(mesh: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
    """This rank's rows of tensors that are divided along dp."""
    if "dp" not in mesh.mesh_dim_names:
        return tensors
    size, rank = mesh["dp"].size(), mesh.get_local_rank("dp")
    return tuple(tensor.chunk(size)[rank].clone() for tensor in tensors)


def program(
    name: str,
    mesh: dict[str, int],
    without: str,
    line: str,
    *,
    sequence: bool = False,
    gather: bool = False,
    reentrant: bool | None = None,
    **changes: Any,
) -> Program:
    """Return a Llama under this mesh.

    Args:
        without: "entry", "exit", "norm", "mask", "maximum" or "target" of the plan, "reduction" of
            the gradients, or "seed" of the dropout.
        line: a part of the source line that is to be named then.
        gather: the output gives whole logits.
        reentrant: checkpoint each layer, this kind.
        changes: of the configuration.
    """

    def make(left_out: str) -> Callable[[Any], Any]:
        def on(mesh_here: Any) -> Any:
            plan = plan_of(mesh_here, sequence, left_out)
            made = model(mesh_here, **changes)
            if "tp" in mesh:
                made = parallelise(made, plan, gather)
            if reentrant is not None:
                layers = [Checkpointed(layer, reentrant) for layer in made.layers]
                made.layers = nn.ModuleList(layers)
            if changes.get("dropout"):
                _seed(mesh_here, sequence, left_out)
            return (made, *own_rows(mesh_here, *batch())), {"plan": plan}

        return on

    def step_of(left_out: str) -> Callable[..., Any]:
        def step(made: llama.Llama, tokens_BT: Tensor, labels_BT: Tensor, plan: Plan) -> Tensor:
            if "tp" in mesh and not gather:
                loss = cross_entropy(plan, made(tokens_BT), labels_BT)
            else:
                loss = made(tokens_BT, labels_BT)
            if "dp" in mesh:
                loss = ls.loss(loss, dp="mean")
            loss.backward()
            if "dp" in mesh and left_out != "reduction":
                ls.reduce_grads(made, dp="mean")
            return loss

        return step

    return Program(name, mesh, step_of, make, without, line)


def _seed(mesh: Any, sequence: bool, left_out: str) -> None:
    """Streams for dropout: of their own where the stream of tokens differs, else shared."""
    own = [axis for axis in mesh.mesh_dim_names if axis == "dp" or sequence]
    seed = 100
    for axis in own:
        seed = 10 * seed + (0 if left_out == "seed" else mesh.get_local_rank(axis))
    torch.manual_seed(seed)


DP, TP, BOTH = {"dp": 2}, {"tp": 2}, {"dp": 2, "tp": 2}
NORM, LINEAR = "enter(normed_BTD * self.weight)", "F.linear(x, self.weight)"
ADDED, DROPPED = "self.dropout(self.feed_forward(", "self.dropout(self.attention("
READ, HELD = "self.tok_embeddings(tokens_BT)", "F.embedding("
PROGRAMS = [
    program("Llama, dp", DP, "reduction", READ),
    program("Llama, tp, logits gathered", TP, "entry", LINEAR, gather=True),
    program("Llama, tp, loss on shards of the logits", TP, "target", "total_BT.log() - target_BT"),
    program("Llama, tp with sp", TP, "norm", NORM, sequence=True),
    program("Llama, tp x dp", BOTH, "exit", ADDED),
    program("Llama, tp x dp with sp", BOTH, "reduction", HELD, sequence=True),
    # Of what is computed anew within the backward no type says that it carries a gradient.
    program("Llama, tp, checkpoint (reentrant)", TP, "entry", "", reentrant=True),
    program("Llama, tp with sp, checkpoint", TP, "norm", NORM, sequence=True, reentrant=False),
    program("Llama, dp, dropout", DP, "seed", DROPPED, dropout=0.2),
    program("Llama, tp, dropout", TP, "exit", ADDED, dropout=0.2),
    program("Llama, tp with sp, dropout", TP, "seed", DROPPED, sequence=True, dropout=0.2),
    program("Llama, dp, tied embedding", DP, "reduction", READ, tied=True),
    program("Llama, tp, tied embedding", TP, "mask", HELD, tied=True),
]
