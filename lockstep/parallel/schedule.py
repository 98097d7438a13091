"""What each stage of a pipeline does, and when: plain tables, made of numbers alone.

A model is cut in parts, numbered from the input on; part p lies on stage p % stages. The parts that
a stage has are its chunks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from lockstep.errors import UsageError

What = Literal["recv", "forward", "send", "backward"]


@dataclass(frozen=True)
class Do:
    """One thing to do.

    Args:
        what: "forward" and "backward" compute; "send" and "recv" are messages.
        part: of the model, whose output or gradient is computed, sent or received.
        batch: the micro-batch.
        place: of a message, how many stages further the other end is; 0 for what computes.

    Example:
        >>> str(Do("send", 0, 3, 1)), str(Do("backward", 2, 0))
        ('send part 0 batch 3 to +1', 'backward part 2 batch 0')
    """

    what: What
    part: int
    batch: int
    place: int = 0

    @property
    def forward(self) -> bool:
        """Whether it is of a forward: a part's output, or that it is sent on."""
        ahead = {"send": 1, "recv": -1}.get(self.what)
        return self.what == "forward" if ahead is None else self.place == ahead

    def __str__(self) -> str:
        way = {"send": f" to {self.place:+d}", "recv": f" from {self.place:+d}"}.get(self.what, "")
        return f"{self.what} part {self.part} batch {self.batch}{way}"


def one_f_one_b(stages: int, batches: int) -> list[list[Do]]:
    """One forward, one backward: a stage holds activations of at most `stages` micro-batches.

    Args:
        stages: how many there are; each has one part.
        batches: micro-batches of a step.

    Returns:
        For each stage what it does, in order.

    Example:
        >>> for row in one_f_one_b(2, 2)[1]:
        ...     print(row)
        recv part 1 batch 0 from -1
        forward part 1 batch 0
        backward part 1 batch 0
        send part 1 batch 0 to -1
        recv part 1 batch 1 from -1
        forward part 1 batch 1
        backward part 1 batch 1
        send part 1 batch 1 to -1
    """
    return interleaved(stages, batches, 1)


def interleaved(stages: int, batches: int, chunks: int) -> list[list[Do]]:
    """Each stage has several parts, so that it waits less for the first and after the last.

    Args:
        stages, batches: as for `one_f_one_b`; with more than one chunk the stages divide the
            micro-batches.
        chunks: parts a stage.

    Raises:
        UsageError: less than one of something, or micro-batches that do not divide.
    """
    if min(stages, batches, chunks) < 1:
        raise UsageError(
            "a pipeline of nothing",
            got=f"{stages} stages, {batches} micro-batches, {chunks} chunks",
            want="1 or more of each",
        )
    if chunks > 1 and batches % stages:
        raise UsageError(
            f"{stages} stages do not divide {batches} micro-batches",
            want="a multiple of the stages, where each has more than one chunk",
            fix=f"micro_batches={(batches // stages + 1) * stages}, or chunks=1",
        )
    parts = stages * chunks
    return [
        list(_with_messages(_computed(stage, stages, batches, chunks), stages, parts))
        for stage in range(stages)
    ]


def _computed(stage: int, stages: int, batches: int, chunks: int) -> list[Do]:
    """Forwards that the later stages need first, then one forward, one backward, then the rest."""
    forwards = [Do("forward", *_turn(n, stage, stages, chunks)) for n in range(batches * chunks)]
    backwards = [
        Do("backward", *_turn(n, stage, stages, chunks, back=True)) for n in range(batches * chunks)
    ]
    ahead = stages - stage - 1
    if chunks > 1:
        ahead = 2 * ahead + (chunks - 1) * stages
    ahead = min(ahead, len(forwards))
    rows = forwards[:ahead]
    for done, forward in enumerate(forwards[ahead:]):
        rows += [forward, backwards[done]]
    return rows + backwards[len(forwards) - ahead :]


def _turn(number: int, stage: int, stages: int, chunks: int, back: bool = False) -> tuple[int, int]:
    """Part and micro-batch of the n-th forward: `stages` micro-batches through each chunk."""
    if chunks == 1:
        return stage, number
    rounds, rest = divmod(number, stages * chunks)
    chunk, batch = divmod(rest, stages)
    chunk = chunks - 1 - chunk if back else chunk
    return chunk * stages + stage, rounds * stages + batch


def _with_messages(rows: Sequence[Do], stages: int, parts: int) -> Iterator[Do]:
    """Receive right before something is read, send as soon as it is there."""
    for row in rows:
        forward = row.what == "forward"
        before, after = (-1, 1) if forward else (1, -1)
        first, last = (0, parts - 1) if forward else (parts - 1, 0)
        if stages > 1 and row.part != first:
            yield Do("recv", row.part, row.batch, before)
        yield row
        if stages > 1 and row.part != last:
            yield Do("send", row.part, row.batch, after)
