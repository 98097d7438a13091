"""`transformers`' Llama and Mixtral under data parallelism, as they come from the package."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM

import lockstep as ls
from tests.clients.program import Program

VOCAB, BATCH, TOKENS = 32, 4, 8
SMALL: dict[str, Any] = dict(
    hidden_size=16,
    intermediate_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=VOCAB,
    max_position_embeddings=32,
    use_cache=False,
)


def llama() -> torch.nn.Module:
    """A small Llama of random weights."""
    return LlamaForCausalLM(LlamaConfig(**SMALL))


def mixtral() -> torch.nn.Module:
    """A small Mixtral, its experts as batched products: other ways read values in Python."""
    experts: dict[str, Any] = dict(num_local_experts=4, num_experts_per_tok=2)
    return MixtralForCausalLM(
        MixtralConfig(**SMALL, **experts, experts_implementation="batched_mm")
    )


def step(model: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
    """One step on this rank's rows."""
    loss = ls.loss(model(input_ids=ids, labels=ids, use_cache=False).loss, dp="mean")
    loss.backward()
    ls.reduce_grads(model, dp="mean")
    return loss


def program(name: str, build: Callable[[], torch.nn.Module]) -> Program:
    """Return a model as a program: whole on every rank, with rows of its own."""

    def make(mesh: Any) -> tuple[Any, ...]:
        model = build().train()
        ls.type_parameters(model, {"*": {"dp": ls.R}})
        ids = torch.randint(VOCAB, (BATCH, TOKENS), generator=torch.Generator().manual_seed(1))
        return model, ids.chunk(mesh.size())[mesh.get_rank()]

    return Program(name, {"dp": 2}, step, make, ("dp",))


PROGRAMS = [
    program("transformers Llama", llama),
    program("transformers Mixtral", mixtral),
]
