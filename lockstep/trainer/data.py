"""Batches of a rank: shuffled, the same set a step whatever the ranks, resumable to the token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from lockstep.errors import UsageError
from lockstep.trainer.config import Data, TrainConfig
from lockstep.trainer.shuffle import shuffled
from lockstep.trainer.tokens import token_arrays


class Windows:
    """Token arrays cut into sequences; each comes with the token that follows it.

    Args:
        arrays: of integers; no sequence goes over the end of one.
        length: tokens of a sequence.

    Example:
        >>> windows = Windows([np.arange(10), np.arange(4)], 3)
        >>> len(windows), windows[2].tolist(), windows[3].tolist()
        (4, [6, 7, 8, 9], [0, 1, 2, 3])
    """

    def __init__(self, arrays: Sequence[np.ndarray], length: int) -> None:
        self.arrays, self.length = arrays, length
        counts = [max(len(array) - 1, 0) // length for array in arrays]
        self._ends = np.cumsum(counts)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __getitem__(self, index: int) -> np.ndarray:
        """Return i64[length + 1], a copy."""
        file = int(np.searchsorted(self._ends, index, side="right"))
        first = (index - (int(self._ends[file - 1]) if file else 0)) * self.length
        return self.arrays[file][first : first + self.length + 1].astype(np.int64)


class Batches:
    """What one rank reads of each step.

    A step takes the next `data.batch` sequences of the order, and each data rank its part of them:
    other ranks or micro-batches divide the same sequences.

    Args:
        windows: all sequences.
        first, count: which of them are used.
        data: the config; its batch is divided by ranks times micro-batches.
        seed: of the order.
        rank, ranks: this rank's place along the data axes.
        vocab: tokens have to be below it.
    """

    def __init__(
        self,
        windows: Windows,
        first: int,
        count: int,
        data: Data,
        *,
        seed: int,
        rank: int,
        ranks: int,
        vocab: int,
    ) -> None:
        self.windows, self.first, self.count = windows, first, count
        self.data, self.seed, self.vocab = data, seed, vocab
        self.position = 0  # sequences that all ranks have read so far
        rows = data.batch // (ranks * data.micro_batches)
        own = np.arange(data.batch).reshape(data.micro_batches, ranks, rows)[:, rank]
        self._own = own

    def next(self) -> torch.Tensor:
        """Return the next step's tokens, i64[micro-batches, rows, sequence + 1]."""
        places = self.position + self._own
        self.position += self.data.batch
        indices = self._indices(places.reshape(-1))
        tokens = np.stack([self.windows[int(index)] for index in indices])
        if tokens.min() < 0 or tokens.max() >= self.vocab:
            wrong = int(tokens.max()) if tokens.max() >= self.vocab else int(tokens.min())
            raise UsageError(f"the data hold token {wrong}; the model has {self.vocab}")
        return torch.from_numpy(tokens).view(*places.shape, -1)

    def _indices(self, places: np.ndarray) -> np.ndarray:
        epochs, within = np.divmod(places, self.count)
        if self.data.order == "shuffled":
            for epoch in np.unique(epochs):
                here = epochs == epoch
                within[here] = shuffled(within[here], self.count, self.seed + int(epoch))
        return within + self.first

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps: the position, and what gives it a meaning."""
        return {"position": self.position, **self.meaning()}

    def meaning(self) -> dict[str, Any]:
        """Return what has to be the same for a position to mean the same sequence."""
        order, sequence = self.data.order, self.data.sequence
        return {"sequences": self.count, "sequence": sequence, "seed": self.seed, "order": order}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint's state.

        Raises:
            UsageError: the data or their order are others.
        """
        refuse_other_data(state, self.meaning())
        self.position = state["position"]


def refuse_other_data(state: dict[str, Any], meaning: dict[str, Any]) -> None:
    """Raise where a checkpoint's position would mean other sequences now.

    Raises:
        UsageError: names what differs.
    """
    for name, value in meaning.items():
        if state[name] != value:
            raise UsageError(f"the checkpoint's data had {name} {state[name]!r}, these {value!r}")


def open_windows(config: TrainConfig) -> tuple[Windows, int]:
    """Return all sequences, and how many of them, from the start, are trained on.

    Raises:
        UsageError: files that cannot be read, or data shorter than one batch.
    """
    data, held = config.data, config.eval
    windows = Windows(token_arrays(config), data.sequence)
    out = round(len(windows) * held.part) if held.every else 0
    if held.every and out < data.batch:
        told = f"eval.part {held.part:g} holds out {out} sequence(s) of {len(windows)}"
        raise UsageError(f"{told}; one batch has {data.batch}")
    if len(windows) - out < data.batch:
        there = f"the data hold {len(windows) - out} sequence(s) of {data.sequence} tokens"
        raise UsageError(f"{there}; one batch has {data.batch}")
    return windows, len(windows) - out
