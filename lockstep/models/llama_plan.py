"""How a Llama is laid out over a mesh: its placements, and which of its modules become parallel.

Axes by name, each optional: `dp` copies (R), `fsdp` shards of every parameter, `tp` columns, rows
and vocabulary, with `sequence` shards of the tokens between them, `cp` parts of each sequence. All
compose.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lockstep.errors import UsageError
from lockstep.models import llama
from lockstep.parallel.become import become
from lockstep.parallel.context import causal_attention, own_positions
from lockstep.parallel.divides import Divided, refuse_uneven, refuse_unknown
from lockstep.parallel.fully_sharded import fully_shard
from lockstep.parallel.layout import Layout
from lockstep.parallel.placement import Table, place
from lockstep.parallel.precision import compute_in
from lockstep.parallel.recompute import recompute
from lockstep.parallel.sequence import Stream, entering
from lockstep.parallel.tensor import row, vocab_embedding
from lockstep.spmd.mesh import axis as axis_named
from lockstep.spmd.mesh import register
from lockstep.spmd.types import I, R, S

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

AXES = ("dp", "fsdp", "cp", "tp")
DATA = ("dp", "fsdp")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a mesh does not say by itself."""

    sequence: bool = False
    """Whether the stream between tensor-parallel regions is a shard of the tokens."""
    regather: bool = False
    """Whether `fsdp` gathers matrices anew in the backward, rather than keeping them."""
    recompute: bool = False
    """Whether each block is computed anew in the backward, rather than keeping its activations."""
    dtype: torch.dtype | None = None
    """What to compute in, such as bfloat16; parameters and reductions keep their own."""


def table(sizes: Mapping[str, int]) -> Table:
    """Return the placement of every parameter along the axes of a mesh, but for `fsdp`'s S(0)."""
    rows: dict[str, dict[str, object]] = {
        "*": {"dp": R, "cp": R},
        "*norm.weight": {"tp": I},
        **{f"*.{name}.weight": {"tp": S(0)} for name in ("wq", "wk", "wv", "w1", "w3")},
        **{f"*.{name}.weight": {"tp": S(1)} for name in ("wo", "w2")},
        "tok_embeddings.weight": {"tp": S(0)},
        "output.weight": {"tp": S(0)},
    }
    return {
        pattern: {axis: kind for axis, kind in types.items() if axis in sizes}  # type: ignore[misc]
        for pattern, types in rows.items()
    }


def refuse(
    config: llama.Config,
    sizes: Mapping[str, int],
    plan: Plan,
    *,
    batch: int | None = None,
    tokens: int | None = None,
) -> None:
    """Refuse a mesh that does not divide a model or its batches; needs no process group.

    Args:
        config: the model's.
        sizes: axis -> ranks.
        plan: as for `parallelize`.
        batch: sequences of the whole job a step, where known.
        tokens: of one sequence, where known.

    Raises:
        UsageError: an axis that no plan has, sequence parallelism without `tp`, or what does not
            divide.
    """
    refuse_unknown(sizes, AXES, "a Llama")
    if plan.sequence and "tp" not in sizes:
        raise UsageError("sequence parallelism needs an axis tp", fix="ls.mesh(dp=-1, tp=2)")
    tp, cp = sizes.get("tp", 1), sizes.get("cp", 1)
    data = math.prod(sizes.get(axis, 1) for axis in DATA)
    over = " x ".join(f"{axis}={sizes[axis]}" for axis in DATA if axis in sizes)
    asked = [
        Divided("heads", config.heads, tp, f"tp={tp}"),
        Divided("kv_heads", config.kv_heads, tp, f"tp={tp}"),
        Divided("ffn", config.ffn, tp, f"tp={tp}"),
        Divided("vocab", config.vocab, tp, f"tp={tp}"),
    ]
    if batch is not None:
        asked.append(Divided("sequences a step", batch, data, over))
    if tokens is not None:
        parts = 2 * cp if "cp" in sizes else 1
        asked.append(Divided("tokens a sequence", tokens, parts, f"cp={cp}, in two chunks a rank,"))
        if plan.sequence and not tokens % parts:
            asked.append(Divided("tokens a sequence", tokens // cp, tp, f"tp={tp}"))
    refuse_uneven(asked)


def parallelize(model: llama.Llama, mesh: DeviceMesh, plan: Plan | None = None) -> llama.Llama:
    """Lay a Llama out over a mesh, in place; nothing communicates.

    Args:
        model: whole, and the same on every rank: the same seed before it was made.
        mesh: with axes of the names above, in any order.
        plan: what the mesh does not say.

    Returns:
        The model: `parallel.layout(model)` says what a step has to know of it, and
        `parallel.placements(model)` how its parameters lie.

    Raises:
        UsageError: as `refuse`.

    Example:
        >>> import lockstep as ls
        >>> made = parallelize(llama.Llama(llama.config("debug", layers=1)), ls.mesh(dp=-1))
        >>> made.layout.data
        ('dp',)
    """
    register(mesh)
    sizes = {axis: axis_named(axis).size for axis in mesh.mesh_dim_names or ()}
    return lay_out(model, sizes, plan or Plan())


def lay_out(model: llama.Llama, sizes: Mapping[str, int], plan: Plan) -> llama.Llama:
    """Do what `parallelize` does along some axes of a mesh that is made, whatever others it has.

    Args:
        model: as for `parallelize`.
        sizes: axis -> ranks, of those axes.
        plan: what they do not say.

    Raises:
        UsageError: as `refuse`.
    """
    refuse(model.config, sizes, plan)
    place(model, table(sizes))
    if "tp" in sizes:
        _tensor(model, Stream("tp", plan.sequence))
    if "cp" in sizes:
        for block in model.layers:
            become(block.attention, ContextAttention, axis="cp", config=model.config)
    if "fsdp" in sizes:
        fully_shard(model, "fsdp", dtype=plan.dtype, regather=plan.regather)
    elif plan.dtype is not None:
        compute_in(model, plan.dtype)
    if plan.recompute:
        for block in model.layers:
            recompute(block)
    data = tuple(axis for axis in DATA if axis in sizes)
    tensor = "tp" if "tp" in sizes else None
    model.layout = Layout(data, tensor, "cp" if "cp" in sizes else None)
    return model


def _tensor(model: llama.Llama, stream: Stream) -> None:
    """Columns stay plain linear layers; what reads and writes the stream becomes parallel."""
    vocab_embedding(model.tok_embeddings, stream)
    for block in model.layers:
        entering(block.attention_norm, stream)
        entering(block.ffn_norm, stream)
        row(block.attention.wo, stream)
        row(block.feed_forward.w2, stream)
    entering(model.norm, stream)


class ContextAttention(llama.Attention):
    """Attention of this rank's tokens, whose angles are those of their places in the sequence."""

    axis: str
    config: llama.Config

    def forward(self, x_BTD: Tensor, _cos_TJ: Tensor, _sin_TJ: Tensor) -> Tensor:
        """Return what each token reads from itself and those before it, like `x_BTD`."""
        tokens = x_BTD.shape[1] * axis_named(self.axis).size
        positions_T = own_positions(tokens, self.axis, x_BTD.device).float()
        angles_TJ = torch.outer(positions_T, llama.rope_frequencies(self.config, x_BTD.device))
        cos_TJ, sin_TJ = angles_TJ.cos(), angles_TJ.sin()
        heads = (-1, self.head_dim)
        q_BTHK = llama.rotate(self.wq(x_BTD).unflatten(-1, heads), cos_TJ, sin_TJ)
        k_BTGK = llama.rotate(self.wk(x_BTD).unflatten(-1, heads), cos_TJ, sin_TJ)
        v_BTGK = self.wv(x_BTD).unflatten(-1, heads)
        q_BHTK, k_BGTK, v_BGTK = (x.transpose(1, 2) for x in (q_BTHK, k_BTGK, v_BTGK))
        read_BHTK = causal_attention(q_BHTK, k_BGTK, v_BGTK, self.axis)
        return self.wo(read_BHTK.transpose(1, 2).flatten(-2))
