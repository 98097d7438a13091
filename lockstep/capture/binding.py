"""What one call of a step is about: its argument tree, and the objects that hold its state.

Roots are the modules, optimizers and plain objects that the step can reach: its arguments, the
names it closes over, and the globals it mentions.
"""

from __future__ import annotations

import dis
import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from types import BuiltinFunctionType, CodeType, EllipsisType, FunctionType, MethodType
from typing import Any, TypeAlias

import torch
from torch.distributed.device_mesh import DeviceMesh

from lockstep import _compat
from lockstep._compat import pytree
from lockstep.capture.refusal import refuse
from lockstep.errors import CaptureError
from lockstep.spmd.asked import refuse_deferred

Root: TypeAlias = torch.nn.Module | torch.optim.Optimizer
CODE = (FunctionType, BuiltinFunctionType, MethodType, type, functools.partial)
# Values without parts: what `repr` says of one is all there is to say.
WRITTEN = (
    complex, bytes, range, slice, Enum, EllipsisType,
    torch.dtype, torch.device, torch.layout, torch.memory_format,
)  # fmt: skip


@dataclass
class Call:
    """One call of a step.

    Args:
        leaves: the argument tree's leaves, in order; `names` are their paths ("batch['x']").
        spec: the argument tree, to rebuild it around other leaves.
        tree: its number among those that its step was called with; -1: it has none.
    """

    leaves: list[Any]
    names: list[str]
    spec: pytree.TreeSpec
    roots: dict[str, Root] = field(default_factory=dict)
    objects: dict[str, Any] = field(default_factory=dict)
    tree: int = -1

    def arguments(self, leaves: list[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The positional and keyword arguments with the given leaves in their places."""
        return pytree.tree_unflatten(leaves, self.spec)


@dataclass(frozen=True)
class _Tree:
    """An argument tree that a step was called with."""

    number: int
    names: list[str]
    spec: pytree.TreeSpec


class Step:
    """A user's step function, with what it reaches beyond its arguments.

    `known` are axes of the mesh along which its ranks run other programs: the coordinate along them
    is a plain number in this one.

    Args:
        function: a plain function or a bound method.

    Raises:
        UsageError: a call of it runs nothing yet, as of a generator.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        refuse_deferred(function, "the step")
        self.function = function
        self.name = getattr(function, "__qualname__", type(function).__name__)
        self.known: tuple[str, ...] = ()
        self._trees: dict[tuple[Any, ...], _Tree] = {}
        self._code: CodeType | None = None
        self._globals: tuple[str, ...] = ()
        self._flat: dict[tuple[Any, ...], _Tree] = {}  # by the types of arguments that are leaves

    @cached_property
    def plain(self) -> Any:
        """The function itself, without what decorators and methods wrap around it."""
        inner: Any = inspect.unwrap(self.function)
        return inner.__func__ if isinstance(inner, MethodType) else inner

    @cached_property
    def signature(self) -> inspect.Signature:
        return inspect.signature(self.function)

    def reached(self) -> Iterator[tuple[str, Any]]:
        """Names and values that the step closes over or mentions as globals, and its `self`."""
        code, seen = self.plain.__code__, set[str]()
        for name, cell in zip(code.co_freevars, self.plain.__closure__ or (), strict=False):
            if _filled(cell):
                seen.add(name)
                yield name, cell.cell_contents
        bound = getattr(self.function, "__self__", None)
        if bound is not None:
            yield "self", bound
        if code is not self._code:  # a code object is long to hash
            self._code, self._globals = code, globals_in(code)
        for name in self._globals:
            if name in self.plain.__globals__ and name not in seen:
                yield name, self.plain.__globals__[name]

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """Take a call apart.

        Raises:
            TypeError: the arguments do not fit the function, whose name it says.
            CaptureError: the step closes over a tensor.
        """
        leaves, tree = self._taken_apart(args, kwargs)
        call = Call(leaves, tree.names, tree.spec, tree=tree.number)
        for name, leaf in zip(call.names, leaves, strict=True):
            _sort(call, name, leaf)
        for name, value in self.reached():
            if isinstance(value, torch.Tensor):
                refuse(_closed_over(self, name, value), about=value)
            if isinstance(value, Root):
                call.roots.setdefault(name, value)
            elif name == "self":
                _sort(call, name, value)
        return call

    def _taken_apart(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[list[Any], _Tree]:
        kinds = (*map(type, args), *kwargs, *map(type, kwargs.values()))
        tree = self._flat.get(kinds)
        if tree is not None:
            return [*args, *kwargs.values()], tree
        leaves, spec = pytree.tree_flatten((args, kwargs))
        key = (spec, len(args), tuple(kwargs))
        tree = self._trees.get(key)
        if tree is None:
            names = self._names(args, kwargs)
            tree = self._trees[key] = _Tree(len(self._trees), names, spec)
        count = len(args) + len(kwargs)
        if spec.num_leaves == count and spec.num_nodes == count + 3:
            self._flat[kinds] = tree
        return leaves, tree

    def _names(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
        order = list(self._bound(args, kwargs))
        paths = pytree.tree_flatten_with_path((args, kwargs))[0]
        return [_leaf_name(path, order, self.signature) for path, _ in paths]

    def _bound(self, args: Any, kwargs: Any) -> dict[str, Any]:
        try:
            return self.signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise TypeError(f"{self.name}(): {error}") from None


@functools.lru_cache(maxsize=64)
def instructions_of(code: CodeType) -> tuple[dis.Instruction, ...]:
    """The instructions of a code object: long to take apart, and looked through more than once."""
    return tuple(dis.get_instructions(code))


@functools.cache
def globals_in(code: CodeType) -> tuple[str, ...]:
    """The globals that a code object and those inside it read; attributes of the same name are not.

    A script's own `loss = train_step(...)` is not what the step means by `ls.loss`.
    """
    reads = [i.argval for i in instructions_of(code) if i.opname in _READS_GLOBAL]
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            reads += globals_in(constant)
    return tuple(dict.fromkeys(reads))


_READS_GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME")


def names_in(code: CodeType) -> list[str]:
    """The global and attribute names that a code object and those inside it mention."""
    found = list(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found += names_in(constant)
    return list(dict.fromkeys(found))


def _filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None or True
    except ValueError:
        return False


def _leaf_name(path: Any, order: list[str], signature: inspect.Signature) -> str:
    """A leaf's path as the user would write it: `batch['x']`, not `[0][2]['x']`."""
    where, first, rest = path[0].idx, path[1], path[2:]
    name = str(first.key) if where == 1 else _positional(first.idx, order, signature)
    return name + pytree.keystr(rest)


def _positional(index: int, order: list[str], signature: inspect.Signature) -> str:
    parameters = list(signature.parameters.values())
    for i, parameter in enumerate(parameters):
        if parameter.kind is parameter.VAR_POSITIONAL and index >= i:
            return f"{parameter.name}[{index - i}]"
    return order[index]


def _sort(call: Call, name: str, leaf: Any) -> None:
    """Put a reached object among the roots; look one level into a plain object's attributes."""
    if isinstance(leaf, (torch.Tensor, DeviceMesh)) or _is_plain_value(leaf):
        return
    if isinstance(leaf, Root):
        call.roots.setdefault(name, leaf)
        return
    if isinstance(leaf, MethodType):
        _sort(call, name, leaf.__self__)
        return
    if not hasattr(leaf, "__dict__") and not type(leaf).__module__.startswith("torch"):
        refuse(_untold(name, leaf), about=leaf)
    call.objects.setdefault(name, leaf)
    for attribute, value in vars(leaf).items() if hasattr(leaf, "__dict__") else ():
        if isinstance(value, Root):
            call.roots.setdefault(f"{name}.{attribute}", value)


def _is_plain_value(leaf: Any) -> bool:
    plain = (int, float, str, type(None), set, frozenset, *WRITTEN)
    return isinstance(leaf, plain) or (isinstance(leaf, CODE) and not isinstance(leaf, MethodType))


def _untold(name: str, leaf: Any) -> CaptureError:
    kind = type(leaf)
    return CaptureError(
        f"{name} is a {kind.__module__}.{kind.__qualname__}, which holds what a capture cannot see",
        want="tensors, numbers, strings, containers of these, modules, objects with attributes",
        why="its content would be frozen into the program of every rank",
        fix=f"pass what the step needs of {name} as a tensor, a number or a string",
    )


def _closed_over(step: Step, name: str, value: torch.Tensor) -> CaptureError:
    from lockstep.capture.source import line_that_mentions

    return CaptureError(
        f"the step {step.name} closes over the tensor {name}",
        where=line_that_mentions(step.plain, name),
        got=f"{name}: {describe(value)}, not an argument",
        why="its value would be frozen into the program of every rank",
        fix=[f"pass it: {step.name}(..., {name})", f"register_buffer({name!r}, ...) on the model"],
    )


_SHORT = {
    "float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16", "int64": "i64",
    "int32": "i32", "int16": "i16", "int8": "i8", "uint8": "u8", "bool": "b8",
    "complex64": "c64", "complex128": "c128",
}  # fmt: skip


def dtype_name(dtype: torch.dtype) -> str:
    """A dtype in the short form of types: "f32", "i64"."""
    long = str(dtype).removeprefix("torch.")
    return _SHORT.get(long, long)


def describe(tensor: torch.Tensor) -> str:
    """A tensor's dtype and shape as types print them: "f32[8, 16]"."""
    return f"{dtype_name(tensor.dtype)}{list(tensor.shape)}{_place(tensor.device)}"


def _place(device: torch.device) -> str:
    """Where a tensor lies; with its index where that is not the accelerator of this rank."""
    if device.type == "cpu":
        return ""
    elsewhere = device.index is not None and device != _compat.current_accelerator()
    return f" on {device if elsewhere else device.type}"
