"""What a capture gives: one flat graph, what goes in and comes out, and where each node is from."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from lockstep._compat import pytree
from lockstep.capture.layout import local_of, record_of
from lockstep.capture.trees import tree_text

if TYPE_CHECKING:
    from lockstep.capture.emits import Emit
    from lockstep.capture.sizes import Symbols


@dataclass(frozen=True)
class InputSpec:
    """One graph input.

    `kind`: "param", "buffer", "attr", "state" (optimizer), "grad", "arg", or "float" (a Python
    float, passed as a 0-dim float64 tensor). `ties` are the other names of the same tensor. A size
    that may differ from call to call is a range, "2..64", and "*" a stride that follows from one.
    Of a DTensor it is the local tensor, and `layout` the record of how the whole one is divided.
    """

    name: str
    kind: str
    shape: tuple[int | str, ...]
    stride: tuple[int | str, ...]
    dtype: str
    device: str
    requires_grad: bool = False
    ties: tuple[str, ...] = ()
    layout: dict[str, Any] | None = None


@dataclass(frozen=True)
class Effect:
    """What the step did to a place that holds a tensor.

    `kind`: "grad" (sets `.grad` of the parameter called `name`) or "hold" (puts a new tensor into
    the holder called `name`). `output` is the graph output that goes there; None clears the place;
    where `input` is given, the place gets that graph input itself. `layout` is the record of the
    DTensor that is put around it there.
    """

    kind: str
    name: str
    output: int | None = None
    input: int | None = None
    layout: dict[str, Any] | None = None


@dataclass(frozen=True)
class Leaf:
    """One leaf of what the step returns.

    `kind`: "output" (graph output `index`), "item" (its Python number), "input" (the very tensor
    that was passed as graph input `index`), or "value" (the constant `value`). `grad`: eager would
    give a tensor that requires grad here. `layout`: as of an `Effect`.
    """

    kind: str
    index: int = -1
    value: Any = None
    grad: bool = False
    layout: dict[str, Any] | None = None


@dataclass
class StepGraph:
    """One step as one flat graph, the same on every rank.

    Args:
        gm: placeholders in the order of `inputs`; its output is a flat tuple. In-place operations
            on placeholders are the step's writes to its state.
        fakes: the stand-in of each placeholder, of `fake_mode`.
        returns: the leaves of what the step returns, in the order of `out_spec`.
        effects: gradients and held tensors that the step replaces.
        emits: what is told or called beside the computation, on some ranks.
        computed: how many outputs the step itself gives; effects alone want those after them.
        schedule: the collectives in order: op, axis, shape, dtype, line, phase.
        symbols: the sizes that may differ from call to call, and what has to hold of them.
        switched: wrapped model -> what the step sets of its wrapper: of a DDP whether it sends its
            buffers at the forward after the step, of FSDP2 what `set_requires_gradient_sync` and
            its like have set.
    """

    name: str
    gm: torch.fx.GraphModule
    fakes: list[torch.Tensor]
    fake_mode: Any
    inputs: list[InputSpec]
    returns: list[Leaf]
    out_spec: pytree.TreeSpec
    effects: list[Effect]
    emits: list[Emit] = field(default_factory=list)
    computed: int = 0
    schedule: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    symbols: Symbols | None = None
    switched: dict[str, Any] = field(default_factory=dict)
    digest: str = ""  # of what it is, before a back end changes it
    table: list[list[str]] = field(default_factory=list)  # of the same, for people to look at

    def contract(self) -> dict[str, Any]:
        """Inputs, returns and effects as JSON values: what a loader binds by.

        Of a graph with sizes that differ, what a back end took to hold of them is in it too.
        """
        return {
            **(self.symbols.words() if self.symbols is not None else {}),
            "inputs": [_record(spec) for spec in self.inputs],
            "returns": [_record(leaf) for leaf in self.returns],
            "out_spec": tree_text(self.out_spec),
            "effects": [_record(effect) for effect in self.effects],
            "emits": [emit.asdict() for emit in self.emits],
            **({"switched": self.switched} if self.switched else {}),
        }

    def source_map(self) -> dict[str, list[str]]:
        """Each node's name -> [user line, module path, phase]."""
        from lockstep.capture.origin import META

        found = {}
        for node in self.gm.graph.nodes:
            origin = node.meta.get(META)
            if origin is not None:
                found[node.name] = [origin.line, origin.module, origin.phase]
        return found


def _record(part: Any) -> dict[str, Any]:
    """As a JSON value; only what is of a DTensor says how it is divided."""
    found = asdict(part)
    return {k: v for k, v in found.items() if k != "layout" or v is not None}


def input_spec(name: str, kind: str, tensor: torch.Tensor, ties: tuple[str, ...] = ()) -> InputSpec:
    """Describe a tensor as a graph input: of a DTensor the local one; no device index, since each
    rank has its own."""
    local = local_of(tensor)
    return InputSpec(
        name=name,
        kind=kind,
        shape=tuple(local.shape),
        stride=tuple(local.stride()),
        dtype=str(tensor.dtype).removeprefix("torch."),
        device=tensor.device.type,
        requires_grad=tensor.requires_grad,
        ties=ties,
        layout=record_of(name, tensor),
    )
