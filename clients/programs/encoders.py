"""transformers' encoders and encoder-decoders under data parallelism: BERT, ViT, T5."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTForImageClassification,
)

from clients.program import Program, copies, draws, replicated

VOCAB, BATCH, TOKENS, PIXELS, CLASSES = 64, 2, 12, 32, 5
KIND = "single_label_classification"  # else its loss writes it into the config
NARROW: dict[str, Any] = dict(
    hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4
)


def bert() -> nn.Module:
    """A small BERT with its head for masked words."""
    return BertForMaskedLM(BertConfig(vocab_size=VOCAB, max_position_embeddings=32, **NARROW))


def t5() -> nn.Module:
    """A small T5, encoder and decoder."""
    narrow: dict[str, Any] = dict(d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4)
    return T5ForConditionalGeneration(
        T5Config(vocab_size=VOCAB, decoder_start_token_id=0, pad_token_id=0, **narrow)
    )


def vit(kind: str | None = KIND) -> nn.Module:
    """A small ViT with its classifier."""
    words = dict(image_size=PIXELS, patch_size=8, num_labels=CLASSES, problem_type=kind)
    return ViTForImageClassification(ViTConfig(**words, **NARROW))


def masked(mesh: Any, call: int) -> tuple[Tensor, ...]:
    """Rows of words, some of them to be guessed."""
    draw = draws(mesh, call)
    ids = torch.randint(1, VOCAB, (BATCH, TOKENS), generator=draw)
    hidden = torch.rand(BATCH, TOKENS, generator=draw) < 0.3
    hidden[:, 0] = True
    present = torch.ones_like(ids)
    present[-1, -3:] = 0
    return ids.masked_fill(hidden, 0), present, ids.masked_fill(~hidden, -100)


def images(mesh: Any, call: int) -> tuple[Tensor, ...]:
    """Pictures and their classes."""
    draw = draws(mesh, call)
    pixels = torch.randn(BATCH, 3, PIXELS, PIXELS, generator=draw)
    return pixels, torch.randint(CLASSES, (BATCH,), generator=draw)


@replicated
def of_words(model: nn.Module, ids: Tensor, present: Tensor, labels: Tensor) -> Tensor:
    """The package's own loss of words."""
    return model(input_ids=ids, attention_mask=present, labels=labels).loss


@replicated
def of_images(model: nn.Module, pixels: Tensor, labels: Tensor) -> Tensor:
    """The package's own loss of classes."""
    return model(pixel_values=pixels, labels=labels).loss


def hf(name: str, model: Any, batch: Any, step: Any) -> Program:
    """A program of this package."""
    return Program(name, "transformers", copies(model), batch, step)


PROGRAMS = [
    hf("BERT", bert, masked, of_words),
    hf("T5", t5, masked, of_words),
    hf("ViT", vit, images, of_images),
    hf("ViT, its problem type not told", lambda: vit(None), images, of_images),
]
