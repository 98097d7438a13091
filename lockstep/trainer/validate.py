"""A config is refused in one line before anything is started: no rank, no model, no file but
tokens of text."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path

from lockstep.errors import UsageError
from lockstep.models import llama
from lockstep.trainer.config import TrainConfig, data_ranks
from lockstep.trainer.data import open_windows, refuse_other_data
from lockstep.trainer.metrics import writer
from lockstep.trainer.saved import Saved, newest, read


def validated(config: TrainConfig, world: int) -> Saved | None:
    """Check all of a config for a number of ranks.

    Returns:
        The checkpoint that it goes on from; None for a fresh start.

    Raises:
        UsageError: with one line.
    """
    for wrong in (*_numbers(config), *_undivided(config, config.mesh.sizes(world))):
        raise UsageError(wrong)
    folder = Path(config.folder)
    _refuse_closed(folder)
    if config.metrics.tensorboard == "yes":
        writer(folder / "tensorboard").close()
    _, count = open_windows(config)
    saved = _resumed(config, folder / "checkpoints")
    if saved is not None:
        _refuse_other_model(saved, config.model)
        meaning = dict(sequences=count, sequence=config.data.sequence, seed=config.seed)
        refuse_other_data(saved.told["data"], {**meaning, "order": config.data.order})
    return saved


def _numbers(config: TrainConfig) -> Iterator[str]:
    data, told, schedule = config.data, config.optimizer, config.schedule
    least = {
        "data.batch": (data.batch, 1),
        "data.sequence": (data.sequence, 1),
        "data.micro_batches": (data.micro_batches, 1),
        "schedule.steps": (schedule.steps, 1),
        "schedule.warmup": (schedule.warmup, 0),
        "schedule.final": (schedule.final, 0),
        "optimizer.clip": (told.clip, 0),
        "optimizer.weight_decay": (told.weight_decay, 0),
        "metrics.every": (config.metrics.every, 1),
        "checkpoint.every": (config.checkpoint.every, 0),
        "checkpoint.keep": (config.checkpoint.keep, 0),
        "eval.every": (config.eval.every, 0),
        "eval.batches": (config.eval.batches, 1),
        "guard.spike": (config.guard.spike, 0),
        "seed": (config.seed, 0),
    }
    for name, (value, smallest) in least.items():
        if not value >= smallest:
            yield f"{name} {value:g} is less than {smallest}"
    shares = {"optimizer.beta1": told.beta1, "optimizer.beta2": told.beta2}
    for name, value in {**shares, "eval.part": config.eval.part}.items():
        if not 0 <= value < 1:
            yield f"{name} {value:g} is not from 0 to below 1"
    if not 0 < told.lr < float("inf"):
        yield f"optimizer.lr {told.lr:g} is no rate"
    if schedule.warmup > schedule.steps:
        yield f"schedule.warmup {schedule.warmup} is more than schedule.steps {schedule.steps}"


def _undivided(config: TrainConfig, sizes: dict[str, int]) -> Iterator[str]:
    """What the mesh does not divide."""
    model, data = config.model, config.data
    tp, cp = sizes.get("tp", 1), sizes.get("cp", 1)
    ranks, streams = data_ranks(sizes), config.mesh.sequence_parallel == "yes"
    rows = [
        ("model.heads", model.heads, "tp", tp),
        ("model.kv_heads", model.kv_heads, "tp", tp),
        ("model.ffn", model.ffn, "tp", tp),
        ("model.vocab", model.vocab, "tp", tp),
        ("data.sequence", data.sequence, "2 x cp", 2 * cp if cp > 1 else 1),
        ("data.sequence", data.sequence, "cp x tp", cp * tp if streams else 1),
        ("data.batch", data.batch, "data ranks", ranks),
    ]
    stages, chunks = sizes.get("pp", 1), config.mesh.chunks
    if chunks < 1 or (chunks > 1 and stages == 1):
        yield f"mesh.chunks {chunks} needs mesh.pp of 2 or more, and is 1 or more"
    if model.layers < stages * chunks:
        yield f"model.layers {model.layers} do not fill mesh.pp {stages} x mesh.chunks {chunks}"
    if chunks > 1 and data.micro_batches % stages:
        yield f"data.micro_batches {data.micro_batches} is not divided by mesh.pp {stages}"
    if streams and tp == 1:
        yield "mesh.sequence_parallel needs mesh.tp of 2 or more"
    for name, value, axis, size in rows:
        if value % size:
            yield f"{name} {value} is not divided by {axis} {size}"
    if data.batch % (ranks * data.micro_batches):
        by = f"{ranks} data rank(s) x {data.micro_batches} micro-batch(es)"
        yield f"data.batch {data.batch} is not divided by {by}"


def _refuse_closed(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"folder {folder} cannot be made: {error.strerror}") from None
    if not os.access(folder, os.W_OK):
        raise UsageError(f"folder {folder} cannot be written to")


def _resumed(config: TrainConfig, folder: Path) -> Saved | None:
    wanted = config.checkpoint.resume
    if wanted == "none":
        return None
    if wanted != "auto":
        return read(Path(wanted))
    return newest(folder)[0]


def _refuse_other_model(saved: Saved, model: llama.Config) -> None:
    for name, value in dataclasses.asdict(model).items():
        if saved.told["model"].get(name) != value:
            had = saved.told["model"].get(name)
            raise UsageError(f"checkpoint {saved.path} has model.{name} {had}, this config {value}")
