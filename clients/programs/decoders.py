"""transformers' decoders under data parallelism, as they come: Llama, GPT-2, Mixtral."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
)

from clients.program import Program, copies, draws, replicated

VOCAB, BATCH, TOKENS = 64, 2, 16
SMALL: dict[str, Any] = dict(
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=VOCAB,
    max_position_embeddings=32,
)


def tokens(mesh: Any, call: int) -> tuple[Tensor, ...]:
    """A rank's rows of tokens."""
    return (torch.randint(VOCAB, (BATCH, TOKENS), generator=draws(mesh, call)),)


def padded(mesh: Any, call: int) -> tuple[Tensor, ...]:
    """Rows of other lengths, padded on the left, with their mask."""
    (ids,) = tokens(mesh, call)
    lengths = torch.tensor([[TOKENS], [TOKENS - 3 - call]])
    mask = (torch.arange(TOKENS) >= TOKENS - lengths).long()
    return ids, mask


@replicated
def step(model: nn.Module, ids: Tensor, mask: Tensor | None = None) -> Tensor:
    """Next-token loss, as the package has it."""
    labels = ids if mask is None else ids.masked_fill(mask == 0, -100)
    return model(input_ids=ids, attention_mask=mask, labels=labels, use_cache=False).loss


@replicated
def autocast_step(model: nn.Module, ids: Tensor) -> Tensor:
    """The same in bfloat16, by autocast."""
    with torch.autocast("cpu", torch.bfloat16):
        return model(input_ids=ids, labels=ids, use_cache=False).loss


def llama(**words: Any) -> LlamaForCausalLM:
    """A small Llama of random weights."""
    return LlamaForCausalLM(LlamaConfig(**SMALL, **words))


def eager_attention() -> LlamaForCausalLM:
    """A Llama whose attention is written in plain products."""
    return llama(attn_implementation="eager")


def checkpointed() -> LlamaForCausalLM:
    """A Llama that computes each layer's activations again in the backward."""
    model = llama()
    model.gradient_checkpointing_enable()
    return model


def stretched(kind: str) -> LlamaForCausalLM:
    """A Llama whose rotary embedding is stretched, by the length of a batch or once for all."""
    return llama(rope_parameters=dict(rope_type=kind, factor=2.0, rope_theta=1e4))


def gpt2() -> GPT2LMHeadModel:
    """A small GPT-2, with dropout as it comes."""
    sizes: dict[str, Any] = dict(vocab_size=VOCAB, n_positions=32, n_embd=32, n_layer=2, n_head=4)
    return GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))


def mixtral(experts: str) -> MixtralForCausalLM:
    """A small Mixtral whose experts are computed in one of the package's ways."""
    routed: dict[str, Any] = dict(num_local_experts=4, num_experts_per_tok=2)
    config = MixtralConfig(**SMALL, **routed, experts_implementation=experts)
    return MixtralForCausalLM(config)


def hf(name: str, model: Any, batch: Any = tokens, **more: Any) -> Program:
    """A program of this package."""
    return Program(name, "transformers", copies(model), batch, step, **more)


PROGRAMS = [
    hf("Llama", llama, noted=True),
    hf("Llama, padded on the left", llama, padded),
    hf("Llama, eager attention, padded", eager_attention, padded),
    hf("Llama, layers checkpointed", checkpointed),
    hf("Llama, dynamic rotary embedding", lambda: stretched("dynamic")),
    hf("Llama, linear rotary embedding", lambda: stretched("linear")),
    replace(hf("Llama, eager attention, autocast", eager_attention), step=autocast_step),
    replace(hf("Llama, sdpa, autocast", llama), step=autocast_step),
    hf("GPT-2 with dropout", gpt2, noted=True),
    hf("Mixtral, batched experts", lambda: mixtral("batched_mm")),
    hf("Mixtral, experts in a loop", lambda: mixtral("eager")),
    hf("Mixtral, grouped experts", lambda: mixtral("grouped_mm")),
]
