"""A Llama cut in the stages of a pipeline: each rank along `pp` keeps its layers alone.

Parameters keep their names in the whole model, so that the files of the stages are parts of its
own: `layers.3.attention.wq.weight` lies on the stage that has layer 3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from lockstep.errors import UsageError
from lockstep.models import llama
from lockstep.parallel.divides import refuse_unknown
from lockstep.parallel.layout import Layout
from lockstep.parallel.pipeline import Pipe, Stage
from lockstep.parallel.placement import place
from lockstep.spmd.mesh import axis as axis_named
from lockstep.spmd.mesh import register
from lockstep.spmd.types import R, V

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

AXES = ("pp", "dp")


class LlamaStage(Stage):
    """The parts of a Llama that lie on one stage.

    Args:
        whole: the model that they are taken from; the stage holds the same parameters.
        pipe: which parts those are.
    """

    def __init__(self, whole: llama.Llama, pipe: Pipe) -> None:
        super().__init__(pipe)
        self.config, self.layers = whole.config, nn.ModuleDict()
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
        positions_T = torch.arange(x_BTD.shape[1], dtype=torch.float32, device=x.device)
        angles_TJ = torch.outer(positions_T, llama.rope_frequencies(self.config, x.device))
        cos_TJ, sin_TJ = angles_TJ.cos(), angles_TJ.sin()
        for at in self.held[part]:
            x_BTD = self.layers[str(at)](x_BTD, cos_TJ, sin_TJ)
        return self.output(self.norm(x_BTD)) if part == self.pipe.parts - 1 else x_BTD

    def empty(self, tokens_BT: Tensor) -> Tensor:
        """The form of the stream for these tokens."""
        weight = next(self.parameters())
        return weight.new_empty((*tokens_BT.shape, self.config.dim))


def cut(model: llama.Llama, mesh: DeviceMesh, *, chunks: int = 1) -> LlamaStage:
    """Keep of a Llama what this rank's stage along `pp` has; nothing communicates.

    Args:
        model: whole, and the same on every rank: the same seed before it was made.
        mesh: with an axis `pp`, and `dp` or none beside it.
        chunks: parts of the model a stage; more than one for an interleaved schedule.

    Returns:
        The stage: `parallel.pipeline_step` runs it, `parallel.layout(stage)` says along which axes
        batches differ.

    Raises:
        UsageError: another axis, tied weights, or fewer layers than parts.

    Example:
        >>> import lockstep as ls
        >>> stage = cut(llama.Llama(llama.config("debug")), ls.mesh(pp=1))
        >>> stage.pipe.own, list(stage.layers)
        ([0], ['0', '1', '2', '3'])
    """
    register(mesh)
    sizes = {axis: axis_named(axis).size for axis in mesh.mesh_dim_names or ()}
    refuse_unknown(sizes, AXES, "a Llama in stages")
    if "pp" not in sizes:
        raise UsageError("a Llama in stages needs an axis pp", fix="ls.mesh(pp=2, dp=-1)")
    pipe = Pipe("pp", sizes["pp"], mesh.get_local_rank("pp"), chunks)
    if model.config.tied and pipe.parts > 1:
        raise UsageError(
            "a Llama with tied weights cannot be cut in stages",
            why="the embedding and the output, which share their weight, lie on two of them",
            fix="config(..., tied=False)",
        )
    if model.config.layers < pipe.parts:
        raise UsageError(
            f"{model.config.layers} layers do not fill {pipe.parts} parts",
            got=f"pp={pipe.stages}, chunks={chunks}",
            fix="fewer stages or chunks, or more layers",
        )
    stage = LlamaStage(model, pipe)
    place(stage, {"*": {"pp": V, **({"dp": R} if "dp" in sizes else {})}})
    stage.layout = Layout(("dp",) if "dp" in sizes else ())
    return stage


def _layers(count: int, parts: int, part: int) -> list[int]:
    """The layers of a part: as even as they go, the first parts one more."""
    least, more = divmod(count, parts)
    first = part * least + min(part, more)
    return list(range(first, first + least + (part < more)))
