"""Llama 3: a debug size that two cores train, and the published sizes."""

from __future__ import annotations

import importlib.util

from lockstep.models import llama
from lockstep.trainer.config import Data, Mesh, Optimizer, Schedule, TrainConfig


def debug() -> TrainConfig:
    """A small Llama on the help texts that ship with Python, byte by byte."""
    topics = importlib.util.find_spec("pydoc_data.topics")
    return TrainConfig(
        folder="train/llama3-debug",
        model=llama.config("debug"),
        data=Data(paths=(topics.origin or "",) if topics else (), batch=16, sequence=128),
        optimizer=Optimizer(lr=3e-3),
        schedule=Schedule(steps=200, warmup=20),
    )


def _1b() -> TrainConfig:
    """Llama 3.2 1B; the data are yours."""
    return _published("1b", lr=6e-4, mesh=Mesh())


def _8b() -> TrainConfig:
    """Llama 3.1 8B over 8 devices or more; the data are yours."""
    return _published("8b", lr=3e-4, mesh=Mesh(fsdp=8))


def _published(size: str, lr: float, mesh: Mesh) -> TrainConfig:
    return TrainConfig(
        folder=f"train/llama3-{size}",
        model=llama.config(size),
        mesh=mesh,
        data=Data(paths=("tokens.npy",), tokenizer="tokenizer.json", batch=128, sequence=8192),
        optimizer=Optimizer(lr=lr, precision="bf16"),
        schedule=Schedule(steps=100_000, warmup=2000),
    )
