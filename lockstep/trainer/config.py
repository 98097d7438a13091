"""What a training is: every value that can be set, in frozen dataclasses.

A config is a function that returns a `TrainConfig`. Each field is a flag of `lockstep train`: field
`lr` of `optimizer` is `--optimizer.lr`; the text below a field is its help.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Literal

from lockstep.errors import UsageError
from lockstep.models import llama


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mesh:
    """How many ranks along each axis; their product is the number of ranks."""

    dp: int = -1
    """Replicas of the model; -1 takes the ranks that the other axes leave."""
    fsdp: int = 1
    """Ranks over which parameters, gradients and the optimizer's state are sharded."""
    cp: int = 1
    """Ranks that share each sequence."""
    tp: int = 1
    """Ranks that share each layer's matrices."""
    pp: int = 1
    """Stages of a pipeline: ranks that have some of the layers each."""
    chunks: int = 1
    """Parts of the model that each stage of pp has; more than one for an interleaved schedule."""
    sequence_parallel: Literal["no", "yes"] = "no"
    """Whether the ranks of tp share the tokens between those matrices, too."""
    regather: Literal["no", "yes"] = "no"
    """Whether fsdp gathers parameters anew in the backward, rather than keeping them."""
    recompute: Literal["no", "yes"] = "no"
    """Whether each layer is computed anew in the backward, rather than keeping what it gave."""

    def sizes(self, world: int) -> dict[str, int]:
        """Return the axes of more than one rank, outermost first; "dp" alone where there is none.

        Raises:
            UsageError: the axes do not make up the ranks.

        Example:
            >>> Mesh(tp=2).sizes(4)
            {'dp': 2, 'tp': 2}
        """
        others = {"fsdp": self.fsdp, "cp": self.cp, "tp": self.tp, "pp": self.pp}
        fixed = math.prod(others.values()) * max(self.dp, 1)
        shown = " ".join(f"{name}={size}" for name, size in {"dp": self.dp, **others}.items())
        if min(others.values()) < 1 or self.dp == 0 or self.dp < -1:
            raise UsageError(f"mesh {shown}: an axis has 1 rank or more, and dp may be -1")
        if world % fixed or (self.dp != -1 and fixed != world):
            raise UsageError(f"mesh {shown} does not make up {world} rank(s)")
        dp = world // fixed if self.dp == -1 else self.dp
        sizes = {"pp": others.pop("pp"), "dp": dp, **others}  # stages speak least
        return {name: size for name, size in sizes.items() if size > 1} or {"dp": 1}


def data_ranks(sizes: Mapping[str, int]) -> int:
    """Return how many parts the ranks of a mesh divide a batch into.

    Example:
        >>> data_ranks({"dp": 2, "fsdp": 2, "tp": 2})
        4
    """
    return sizes.get("dp", 1) * sizes.get("fsdp", 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Data:
    """What is read, and how much of it makes up a step."""

    paths: tuple[str, ...]
    """Text files, or token arrays that are mapped into memory: .npy, or .bin of 16-bit tokens."""
    tokenizer: str = "bytes"
    """Of text files: "bytes", or a tokenizer.json as the package `tokenizers` writes it."""
    batch: int
    """Sequences of one step, over all ranks and micro-batches."""
    sequence: int
    """Tokens of a sequence."""
    micro_batches: int = 1
    """Parts of a step that are computed one after the other, their gradients added up."""
    order: Literal["shuffled", "as is"] = "shuffled"
    """Shuffled anew in each epoch, by the seed; or as the files hold it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Optimizer:
    """AdamW, and what happens to the gradients before."""

    lr: float
    """The highest learning rate."""
    beta1: float = 0.9
    """Decay of the mean of gradients."""
    beta2: float = 0.95
    """Decay of the mean of their squares."""
    eps: float = 1e-8
    """Added to the root of the mean square."""
    weight_decay: float = 0.1
    """Of matrices; vectors are not decayed."""
    clip: float = 1.0
    """The largest norm of all gradients together; 0 clips nothing."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Of products; bf16 keeps parameters, their gradients, reductions and norms in fp32."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schedule:
    """How many steps, and the learning rate of each."""

    steps: int
    """Steps in all."""
    warmup: int = 0
    """Steps in which the rate rises to `lr`."""
    decay: Literal["cosine", "linear", "none"] = "cosine"
    """How it falls from there to the last step."""
    final: float = 0.1
    """The last step's rate, as a share of `lr`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """When the state is saved, and from where a training goes on."""

    every: int = 100
    """Steps between two checkpoints; 0 saves only at the end and before leaving."""
    keep: int = 2
    """How many are kept, the newest; 0 keeps all."""
    resume: str = "auto"
    """"auto": the newest whole one of the folder, if any; "none"; or a checkpoint's own folder."""
    write: Literal["async", "sync"] = "async"
    """Whether files are written while the training goes on."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Metrics:
    """What is told, and how often."""

    every: int = 10
    """Steps between two lines; the ranks vote at these steps too."""
    tensorboard: Literal["no", "yes"] = "no"
    """Also for TensorBoard, by the package `tensorboard`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The loss on sequences that are never trained on."""

    every: int = 0
    """Steps between two evaluations; 0 evaluates never, and holds nothing out."""
    batches: int = 4
    """How many batches, always the same."""
    part: float = 0.05
    """The share of the sequences that is held out, from the end."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Guard:
    """What happens where the loss is not finite, or jumps; decided by vote of all ranks."""

    spike: float = 0.0
    """A loss this many times its running mean counts too; 0: only one that is not finite."""
    action: Literal["stop", "roll back"] = "stop"
    """Stop with exit code 3; or return to the last checkpoint, and go on with the data after."""
    most: int = 3
    """How often it may roll back."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """All of a training."""

    folder: str
    """Where checkpoints, metrics and tokens of text are kept; shared by all nodes."""
    seed: int = 0
    """Of weights, order and dropout."""
    backend: Literal["inductor", "graph"] = "inductor"
    """How steps are compiled; "graph" is bitwise as eager."""
    model: llama.Config
    mesh: Mesh = Mesh()
    data: Data
    optimizer: Optimizer
    schedule: Schedule
    checkpoint: Checkpoint = Checkpoint()
    metrics: Metrics = Metrics()
    eval: Evaluation = Evaluation()
    guard: Guard = Guard()


def flags(kind: type = TrainConfig, prefix: str = "--") -> list[str]:
    """Return the command line's flag of every value, in the order of the fields.

    Example:
        >>> flags(Mesh, "--mesh.")[:3]
        ['--mesh.dp', '--mesh.fsdp', '--mesh.cp']
    """
    found: list[str] = []
    parts = _parts()
    for field in dataclasses.fields(kind):
        name = prefix + field.name.replace("_", "-")
        part = parts.get(field.name) if kind is TrainConfig else None
        found += flags(part, name + ".") if part is not None else [name]
    return found


def _parts() -> dict[str, type]:
    parts = {kind.__name__.lower(): kind for kind in (Mesh, Data, Optimizer, Schedule, Checkpoint)}
    return {**parts, "model": llama.Config, "metrics": Metrics, "eval": Evaluation, "guard": Guard}
