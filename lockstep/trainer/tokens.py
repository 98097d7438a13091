"""From files to token arrays that are mapped into memory; text is tokenized once and kept."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.errors import UsageError
from lockstep.trainer.config import Data, TrainConfig

ARRAYS = (".npy", ".bin")
_KINDS = ("uint8", "uint16", "uint32", "int32", "int64")


def token_arrays(config: TrainConfig) -> list[np.ndarray]:
    """Return the tokens of every file, mapped into memory.

    Text is tokenized at the first call and kept in the config's folder; a changed file, or another
    tokenizer, is tokenized anew.

    Raises:
        UsageError: a missing, empty or foreign file, a tokenizer that cannot be used, or one with
            more tokens than the model.
    """
    data = config.data
    if not data.paths:
        raise UsageError("data.paths is empty: a training reads at least one file")
    for path in map(Path, data.paths):
        if not path.is_file():
            raise UsageError(f"data.paths: there is no file {path}")
    _refuse_small_vocabulary(data, config.model.vocab)
    folder = Path(config.folder) / "tokens"
    return [_tokens(Path(path), data.tokenizer, folder) for path in data.paths]


def _tokens(path: Path, tokenizer: str, folder: Path) -> np.ndarray:
    try:
        if path.suffix == ".bin":
            return np.memmap(path, dtype=np.uint16, mode="r")
        array = np.load(path if path.suffix == ".npy" else _kept(path, tokenizer, folder), "r")
    except (ValueError, OSError) as error:
        raise UsageError(f"data.paths: {path} cannot be read: {error}") from None
    if array.ndim != 1 or array.dtype.name not in _KINDS:
        got = f"{array.dtype.name}{list(array.shape)}"
        raise UsageError(f"data.paths: {path} holds {got}; tokens are one dimension of integers")
    return array


def _kept(path: Path, tokenizer: str, folder: Path) -> Path:
    """The array of a text file's tokens, made where it is not there yet."""
    stat = path.stat()
    said = [str(path.resolve()), str(stat.st_size), str(stat.st_mtime_ns), tokenizer]
    if tokenizer != "bytes":
        said.append(hashlib.sha256(Path(tokenizer).read_bytes()).hexdigest())
    name = hashlib.sha256("\n".join(said).encode()).hexdigest()[:16]
    kept = folder / f"{path.stem}-{name}.npy"
    if not kept.exists():
        folder.mkdir(parents=True, exist_ok=True)
        draft = folder / f".{kept.stem}-{os.getpid()}.npy"
        np.save(draft, _encoded(path, tokenizer))
        draft.replace(kept)  # ranks may do this side by side: each writes the same, whole
    return kept


def _encoded(path: Path, tokenizer: str) -> np.ndarray:
    if tokenizer == "bytes":
        return np.frombuffer(path.read_bytes(), dtype=np.uint8)
    made = _tokenizer(tokenizer)
    ids = made.encode(path.read_text()).ids
    return np.array(ids, dtype=np.uint16 if made.get_vocab_size() <= 1 << 16 else np.uint32)


def _refuse_small_vocabulary(data: Data, vocab: int) -> None:
    if all(Path(path).suffix in ARRAYS for path in data.paths):
        return  # looked at batch by batch
    need = 256 if data.tokenizer == "bytes" else _tokenizer(data.tokenizer).get_vocab_size()
    if need > vocab:
        raise UsageError(f"model.vocab {vocab} is less than the tokenizer's {need} tokens")


def _tokenizer(file: str) -> Any:
    if not Path(file).is_file():
        raise UsageError(f'data.tokenizer: there is no file {file}; "bytes" needs none')
    try:
        from tokenizers import Tokenizer
    except ImportError:
        need = "the package tokenizers: pip install 'torch-lockstep[train]'"
        raise UsageError(f"data.tokenizer {file} needs {need}") from None
    try:
        return Tokenizer.from_file(file)
    except Exception as error:  # the package raises plain exceptions
        raise UsageError(f"data.tokenizer: {file} is no tokenizer's file: {error}") from None
