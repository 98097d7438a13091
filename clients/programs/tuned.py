"""Fine-tuning's packages around a small Llama: peft's LoRA, accelerate's loop, trl's losses."""

from __future__ import annotations

import functools
from typing import Any

import torch
from accelerate import Accelerator
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from trl.models import create_reference_model
from trl.trainer.utils import selective_log_softmax

import lockstep as ls
from clients.program import Program, copies, draws, replicated
from clients.programs.decoders import TOKENS, VOCAB, llama, tokens
from clients.programs.decoders import step as plain_step


def lora() -> nn.Module:
    """A Llama whose attention gets low-rank updates; all else is frozen."""
    words: dict[str, Any] = dict(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"])
    model = get_peft_model(llama(), LoraConfig(lora_dropout=0.1, task_type="CAUSAL_LM", **words))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:  # as in the midst of a training: at first these are all zero
            nn.init.normal_(parameter, std=0.1)
    return model


@functools.cache
def accelerator() -> Accelerator:
    """The process' accelerator, as a script makes it once."""
    return Accelerator(cpu=True)


def prepared(mesh: Any) -> nn.Module:
    """A Llama as accelerate prepares it: by DDP."""
    model = accelerator().prepare(llama())
    ls.type_parameters(model, {"*norm.weight": {"dp": ls.I}})  # ones, as a shard might be
    return model


def prepared_step(model: nn.Module, ids: Tensor) -> Tensor:
    """A step of accelerate's loop; DDP reduces the gradients."""
    loss = ls.loss(model(input_ids=ids, labels=ids, use_cache=False).loss, dp="mean")
    accelerator().backward(loss)
    return loss


def unprepared() -> nn.Module:
    """A Llama that accelerate does not wrap."""
    accelerator()
    return llama()


def accelerated_step(model: nn.Module, ids: Tensor) -> Tensor:
    """accelerate's backward and clipping, of a model that it does not wrap."""
    loss = ls.loss(model(input_ids=ids, labels=ids, use_cache=False).loss, dp="mean")
    accelerator().backward(loss)
    ls.reduce_grads(model, dp="mean")
    accelerator().clip_grad_norm_(model.parameters(), 1.0)
    return loss


class Pair(nn.Module):
    """A policy, and trl's frozen copy of it."""

    def __init__(self) -> None:
        super().__init__()
        self.policy = llama()
        self.reference = create_reference_model(self.policy)
        for parameter in self.policy.parameters():  # as in the midst of a training
            parameter.data += 0.02 * torch.randn_like(parameter)


def preferences(mesh: Any, call: int) -> tuple[Tensor, ...]:
    """Chosen rows before rejected ones, and where the answers begin."""
    ids = torch.randint(VOCAB, (4, TOKENS), generator=draws(mesh, call))
    answers = (torch.arange(TOKENS) >= torch.tensor([[4], [6], [5], [7]])).long()
    return ids, answers


def answers_of(model: nn.Module, ids: Tensor, answers: Tensor) -> Tensor:
    """How likely each row's answer is, by trl's function."""
    logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
    told = selective_log_softmax(logits, ids[:, 1:])
    return (told * answers[:, 1:]).sum(1)


@replicated
def dpo(model: Pair, ids: Tensor, answers: Tensor) -> Tensor:
    """The loss of direct preference optimization."""
    with torch.no_grad():
        before = answers_of(model.reference, ids, answers)
    gained = answers_of(model.policy, ids, answers) - before
    chosen, rejected = gained.chunk(2)
    return -nn.functional.logsigmoid(0.1 * (chosen - rejected)).mean()


def groups(mesh: Any, call: int) -> tuple[Tensor, ...]:
    """Rows of two prompts, where the answers begin, and what each answer is worth."""
    ids, answers = preferences(mesh, call)
    return ids, answers, torch.randn(4, generator=draws(mesh, call + 7))


def _ratio(told: Tensor) -> Tensor:
    return (told - told.detach()).exp()


ratio = ls.intended(_ratio, reason="how likely beside the old policy, which is the present one")


@replicated
def grpo(model: nn.Module, ids: Tensor, answers: Tensor, worth: Tensor) -> Tensor:
    """A group-relative policy gradient on trl's log-probabilities."""
    by_group = worth.view(2, 2)
    gain = (by_group - by_group.mean(1, keepdim=True)) / (by_group.std(1, keepdim=True) + 1e-4)
    told = answers_of(model, ids, answers)
    return -(ratio(told) * gain.flatten()).mean()


PLAIN = copies(unprepared)
PROGRAMS = [
    Program("LoRA on a Llama", "peft", copies(lora), tokens, plain_step),
    Program("accelerate, model prepared", "accelerate", prepared, tokens, prepared_step),
    Program("accelerate, model as it is", "accelerate", PLAIN, tokens, accelerated_step),
    Program("DPO on a Llama", "trl", copies(Pair), preferences, dpo),
    Program("GRPO on a Llama", "trl", copies(llama), groups, grpo),
]
