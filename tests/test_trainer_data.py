"""What ranks read: every sequence once an epoch, the same a step on any ranks, from any place."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lockstep.configs import find
from lockstep.errors import UsageError
from lockstep.trainer.config import Data, TrainConfig
from lockstep.trainer.data import Batches, Windows
from lockstep.trainer.shuffle import shuffled
from lockstep.trainer.tokens import token_arrays

WINDOWS = Windows([np.arange(60, dtype=np.uint8), np.arange(100, 130, dtype=np.uint8)], 4)


@pytest.mark.parametrize("count", [1, 2, 3, 17, 1000])
def test_a_shuffled_order_is_a_permutation_and_another_seed_another(count):
    places = np.arange(count)
    one, other = shuffled(places, count, 1), shuffled(places, count, 2)
    assert sorted(one.tolist()) == list(range(count))
    assert (one[::-1] == shuffled(places[::-1], count, 1)).all()
    assert count < 17 or (one.tolist() != other.tolist() and one.tolist() != places.tolist())


def readers(ranks: int, micro: int = 1, order: str = "shuffled") -> list[Batches]:
    data = Data(paths=(), batch=4, sequence=4, micro_batches=micro, order=order)
    how = {"seed": 3, "ranks": ranks, "vocab": 200}
    return [Batches(WINDOWS, 0, len(WINDOWS), data, rank=rank, **how) for rank in range(ranks)]


def firsts(ranks: list[Batches]) -> list[int]:
    """The first token of every sequence that all ranks read in a step, sorted."""
    parts = [reader.next() for reader in ranks]
    return sorted(torch.cat([part[..., 0].flatten() for part in parts]).tolist())


def test_a_step_reads_the_same_sequences_on_any_ranks_and_micro_batches():
    divided = [readers(1), readers(2), readers(4), readers(2, micro=2)]
    for _ in range(11):  # over the end of an epoch
        one, *others = [firsts(ranks) for ranks in divided]
        assert others == [one, one, one]


def test_an_epoch_reads_every_sequence_once_and_the_next_in_another_order():
    (reader,) = readers(1)
    assert len(WINDOWS) == 14 + 7
    read = torch.cat([reader.next().flatten(0, 1)[:, 0] for _ in range(21)]).tolist()
    epochs = [read[start : start + 21] for start in range(0, 84, 21)]
    assert all(sorted(epoch) == sorted(epochs[0]) for epoch in epochs)
    assert len(set(epochs[0])) == 21 and epochs[0] != epochs[1]


def test_it_goes_on_where_a_state_says_and_refuses_another_meaning():
    (reader,) = readers(1)
    for _ in range(7):
        reader.next()
    state = reader.state()
    expected = firsts([reader])
    two = readers(2)
    for other in two:
        other.load(state)
    assert firsts(two) == expected
    with pytest.raises(UsageError, match="data had order 'shuffled', these 'as is'"):
        readers(1, order="as is")[0].load(state)


def test_a_token_that_the_model_does_not_have_is_refused():
    data = Data(paths=(), batch=21, sequence=4)
    reader = Batches(WINDOWS, 0, 21, data, seed=0, rank=0, ranks=1, vocab=128)
    with pytest.raises(UsageError, match="the data hold token 128; the model has 128"):
        reader.next()


def config(folder, *paths: str, tokenizer: str = "bytes") -> TrainConfig:
    base = find("llama3:debug")
    data = Data(paths=paths, batch=1, sequence=4, tokenizer=tokenizer)
    return TrainConfig(
        folder=str(folder), model=base.model, data=data, optimizer=base.optimizer,
        schedule=base.schedule,
    )  # fmt: skip


def test_text_is_tokenized_once_and_arrays_are_mapped(tmp_path):
    (tmp_path / "a.txt").write_text("lockstep")
    np.save(tmp_path / "b.npy", np.array([7, 8], dtype=np.uint32))
    np.array([9, 300], dtype=np.uint16).tofile(tmp_path / "c.bin")
    made = config(tmp_path, *(str(tmp_path / name) for name in ("a.txt", "b.npy", "c.bin")))
    assert [a.tolist() for a in token_arrays(made)] == [list(b"lockstep"), [7, 8], [9, 300]]
    (kept,) = (tmp_path / "tokens").iterdir()
    np.save(kept, np.array([1], dtype=np.uint8))
    assert token_arrays(made)[0].tolist() == [1]
    (tmp_path / "a.txt").write_text("changed")
    assert token_arrays(made)[0].tolist() == list(b"changed")


def test_text_by_a_tokenizer_file(tmp_path, monkeypatch):
    class Tokenizer:
        @staticmethod
        def from_file(file: str) -> Tokenizer:
            return Tokenizer()

        def encode(self, text: str) -> SimpleNamespace:
            return SimpleNamespace(ids=[len(word) for word in text.split()])

        def get_vocab_size(self) -> int:
            return 70_000 if big else 50

    (tmp_path / "a.txt").write_text("as one program")
    file = tmp_path / "tokenizer.json"
    file.write_text("{}")
    made = config(tmp_path, str(tmp_path / "a.txt"), tokenizer=str(file))
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(UsageError, match="needs the package tokenizers: pip install"):
        token_arrays(made)
    monkeypatch.setitem(sys.modules, "tokenizers", SimpleNamespace(Tokenizer=Tokenizer))
    big = False
    assert token_arrays(made)[0].tolist() == [2, 3, 7]
    big = True
    with pytest.raises(UsageError, match=r"model.vocab 256 is less than the tokenizer's 70000"):
        token_arrays(made)


@pytest.mark.parametrize(
    ("array", "told"),
    [
        (np.zeros((2, 2), dtype=np.int64), r"holds int64\[2, 2\]"),
        (np.zeros(2), r"holds float64\[2\]"),
    ],
)
def test_an_array_of_something_else_is_refused(array, told, tmp_path):
    np.save(tmp_path / "x.npy", array)
    with pytest.raises(UsageError, match=told):
        token_arrays(config(tmp_path, str(tmp_path / "x.npy")))
    (tmp_path / "x.npy").write_bytes(b"no array")
    with pytest.raises(UsageError, match="cannot be read"):
        token_arrays(config(tmp_path, str(tmp_path / "x.npy")))
