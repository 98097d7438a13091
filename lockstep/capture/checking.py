"""What a capture for a check keeps beside the graph: claims, cotangents, roots, draws, cuts.

The capture itself is the same as for a program, but for these notes: the rank may be read, and dead
code stays, since a check is about what the user wrote. A capture for a program takes most of these
notes too, so that the types can judge the very graph that is shipped.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import operator
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node
from torch.optim.optimizer import register_optimizer_step_pre_hook

from lockstep import _compat
from lockstep._compat import pytree
from lockstep.capture.hooks import swapped
from lockstep.capture.layout import is_dtensor_type, local_of
from lockstep.capture.origin import META, is_user_file, line_of, short_path, user_frame
from lockstep.spmd.claims import Place, Recording, in_phase, recording_claims
from lockstep.spmd.types import Type

if TYPE_CHECKING:
    from lockstep.capture.graph import StepGraph

_OURS = Path(__file__).parents[1]
# What these do without gradients is part of the derivative all the same.
_INSIDE = {
    str(_OURS / "capture" / "collectives.py"),
    *(str(_OURS / "spmd" / f"{name}.py") for name in ("typed_collectives", "actions", "ops")),
    str(_OURS / "spmd" / "collectives.py"),
}


@dataclass(frozen=True)
class NodeClaim:
    """A claim whose tensor is the value of a node."""

    node: Node
    types: Mapping[str, Type]
    line: str
    what: str


@dataclass
class Notes:
    """What one capture for a check noted; nodes are those of its graph.

    Args:
        claims: in the order of the program.
        moves: (verb, axis, src, dst, op, node before, node after, line) of typed collectives.
        intents: (reason, name, nodes before, nodes after, line) of `ls.intended`.
        cotangents: forward node -> the backward nodes that hold its gradient, one a backward().
        roots: what each backward() ran on, with the node of its seed (None: ones).
        consumed: id of a parameter's stand-in -> its gradient when an optimizer's step began.
        draws: random nodes in order, with the state of the generator before each.
        cuts: forward nodes through which the user lets no gradient flow (detach, no_grad).
        outer: a node made inside an autograd Function -> the line that applied the Function.
        functions: such a node -> the user's Function by name, and where its backward is.
        backwards: the lines that call backward().
        late_reads: the lines that read a gradient's value, of a step that ran live.
    """

    claims: list[NodeClaim] = field(default_factory=list)
    moves: list[tuple[Any, ...]] = field(default_factory=list)
    intents: list[tuple[Any, ...]] = field(default_factory=list)
    cotangents: dict[Node, list[Node]] = field(default_factory=dict)
    roots: list[tuple[Node, Node | None]] = field(default_factory=list)
    consumed: dict[int, Node] = field(default_factory=dict)
    draws: list[tuple[Node, torch.Tensor]] = field(default_factory=list)
    cuts: set[Node] = field(default_factory=set)
    outer: dict[Node, str] = field(default_factory=dict)
    functions: dict[Node, tuple[str, str]] = field(default_factory=dict)
    backwards: list[str] = field(default_factory=list)
    late_reads: list[str] = field(default_factory=list)

    def reasons(self) -> list[dict[str, str]]:
        """What `ls.intended` said, as JSON values: name, reason and line."""
        return [
            {"name": name, "reason": reason, "line": line}
            for reason, name, _before, _after, line in self.intents
        ]


class Checking:
    """Watches one trace for a check; `notes` is complete after `finish`.

    Args:
        ships: the trace is of a program that will run: it is refused what any program is, and its
            random draws are not looked at.

    `graph` is then what was traced, with the labels in it and its dead code; `labels` are the nodes
    that the program does without.
    """

    def __init__(self, ships: bool = False) -> None:
        self.notes = Notes()
        self.ships, self.labels = ships, list[Node]()
        self.graph: StepGraph | None = None
        self.leaves: list[torch.Tensor] = []
        self._seen: dict[int, tuple[torch.Tensor, Node]] = {}  # by id: and the node that made it
        self._fresh: list[tuple[Callable[[], torch.Tensor | None], Node, bool]] = []
        self._hooked: dict[int, torch.Tensor] = {}  # kept, so that no id is given twice
        self._said: Recording | None = None
        self._inside = False
        self.differentiated = False  # below autograd, by an operator that has a derivative

    @contextlib.contextmanager
    def within(self, grad_mode: bool) -> Iterator[None]:
        """Take what an operator on DTensors computes for as differentiable as itself."""
        before, self.differentiated = self.differentiated, grad_mode
        try:
            yield
        finally:
            self.differentiated = before

    @contextlib.contextmanager
    def watching(self, leaves: list[torch.Tensor]) -> Iterator[None]:
        """Take notes while inside; `leaves` are the stand-ins of the inputs."""
        self.leaves = leaves
        backwards: dict[FunctionType, Any] = {
            torch.autograd.backward: self._before_backward,  # type: ignore[dict-item]
            torch.autograd.grad: self._before_backward,  # type: ignore[dict-item]
        }
        optimizing = register_optimizer_step_pre_hook(self._consume)
        try:
            phase = contextlib.nullcontext() if self.ships else in_phase("check")
            with phase, recording_claims() as self._said, swapped(backwards), _watcher(self):
                yield
        finally:
            optimizing.remove()

    def finish(self) -> None:
        """Find the nodes of what was said; called inside the trace."""
        said, notes = self._said, self.notes
        assert said is not None
        for claim in said.claims:
            node = _compat.node_of(claim.tensor)
            if node is not None:
                line = place_line(claim.place)
                notes.claims.append(NodeClaim(node, claim.types, line, claim.what))
        for move in said.moves:
            nodes = _compat.node_of(move.before), _compat.node_of(move.after)
            line = place_line(move.place)
            notes.moves.append((move.verb, move.axis, move.src, move.dst, move.op, *nodes, line))
        for intent in said.intents:
            before, after = _nodes(intent.before), _nodes(intent.after)
            line = place_line(intent.place)
            notes.intents.append((intent.reason, intent.name, before, after, line))

    # -- gradients

    def _before_backward(self, original: Any, args: Any, kwargs: Any) -> Any:
        if self._inside:  # torch calls itself again, and checkpointing runs one inside another
            return original(*args, **kwargs)
        self.notes.backwards.append(line_of(user_frame(sys._getframe(1))))
        tensors = args[0] if args else kwargs.get("tensors", kwargs.get("outputs"))
        self._add_roots(tensors, args, kwargs, grad=original.__name__ == "grad")
        for leaf in self.leaves:
            self._hook(leaf, _compat.node_of(leaf))
        self.keep_fresh()
        for tensor, node in list(self._seen.values()):  # a hook on a view may note another
            self._hook(tensor, node)
        self._seen.clear()
        self._inside = True
        try:
            return original(*args, **kwargs)
        finally:
            self._inside = False

    def _add_roots(self, tensors: Any, args: Any, kwargs: Any, grad: bool) -> None:
        at, name = (2, "grad_outputs") if grad else (1, "grad_tensors")
        seeds = args[at] if len(args) > at else kwargs.get(name)
        roots = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        given = [seeds] if seeds is None or isinstance(seeds, torch.Tensor) else list(seeds)
        for root, seed in zip(roots, given * len(roots) if len(given) == 1 else given, strict=True):
            node = _compat.node_of(local_of(root))
            if node is not None:
                given_node = None if seed is None else _compat.node_of(local_of(seed))
                self.notes.roots.append((node, given_node))

    def _hook(self, tensor: torch.Tensor, node: Node | None) -> None:
        if node is None or id(tensor) in self._hooked or not _differentiable(tensor):
            return
        self._hooked[id(tensor)] = tensor
        self.notes.cuts.discard(node)
        tensor.register_hook(functools.partial(self._label, node))

    def _label(self, node: Node, grad: torch.Tensor | None) -> torch.Tensor | None:
        """Give the gradient a node of its own: the ranks then agree on it, whatever made it.

        It is None where a Function's backward gives None for an input that wants a gradient.
        """
        if grad is None:
            return None
        if self.ships and grad.layout is not torch.strided:
            return grad
        out = torch.ops.aten.alias.default(grad)
        made = _compat.node_of(out)
        if made is not None:
            self.notes.cotangents.setdefault(node, []).append(made)
            self.labels.append(made)
        return out

    def _consume(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                grad = local_of(parameter.grad)
                node = _compat.node_of(grad) if grad is not None else None
                if node is not None:
                    self.notes.consumed[id(local_of(parameter))] = node

    # -- operators

    def saw(
        self, func: Any, out: Any, drawn_from: torch.Tensor | None, grad_mode: bool, kept: bool
    ) -> None:
        """Note one operator that was traced.

        Args:
            drawn_from: the generator's state before it, of a random one.
            kept: whether what it made is kept until its gradient is asked for.
        """
        tensors = [t for t in _flat(out) if isinstance(t, torch.Tensor)]
        nodes = [node for node in (_compat.node_of(t) for t in tensors) if node is not None]
        if not nodes:
            return
        maker = nodes[0].args[0] if nodes[0].target is operator.getitem else nodes[0]
        if drawn_from is not None:
            self.notes.draws.append((maker, drawn_from))
        origin = nodes[0].meta.get(META)
        if origin is None or origin.phase != "forward":
            return
        if not grad_mode or func is torch.ops.aten.detach.default:
            inside, line, function = _dissolved()
            if inside:
                self.notes.outer.update(dict.fromkeys([maker, *nodes], line))
                if function is not None:
                    self.notes.functions.update(dict.fromkeys([maker, *nodes], function))
            else:
                self.notes.cuts.update([maker, *nodes])
        for tensor in tensors if kept else ():
            node = _compat.node_of(tensor)
            if node is None or not (tensor.is_floating_point() or tensor.is_complex()):
                continue
            self._fresh.append((weakref.ref(tensor), node, grad_mode))

    def keep_fresh(self) -> None:
        """Keep what the last operator made until its gradient is asked for.

        Not before it has returned: what has no gradient, as `zeros_like` makes it, torch detaches
        where somebody else holds it, and the program would have one operator more.
        """
        for reference, node, grad_mode in self._fresh:
            tensor = reference()
            if tensor is not None and (grad_mode or id(tensor) not in self._seen):
                self._seen[id(tensor)] = tensor, node  # else autograd knows it as it was before
        self._fresh.clear()


def _differentiable(tensor: torch.Tensor) -> bool:
    """Whether a gradient may come to a tensor.

    None comes to a view that was made without gradients, as inside a Function, of what was written
    to in place since: torch then refuses to say what made it.
    """
    try:
        return tensor.requires_grad and (tensor.is_leaf or tensor.grad_fn is not None)
    except RuntimeError:
        return False


_DEVICE = torch.ops.prim.device.default


def _watcher(checking: Checking) -> Any:
    class Watcher(_compat.dispatch_mode()):  # type: ignore[misc]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
        ) -> Any:
            if func is _DEVICE:  # torch asks three times for each operator: no mode below need hear
                return args[0].device
            if any(map(is_dtensor_type, types)):
                with checking.within(torch.is_grad_enabled()):  # what it computes comes here too
                    return func(*args, **(kwargs or {}))
            draws = torch.Tag.nondeterministic_seeded in func.tags and not checking.ships
            state = _generator_state() if draws else None
            grad_mode = torch.is_grad_enabled() or checking.differentiated
            # A write to a list is one to each of its tensors, where no program is made of it.
            run = func if checking.ships else _compat.one_by_one(func)
            checking.keep_fresh()
            out = run(*args, **(kwargs or {}))
            # An operator may ask who else holds a tensor, so a program's are kept where they must.
            kept = not checking.ships or (grad_mode and _need_grad((args, kwargs)))
            checking.saw(func, out, state, grad_mode, kept)
            return out

    return Watcher()


def _generator_state() -> torch.Tensor:
    """The generator's state before a draw; a fake draw draws nothing, so one number is drawn."""
    with _compat.without_modes():
        state = torch.default_generator.get_state()
        torch.rand(1)
    return state


def _dissolved() -> tuple[bool, str, tuple[str, str] | None]:
    """Whether the code that runs is inside an autograd Function or a collective; by whom called.

    Those run without gradients, and what they do is part of the derivative all the same.
    """
    frame: FrameType | None = sys._getframe(1)
    codes, inside, function = _function_codes(), None, None
    while frame is not None:
        code = frame.f_code
        if code in codes or code.co_filename in _INSIDE:
            inside, function = frame.f_back, codes.get(code)
        frame = frame.f_back
    named = _named(function) if function is not None else None
    return inside is not None, line_of(user_frame(inside)), named


def _function_codes() -> dict[Any, Any]:
    """The code of every autograd Function's forward: its `apply` leaves no Python frame."""
    codes: dict[Any, Any] = {}
    todo = list(torch.autograd.Function.__subclasses__())
    while todo:
        kind = todo.pop()
        todo += kind.__subclasses__()
        # Not a decorator's code, as of torch.amp.custom_fwd: all that it decorates share that.
        code = getattr(inspect.unwrap(kind.forward), "__code__", None)
        if code is not None:
            codes[code] = kind
    return codes


def _named(function: Any) -> tuple[str, str] | None:
    """A user's Function by name, and the line of its backward."""
    code = getattr(inspect.unwrap(function.backward), "__code__", None)
    if code is None or not is_user_file(code.co_filename):
        return None
    return function.__qualname__, f"{short_path(code.co_filename)}:{code.co_firstlineno}"


def place_line(place: Place) -> str:
    """Return a place as "file:number", as origins have it."""
    return f"{short_path(place.file)}:{place.line}"


def _nodes(tensors: tuple[torch.Tensor, ...]) -> tuple[Node, ...]:
    found = (_compat.node_of(tensor) for tensor in tensors)
    return tuple(node for node in found if node is not None)


def _need_grad(value: Any) -> bool:
    leaves = pytree.tree_leaves(value)
    return any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in leaves)


def _flat(out: Any) -> list[Any]:
    if isinstance(out, (tuple, list)):
        return [leaf for item in out for leaf in _flat(item)]
    return [out]
