"""megatron-core's layers as they come from its package, with and without sequence parallelism."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core import parallel_state
from megatron.core.distributed.finalize_model_grads import (
    _allreduce_non_tensor_model_parallel_grads as reduce_unsharded_grads,
)
from megatron.core.model_parallel_config import ModelParallelConfig
from megatron.core.tensor_parallel import (
    ColumnParallelLinear,
    RowParallelLinear,
    VocabParallelEmbedding,
    set_tensor_model_parallel_attributes,
    vocab_parallel_cross_entropy,
)
from megatron.core.tensor_parallel import mappings as to
from torch import Tensor, nn

from tests.clients import shim
from tests.clients.program import Program

TOKENS, BATCH, WIDE, FFN, VOCAB = 8, 2, 16, 32, 32


def normal(weight: Tensor) -> None:
    """Initialise a weight."""
    nn.init.normal_(weight, std=0.2)


class Net(nn.Module):
    """What the layers of one program share."""

    def __init__(self, ranks: int, sequence: bool) -> None:
        super().__init__()
        self.sequence = sequence and ranks > 1
        self.config = ModelParallelConfig(
            tensor_model_parallel_size=ranks,
            sequence_parallel=self.sequence,
            use_cpu_initialization=True,
            gradient_accumulation_fusion=False,
        )
        self.config.qk_layernorm = False  # what the reduction below asks of a whole model
        self.ddp_config = SimpleNamespace(use_megatron_fsdp=False)

    def column(self, features: int, gather: bool = False) -> ColumnParallelLinear:
        """Return a linear layer whose outputs are divided."""
        words = dict(config=self.config, init_method=normal, bias=True)
        return ColumnParallelLinear(WIDE, features, gather_output=gather, **words)

    def row(self, parallel: bool = True) -> RowParallelLinear:
        """Return a linear layer whose inputs are divided."""
        words = dict(config=self.config, init_method=normal, bias=True, skip_bias_add=False)
        return RowParallelLinear(FFN, WIDE, input_is_parallel=parallel, **words)

    def norm(self, kind: type[nn.Module] = nn.LayerNorm) -> nn.Module:
        """Return a norm, marked as the package marks its own."""
        made = kind(WIDE)
        for parameter in made.parameters():
            parameter.sequence_parallel = self.sequence
        return made


class Mlp(Net):
    """Norm, column, gelu, row, beside a residual, after a layer that is whole on each rank."""

    def __init__(self, ranks: int, sequence: bool) -> None:
        super().__init__(ranks, sequence)
        self.first = nn.Linear(WIDE, WIDE)
        self.ln, self.up, self.down = self.norm(), self.column(FFN), self.row()

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = self.first(x)
        if self.sequence:
            x = to.scatter_to_sequence_parallel_region(x)
        h, _ = self.up(self.ln(x))
        h, _ = self.down(F.gelu(h))
        h = x + h
        if self.sequence:
            h = to.gather_from_sequence_parallel_region(h, tensor_parallel_output_grad=False)
        return F.mse_loss(h, y)


class Whole(Net):
    """Column whose output is gathered, softmax, row that divides its input."""

    def __init__(self, ranks: int, sequence: bool) -> None:
        super().__init__(ranks, sequence)
        self.ln, self.up, self.down = self.norm(), self.column(FFN, gather=True), self.row(False)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h, _ = self.up(self.ln(x))
        h, _ = self.down(h.softmax(-1))
        return F.mse_loss(x + h, y)


class Frozen(Net):
    """As Mlp, its column layer frozen: the package takes another way then."""

    def __init__(self, ranks: int, sequence: bool) -> None:
        super().__init__(ranks, sequence)
        self.ln, self.up, self.down = self.norm(), self.column(FFN), self.row()
        self.up.requires_grad_(False)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        if self.sequence:
            x = to.scatter_to_sequence_parallel_region(x)
        h, _ = self.up(self.ln(x))
        h, _ = self.down(F.gelu(h))
        if self.sequence:
            h = to.gather_from_sequence_parallel_region(h, tensor_parallel_output_grad=False)
        return F.mse_loss(h, y)


class Language(Net):
    """Embedding, norm, column, gelu, row, norm, output, cross entropy; vocabulary divided."""

    def __init__(self, ranks: int, sequence: bool) -> None:
        super().__init__(ranks, sequence)
        self.embedding = VocabParallelEmbedding(
            VOCAB,
            WIDE,
            init_method=normal,
            reduce_scatter_embeddings=self.sequence,
            config=self.config,
        )
        self.ln, self.up, self.down = self.norm(), self.column(FFN), self.row()
        self.last, self.output = self.norm(nn.RMSNorm), self.column(VOCAB)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        x = self.embedding(tokens)
        if not self.sequence:
            x = x.transpose(0, 1)
        h, _ = self.up(self.ln(x))
        h, _ = self.down(F.gelu(h))
        logits, _ = self.output(self.last(x + h))
        return vocab_parallel_cross_entropy(logits, labels.transpose(0, 1).contiguous()).mean()


class Mappings(Net):
    """Every mapping of the package, called by itself."""

    def __init__(self, ranks: int, sequence: bool) -> None:
        super().__init__(ranks, sequence)
        self.first, rank = nn.Linear(WIDE, WIDE), torch.distributed.get_rank()
        whole = torch.randn(2, WIDE, FFN)
        self.up = nn.Parameter(whole[0].chunk(ranks, 1)[rank].clone())
        self.down = nn.Parameter(whole[1].T.chunk(ranks, 0)[rank].clone())
        set_tensor_model_parallel_attributes(self.up, True, 1, 1)
        set_tensor_model_parallel_attributes(self.down, True, 0, 1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = to.copy_to_tensor_model_parallel_region(self.first(x)) @ self.up
        h = to.gather_from_tensor_model_parallel_region(h).softmax(-1)
        h = to.scatter_to_tensor_model_parallel_region(h) @ self.down
        x = to.reduce_from_tensor_model_parallel_region(h)
        h = to.scatter_to_sequence_parallel_region(x).tanh()
        h = to.gather_from_sequence_parallel_region(h) @ self.up
        h = to.reduce_scatter_to_sequence_parallel_region(h.tanh() @ self.down)
        tokens = to.all_to_all_sp2hp(h).softmax(0)
        h = to.all_to_all_hp2sp(tokens).view(h.shape)
        x = to.gather_from_sequence_parallel_region(h, tensor_parallel_output_grad=False)
        h = to.scatter_to_tensor_model_parallel_region(x).tanh()
        h = to.all_gather_last_dim_from_tensor_parallel_region(h) @ self.up
        h = to.reduce_scatter_last_dim_to_tensor_parallel_region(h.tanh() @ self.down)
        return F.mse_loss(to.gather_from_tensor_model_parallel_region(h), y)


def step(net: Net, x: Tensor, y: Tensor) -> Tensor:
    """One step; what sequence parallelism leaves pending is reduced as in the package."""
    loss = net(x, y)
    loss.backward()
    reduce_unsharded_grads([net], net.config, parallel_state.get_tensor_model_parallel_group())
    return loss


def program(name: str, kind: type[Net], sequence: bool) -> Program:
    """Return a net as a program of two tensor-parallel ranks."""

    def make(mesh: Any) -> tuple[Any, ...]:
        shim.start(mesh.size())
        net, drawn = kind(mesh.size(), sequence), torch.Generator().manual_seed(5)
        if kind is Language:
            pair = torch.randint(VOCAB, (2, BATCH, TOKENS), generator=drawn)
        else:
            pair = torch.randn(2, TOKENS, BATCH, WIDE, generator=drawn)
        return net, *pair.unbind(0)

    way = "sp" if sequence else "no sp"
    return Program(f"megatron-core {name}, {way}", {"tp": 2}, step, make)


BOTH = {"column, row": Mlp, "frozen column, row": Frozen, "vocabulary": Language}
PROGRAMS = [
    *(program(name, kind, sequence) for name, kind in BOTH.items() for sequence in (False, True)),
    program("gathered column, row", Whole, False),  # the package has none with sequence parallelism
    program("mappings", Mappings, False),
]
