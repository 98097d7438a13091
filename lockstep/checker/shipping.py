"""One rank's capture as bytes, so that another process can judge all ranks together.

The bytes hold the graph node by node, the inputs' values and the notes. They are for one job's own
folder: reading them executes what they say, as any pickle.
"""

from __future__ import annotations

import dataclasses
import io
import pickle
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

import lockstep.spmd.ops  # noqa: F401  (registers the operators that a graph may name)
from lockstep import _compat
from lockstep.capture.origin import META
from lockstep.checker.world import RankTrace
from lockstep.errors import CaptureError

_OPERATOR = _compat.op_overload_type()


def to_bytes(trace: RankTrace) -> bytes:
    """Return a capture as bytes.

    Raises:
        CaptureError: the graph holds something that no other process can be given.
    """
    stream = io.BytesIO()
    writer, nodes = _Writer(stream), trace.nodes  # one writer: what rows share is written once
    try:
        writer.dump(len(nodes))
        for node in nodes:
            meta = {key: node.meta[key] for key in ("val", META) if key in node.meta}
            row = (node.op, node.name, node.target, node.args, node.kwargs, meta)
            writer.dump(row)
        names = {str(node.target) for node in nodes if node.op == "get_attr"}
        writer.dump({name: getattr(trace.graph.gm, name) for name in names})
        own: dict[str, Any] = {"gm": None, "fakes": [], "fake_mode": None, "out_spec": None}
        graph = dataclasses.replace(trace.graph, **own)
        writer.dump(dataclasses.replace(trace, graph=graph))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise CaptureError(
            "a rank's graph cannot be handed to the process that judges it",
            got=str(error),
            fix="ls.check(step, make, mesh=...) judges it in one process",
        ) from error
    return stream.getvalue()


def from_bytes(data: bytes) -> RankTrace:
    """Return the capture that `to_bytes` was given, without its stand-ins of inputs."""
    graph = Graph()
    reader = _Reader(io.BytesIO(data))
    for _ in range(reader.load()):
        op, name, target, args, kwargs, meta = reader.load()
        if op == "output":
            node = graph.output(args[0])
        else:
            node = graph.create_node(op, target, args, kwargs, name)
        node.meta.update(meta)
        reader.nodes[name] = node
    constants = reader.load()
    trace: RankTrace = reader.load()
    trace.graph.gm = GraphModule(constants, graph)
    return trace


class _Writer(pickle.Pickler):
    """Names what belongs to a process: nodes, operators, stand-ins, symbols."""

    def persistent_id(self, value: Any) -> Any:
        if isinstance(value, Node):
            return "node", value.name
        if isinstance(value, _OPERATOR):
            return "operator", str(value)
        if isinstance(value, torch.Tensor) and _compat.is_fake(value):
            return "fake", *_described(value)
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return "symbol", str(value)
        return None


class _Reader(pickle.Unpickler):
    """Brings what `_Writer` named to this process' own."""

    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream)
        self.nodes: dict[str, Node] = {}
        self.mode = _compat.fake_mode()

    def persistent_load(self, named: Any) -> Any:
        kind, *rest = named
        if kind == "node":
            return self.nodes[rest[0]]
        if kind == "operator":
            found: Any = torch.ops
            for part in rest[0].split("."):
                found = getattr(found, part)
            return found
        if kind == "fake" and rest[0] is not None:
            shape, stride, dtype, device, requires_grad = rest
            with self.mode:
                made = torch.empty_strided(shape, stride, dtype=dtype, device=device)
            return made.requires_grad_(requires_grad)
        return None  # a symbol: the value is known once the graph is replayed


def _described(fake: torch.Tensor) -> tuple[Any, ...]:
    numbers = (*fake.shape, *fake.stride())
    if not all(type(number) is int for number in numbers):
        return (None,)
    grad = fake.requires_grad and fake.is_floating_point()
    return tuple(fake.shape), tuple(fake.stride()), fake.dtype, str(fake.device), grad
