"""megatron-core under tensor parallelism: its MLP, transformer layer and GPT, as they come."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.distributed.finalize_model_grads import (
    _allreduce_non_tensor_model_parallel_grads as reduce_unsharded_grads,
)
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from megatron.core.tensor_parallel import mappings as to
from megatron.core.transformer import TransformerConfig, TransformerLayer
from megatron.core.transformer.mlp import MLP, MLPSubmodules
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from torch import Tensor, nn

from clients.program import Program, draws
from clients.shims import megatron as shim

TOKENS, BATCH, WIDE, VOCAB = 8, 2, 16, 32


def config(ranks: int, sequence: bool) -> TransformerConfig:
    """A small one, without fused kernels and dropout."""
    return TransformerConfig(
        num_layers=2,
        hidden_size=WIDE,
        ffn_hidden_size=2 * WIDE,
        num_attention_heads=4,
        tensor_model_parallel_size=ranks,
        sequence_parallel=sequence and ranks > 1,
        use_cpu_initialization=True,
        gradient_accumulation_fusion=False,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
    )


class Norm(nn.LayerNorm):
    """A norm for the package's specs, whose own wants a fused kernel where tokens are divided."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-5) -> None:
        super().__init__(hidden_size, eps)
        for parameter in self.parameters():
            parameter.sequence_parallel = config.sequence_parallel


def spec() -> ModuleSpec:
    """The package's own layer of local parts, with that norm."""
    made = get_gpt_layer_local_spec()
    made.submodules.input_layernorm = made.submodules.pre_mlp_layernorm = Norm
    return made


class Around(nn.Module):
    """A layer of the package between a mean square, its tokens divided where it wants them so."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.config = layer, layer.config
        self.ddp_config = SimpleNamespace(use_megatron_fsdp=False)
        self.first = nn.Linear(WIDE, WIDE)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.first(x)
        if self.config.sequence_parallel:
            h = to.scatter_to_sequence_parallel_region(h)
        h = self.inner(h)
        if self.config.sequence_parallel:
            h = to.gather_from_sequence_parallel_region(h, tensor_parallel_output_grad=False)
        return nn.functional.mse_loss(h, y)


class AroundMlp(Around):
    """The package's MLP, which hands its last bias back."""

    def inner(self, h: Tensor) -> Tensor:
        out, bias = self.layer(h)
        return h + out + bias


class AroundLayer(Around):
    """The package's transformer layer, causal."""

    def inner(self, h: Tensor) -> Tensor:
        later = torch.ones(TOKENS, TOKENS, dtype=torch.bool, device=h.device).triu(1)
        out, _context = self.layer(h, attention_mask=later[None, None])
        return out


def mlp(told: TransformerConfig) -> nn.Module:
    """The package's MLP."""
    parts = MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear)
    return AroundMlp(MLP(told, parts, ffn_hidden_size=2 * WIDE))


def layer(told: TransformerConfig) -> nn.Module:
    """The package's transformer layer of its own parts."""
    return AroundLayer(TransformerLayer(told, spec().submodules))


def gpt(told: TransformerConfig) -> nn.Module:
    """The package's GPT, embedding and output divided by vocabulary."""
    parts = TransformerBlockSubmodules([spec() for _ in range(told.num_layers)], layer_norm=Norm)
    model = GPTModel(told, parts, VOCAB, max_sequence_length=TOKENS)
    model.ddp_config = SimpleNamespace(use_megatron_fsdp=False)
    return model


def vectors(mesh: Any, call: int) -> tuple[Tensor, ...]:
    """Inputs and what they are to become: the same on all ranks."""
    pair = torch.randn(2, TOKENS, BATCH, WIDE, generator=draws(mesh, call))
    return tuple(pair.unbind(0))


def words(mesh: Any, call: int) -> tuple[Tensor, ...]:
    """Tokens, positions, the mask of what comes later, and labels."""
    ids = torch.randint(VOCAB, (2, BATCH, TOKENS), generator=draws(mesh, call))
    later = torch.ones(1, 1, TOKENS, TOKENS, dtype=torch.bool).triu(1)
    return ids[0], torch.arange(TOKENS).expand(BATCH, -1).contiguous(), later, ids[1]


def step(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """One step; what sequence parallelism leaves pending is reduced as in the package."""
    return after(net, net(x, y))


def gpt_step(net: nn.Module, ids: Tensor, places: Tensor, later: Tensor, labels: Tensor) -> Tensor:
    """One step of the package's GPT."""
    return after(net, net(ids, places, later, labels=labels).mean())


def after(net: nn.Module, loss: Tensor) -> Tensor:
    """The backward, and the reductions that the package's training loop does after it."""
    loss.backward()
    reduce_unsharded_grads([net], net.config, parallel_state.get_tensor_model_parallel_group())
    return loss


def program(name: str, build: Any, sequence: bool, **more: Any) -> Program:
    """A net as a program of two tensor-parallel ranks."""

    def make(mesh: Any) -> nn.Module:
        shim.start(mesh.size())
        return build(config(mesh.size(), sequence))

    own: dict[str, Any] = dict(batch=vectors, step=step, mesh={"tp": 2}, data=(), **more)
    if build is gpt:
        own |= dict(batch=words, step=gpt_step)
    way = "with sequence parallelism" if sequence else "tensor parallelism"
    return Program(f"Megatron {name}, {way}", "megatron-core", make, **own)


PROGRAMS = [
    program("MLP", mlp, False, noted=True),
    program("MLP", mlp, True, noted=True),
    program("transformer layer", layer, False),
    program("transformer layer", layer, True),
    program("GPT", gpt, False),
    program("GPT", gpt, True),
]
