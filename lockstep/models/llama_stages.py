"""A Llama cut in the stages of a pipeline: each rank along `pp` keeps its layers alone.

Along all other axes a stage's layers lie as the plan of the whole model says. Parameters keep their
names in it, so that the files of the stages are parts of its own: `layers.3.attention.wq.weight`
lies on the stage that has layer 3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from lockstep.errors import UsageError
from lockstep.models import llama, llama_plan
from lockstep.parallel.divides import refuse_unknown
from lockstep.parallel.pipeline import Pipe, Stage
from lockstep.parallel.sequence import TOKENS
from lockstep.parallel.tied import mark_copy
from lockstep.spmd.mesh import axis as axis_named
from lockstep.spmd.mesh import register
from lockstep.spmd.signature import type_parameters
from lockstep.spmd.types import I, S, V

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

AXES = ("pp", *llama_plan.AXES)


class LlamaStage(Stage):
    """The parts of a Llama that lie on one stage.

    Args:
        whole: the model that they are taken from; the stage holds the same parameters.
        pipe: which parts those are.
        shards: how many ranks share the tokens of the stream between blocks.
        dtype: of that stream; None for the parameters' own.
    """

    def __init__(
        self, whole: llama.Llama, pipe: Pipe, shards: int = 1, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__(pipe)
        self.config, self.shards, self.dtype = whole.config, shards, dtype
        self.layers = nn.ModuleDict()
        blocks = list(whole.layers)
        self.held = {part: _layers(len(blocks), pipe.parts, part) for part in pipe.own}
        for at in sorted(at for held in self.held.values() for at in held):
            self.layers[str(at)] = blocks[at]
        if 0 in self.held:
            self.tok_embeddings = whole.tok_embeddings
        if pipe.parts - 1 in self.held:
            self.norm, self.output = whole.norm, whole.output

    def forward(self, part: int, x: Tensor) -> Tensor:
        """Compute a part: of tokens [B, T], or of the stream [B, T, D] that the one before gave."""
        x_BTD = self.tok_embeddings(x) if part == 0 else x
        tokens = x.shape[1] if part == 0 else x.shape[1] * self.shards
        positions_T = torch.arange(tokens, dtype=torch.float32, device=x.device)
        angles_TJ = torch.outer(positions_T, llama.rope_frequencies(self.config, x.device))
        cos_TJ, sin_TJ = angles_TJ.cos(), angles_TJ.sin()
        for at in self.held[part]:
            x_BTD = self.layers[str(at)](x_BTD, cos_TJ, sin_TJ)
        return self.output(self.norm(x_BTD)) if part == self.pipe.parts - 1 else x_BTD

    def empty(self, tokens_BT: Tensor) -> Tensor:
        """The form of this rank's part of the stream for these tokens."""
        sequences, tokens = tokens_BT.shape
        weight = next(self.parameters())
        shape = sequences, tokens // self.shards, self.config.dim
        return weight.new_empty(shape, dtype=self.dtype)

    def shared(self) -> list[nn.Parameter]:
        """The weight of the embedding and of the output, where it is one: both ends hold it."""
        tied = ("tok_embeddings.weight", "output.weight") if self.config.tied else ()
        held = dict(self.named_parameters())
        return [held[name] for name in tied if name in held]


def cut(
    model: llama.Llama, mesh: DeviceMesh, plan: llama_plan.Plan | None = None, *, chunks: int = 1
) -> LlamaStage:
    """Keep of a Llama what this rank's stage along `pp` has; nothing communicates.

    Args:
        model: whole, and the same on every rank: the same seed before it was made.
        mesh: with an axis `pp`, and any of `AXES` beside it.
        plan: what the mesh does not say, as for `llama_plan.parallelize`.
        chunks: parts of the model a stage; more than one for an interleaved schedule.

    Returns:
        The stage: `parallel.pipeline_step` runs it, `parallel.layout(stage)` says along which axes
        batches differ.

    Raises:
        UsageError: another axis, fewer layers than parts, or what `llama_plan.refuse` refuses.

    Example:
        >>> import lockstep as ls
        >>> stage = cut(llama.Llama(llama.config("debug")), ls.mesh(pp=1))
        >>> stage.pipe.own, list(stage.layers)
        ([0], ['0', '1', '2', '3'])
    """
    plan = plan or llama_plan.Plan()
    register(mesh)
    sizes = {axis: axis_named(axis).size for axis in mesh.mesh_dim_names or ()}
    refuse_unknown(sizes, AXES, "a Llama in stages")
    if "pp" not in sizes:
        raise UsageError("a Llama in stages needs an axis pp", fix="ls.mesh(pp=2, dp=-1)")
    pipe = Pipe("pp", sizes.pop("pp"), mesh.get_local_rank("pp"), chunks)
    if model.config.layers < pipe.parts:
        raise UsageError(
            f"{model.config.layers} layers do not fill {pipe.parts} parts",
            got=f"pp={pipe.stages}, chunks={chunks}",
            fix="fewer stages or chunks, or more layers",
        )
    llama_plan.lay_out(model, sizes, plan)
    stage = LlamaStage(model, pipe, sizes["tp"] if plan.sequence else 1, plan.dtype)
    type_parameters(stage, {"*": {"pp": V}})
    for parameter in stage.shared() if pipe.at else ():
        mark_copy(parameter, "tok_embeddings.weight")  # which the first stage has
    stage.layout = model.layout
    if "tp" in sizes:
        stage.travels = {"tp": S(TOKENS) if plan.sequence else I}
    return stage


def _layers(count: int, parts: int, part: int) -> list[int]:
    """The layers of a part: as even as they go, the first parts one more."""
    least, more = divmod(count, parts)
    first = part * least + min(part, more)
    return list(range(first, first + least + (part < more)))
