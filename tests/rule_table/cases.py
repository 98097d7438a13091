"""One operator on drawn operands: its rule's kind must hold on simulated ranks.

A case names an overload and its arguments; tensors among them are described, and drawn. Their
shapes are words of letters, each a size that is drawn for the case, and digits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from hypothesis import strategies as st
from torch.fx import Graph, GraphModule, Node

from lockstep import _compat
from lockstep._compat import pytree
from lockstep.checker.inference.flow import Flow, Graphs
from lockstep.checker.inference.kinds import EQUAL, FLAT, PARTIAL, VARYING, ZERO, Kind, shard
from lockstep.checker.inference.rules import op_name
from tests.rule_numbers import F64, RANKS, Value, holds, parts

SIZES = (4, 6)  # each rank holds two rows or more: of one a reshape does not tell the place
Sizes = dict[str, int]
PLAIN = {"E": EQUAL, "P": PARTIAL, "V": VARYING, "Z": ZERO, "F": FLAT}


@dataclass(frozen=True)
class T:
    """A tensor operand.

    Args:
        shape: such as "nm" or "n1".
        kinds: letters of the kinds that are drawn; S stands for a shard of each dimension.
        of: "random", "positive" above 1, "unit" between 0 and 1, "complex", "integers" below
            `below`, or "mask".
    """

    shape: str
    kinds: str = "ESPVZF"
    of: str = "random"
    below: int = 4

    def sizes(self, drawn: Sizes) -> tuple[int, ...]:
        """Its shape for the sizes of all letters."""
        return tuple(drawn[letter] for letter in self.shape)

    def whole(self, shape: tuple[int, ...], seed: int) -> torch.Tensor:
        """Numbers of this sort, equal for equal seeds."""
        draw = torch.Generator().manual_seed(seed)
        if self.of == "integers":
            return torch.randint(0, self.below, shape, generator=draw)
        if self.of == "mask":
            return torch.rand(shape, generator=draw) > 0.5
        if self.of == "unit":
            return torch.rand(shape, generator=draw, dtype=F64) * 0.9 + 0.05
        if self.of == "complex":
            return torch.randn(shape, generator=draw, dtype=torch.complex128)
        made = torch.randn(shape, generator=draw, dtype=F64)
        return made.abs() + 1.1 if self.of == "positive" else made


@dataclass(frozen=True)
class Lazy:
    """An argument that is computed from the tensors: `local` sizes differ from whole ones."""

    of: Callable[..., Any]


@dataclass(frozen=True)
class Case:
    """One operator.

    Args:
        op: "add.Tensor" of aten, or with its namespace before a colon.
        args, kwargs: tensors described, and anything else as it is; lists of tensors too.
        run: does in place of the operator what it does, where no CPU has it.
        phase: "backward" for operators of that phase.
        seeded: it draws: every run starts from the same generator state.
    """

    op: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    run: Callable[..., Any] | None = None
    phase: str = "forward"
    seeded: bool = False

    @property
    def target(self) -> Any:
        space, _, name = self.op.rpartition(":")
        packet, _, overload = name.partition(".")
        return getattr(getattr(getattr(torch.ops, space or "aten"), packet), overload or "default")

    @property
    def name(self) -> str:
        """The operator as rules name it."""
        return op_name(self.target)

    @property
    def operands(self) -> list[T]:
        return [leaf for leaf in _leaves((self.args, self.kwargs)) if isinstance(leaf, T)]

    def filled(self, tensors: list[Any]) -> tuple[Any, Any]:
        """The arguments with tensors, or nodes, in the places of their descriptions."""
        left = iter(tensors)
        known = [t.meta["val"] if isinstance(t, Node) else t for t in tensors]

        def fill(leaf: Any) -> Any:
            if isinstance(leaf, Lazy):
                return leaf.of(*known)
            return next(left) if isinstance(leaf, T) else leaf

        return pytree.tree_map(fill, (self.args, self.kwargs), is_leaf=_is_leaf)

    def __call__(self, tensors: list[torch.Tensor]) -> list[Any]:
        """Run it on clones; the results as a list."""
        args, kwargs = self.filled([t.clone() for t in tensors])
        if self.seeded:
            torch.manual_seed(7)
        out = (self.run or self.target)(*args, **kwargs)
        return list(out) if isinstance(out, (tuple, list)) else [out]


def op(name: str, *args: Any, run: Any = None, seeded: bool = False, **kwargs: Any) -> Case:
    """A case; what has "backward" in its name is of that phase."""
    phase = "backward" if "backward" in name else "forward"
    return Case(name, args, kwargs, run, phase, seeded)


def _is_leaf(value: Any) -> bool:
    return isinstance(value, (T, Lazy))


def _leaves(tree: Any) -> list[Any]:
    return pytree.tree_leaves(tree, is_leaf=_is_leaf)


def value(operand: T, kind: Kind, sizes: tuple[Sizes, Sizes], seed: int) -> Value:
    """An operand of a kind, of these sizes on a rank and as a whole."""
    part, shape = (operand.sizes(held) for held in sizes)
    if kind.tag == "Z":
        return Value(kind, [torch.zeros(part, dtype=F64)] * RANKS, torch.zeros(shape, dtype=F64))
    whole = operand.whole(shape, seed)
    if kind.flat:
        number = whole.flatten()[0] if whole.numel() else whole
        return Value(kind, [number.expand(part)] * RANKS, number.expand(shape))
    if kind.tag == "P" and whole.is_complex():
        term = operand.whole(shape, seed + 50)
        return Value(kind, [term, whole - term], whole)
    if kind.tag == "V":
        return Value(kind, [operand.whole(part, seed + 50 + r) for r in range(RANKS)], None)
    return parts(whole, kind, seed)


@st.composite
def values(draw: Any, case: Case) -> list[Value]:
    """Draw shapes and kinds for a case's operands, so that the ranks' shapes fit each other.

    A dimension is cut everywhere or nowhere: an operand that has it is a shard of it, or of a kind
    that has no whole to be a part of.
    """
    shapes = [operand.shape for operand in case.operands]
    letters = sorted(set("".join(shapes)))
    whole = {c: draw(st.sampled_from(SIZES)) if c.isalpha() else int(c) for c in letters}
    may = [c for c in letters if whole[c] in SIZES and all(s.count(c) < 2 for s in shapes)]
    cut = draw(st.sets(st.sampled_from(may), max_size=2)) if may else set()
    local = {c: size // RANKS if c in cut else size for c, size in whole.items()}
    return [
        value(operand, draw(st.sampled_from(_kinds(operand, cut))), (local, whole), 10 * i)
        for i, operand in enumerate(case.operands)
    ]


def _kinds(operand: T, cut: set[str]) -> list[Kind]:
    """The kinds that an operand can be of where these dimensions are cut."""
    inside = [dim for dim, letter in enumerate(operand.shape) if letter in cut]
    may = "EPVZF" if not inside else "VZF" if len(cut) == 1 else "V"
    plain = [PLAIN[k] for k in operand.kinds if k in may]
    if operand.of not in ("random", "complex"):
        plain = [kind for kind in plain if kind.tag not in "PZ"]
    shards = [shard(inside[0])] * 2 if len(inside) == 1 and "S" in operand.kinds else []
    return shards + plain or [VARYING]


@dataclass
class Outcome:
    """What a case came to: the kinds of its results, whether they say anything, and its faults."""

    kinds: list[Kind]
    faults: list[Any]
    said: bool


def hold(case: Case, drawn: list[Value]) -> Outcome | None:
    """Hold a rule's kinds to numbers; None where the ranks' shapes do not fit each other."""
    try:
        local = [case([v.locals[r] for v in drawn]) for r in range(RANKS)]
    except (RuntimeError, IndexError, ValueError):
        return None
    flow, node = _typed(case, drawn, local)
    assert not flow.unknown, f"no rule for {dict(flow.unknown)}"
    made = flow.kinds[node]
    assert isinstance(made, list) == _many(case), f"{case.op} gives {made}"
    kinds = made if isinstance(made, list) else [made]
    if flow.faults:
        assert any(v.kind.tag in "SP" for v in drawn), flow.faults
        return Outcome(kinds, flow.faults, True)
    wholes: list[Any] = [None] * len(kinds)
    if all(v.whole is not None for v in drawn) and not _draws_of_its_own(case, drawn):
        wholes = case([v.whole for v in drawn])
    if len(wholes) != len(local[0]):
        return None  # a split into parts of one size gives other parts of the whole
    for i, kind in enumerate(kinds[: len(local[0])]):
        if kind.note == "echo":
            continue  # what an error left, which was told where it arose
        results = [_real(out[i]) for out in local]
        if all(isinstance(t, torch.Tensor) for t in results):
            whole = _like(results[0], _real(wholes[i])) if kind.flat else _real(wholes[i])
            if kind.tag in "EP" and _cut_of_one_number(drawn):
                whole = None
            assert holds(replace(kind, note=""), results, whole), (
                f"result {i} of {case.op} on {[v.kind for v in drawn]} is said to be {kind}"
            )
    return Outcome(kinds, [], any(kind.tag not in "?V" for kind in kinds))


def _cut_of_one_number(drawn: list[Value]) -> bool:
    """Whether an operand of one number has a part's shape: what it gives may have one, too."""
    return any(
        v.kind.flat and v.whole is not None and v.locals[0].shape != v.whole.shape for v in drawn
    )


def _like(local: torch.Tensor, whole: Any) -> Any:
    """A whole of one number, in the ranks' shape: any part of it is like any other."""
    one = whole is not None and whole.numel() and whole.allclose(whole.flatten()[0])
    return whole.flatten()[0].expand(local.shape) if one else whole


def _real(result: Any) -> Any:
    """Complex numbers as pairs of real ones, which the comparison takes."""
    complex_ = isinstance(result, torch.Tensor) and result.is_complex()
    return torch.view_as_real(result.resolve_conj()) if complex_ else result


def _draws_of_its_own(case: Case, drawn: list[Value]) -> bool:
    """Whether a draw for a shard cannot be compared with one for the whole."""
    return case.seeded and any(v.kind.tag == "S" for v in drawn)


def _typed(case: Case, drawn: list[Value], local: list[list[Any]]) -> tuple[Flow, Node]:
    graph = Graph()
    inputs = [graph.placeholder(f"x{i}") for i in range(len(drawn))]
    for node, held in zip(inputs, drawn, strict=True):
        node.meta["val"] = held.locals[0]
    node = graph.call_function(case.target, *case.filled(inputs))
    node.meta["val"] = local[0] if len(local[0]) != 1 or _many(case) else local[0][0]
    GraphModule(torch.nn.Module(), graph)
    nodes: list[Node] = list(graph.nodes)
    kinds = {n: v.kind for n, v in zip(inputs, drawn, strict=True)}
    phases = dict.fromkeys(nodes, case.phase)
    return Flow(Graphs("tp", [nodes] * RANKS, inputs=kinds, phases=phases)).run(), node


def _many(case: Case) -> bool:
    returns = _compat.schema(case.target).returns
    return len(returns) > 1 or (len(returns) == 1 and "List" in str(returns[0].type))
