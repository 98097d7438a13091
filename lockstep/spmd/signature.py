"""Types written in a function's signature, and types of parameters by patterns of names."""

from __future__ import annotations

import difflib
import functools
import inspect
import linecache
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, Any, ParamSpec, TypeVar, get_args, get_origin

import torch

from lockstep.errors import UsageError
from lockstep.spmd import claims
from lockstep.spmd.mesh import axis as axis_named
from lockstep.spmd.parse import parse_types
from lockstep.spmd.types import Type, checked_type

Args = ParamSpec("Args")
Result = TypeVar("Result")
ATTRIBUTE = "lockstep_types"


@dataclass(frozen=True)
class Types:
    """What `T[...]` adds to the annotation of a tensor: axes and their types."""

    of: tuple[tuple[str, Type], ...]  # a Union hashes its parts, so no dict


class T:
    """A tensor with types, for the annotations of a function under `@ls.signature`.

    `T["dp: R, tp: S(1)"]` is `Annotated[torch.Tensor, ...]`.

    Raises:
        UsageError: the text does not read as axes and their types.

    Example:
        >>> T["tp: I"].__metadata__
        (Types(of=(('tp', I),)),)
    """

    def __class_getitem__(cls, text: str) -> Any:
        return Annotated[torch.Tensor, Types(tuple(parse_types(text).items()))]


def signature(function: Callable[Args, Result]) -> Callable[Args, Result]:
    """Make a function's annotations claims on its arguments and results.

    Costs a test of one name at each call unless something is checking, and then claims what
    `ls.typed` would. A result may be a tuple of annotated tensors; an argument may be optional.

    Args:
        function: with `ls.T[...]` on some of its parameters or its result.

    Returns:
        A function that does the same.

    Raises:
        UsageError: no function, or no annotation is an `ls.T[...]`; while checking, one that can't
            be read.

    Example:
        >>> @signature
        ... def double(x: T["tp: I"]) -> T["tp: I"]:
        ...     return 2 * x
        >>> double(torch.ones(1)).item()
        2.0
    """
    if not callable(function) or not hasattr(function, "__qualname__"):
        raise UsageError(
            "ls.signature takes a function",
            got=repr(function),
            fix='@ls.signature above def f(x: ls.T["tp: I"]) -> ls.T["tp: I"]',
        )
    written = inspect.get_annotations(function)
    if not any(_is_typed(note) for note in written.values()):
        raise UsageError(
            f"ls.signature on {function.__qualname__}: no annotation says a type",
            fix='def f(x: ls.T["tp: I"]) -> ls.T["tp: I"]',
        )
    read = functools.cache(lambda: _read(function, written))

    @functools.wraps(function)
    def same(*args: Args.args, **kwargs: Args.kwargs) -> Result:
        if claims.recording is None:
            return function(*args, **kwargs)
        notes, place, what = read(), _place(function), f"ls.signature of {function.__qualname__}"
        bound = inspect.signature(function).bind(*args, **kwargs).arguments
        for name, value in bound.items():
            _claim(value, notes.get(name), place, f"{what}, {name}")
        result = function(*args, **kwargs)
        _claim(result, notes.get("return"), place, f"{what}, result")
        return result

    return same


def _is_typed(note: Any) -> bool:
    return "T[" in note if isinstance(note, str) else _types_in(note) is not None


def _read(function: Callable[..., Any], written: dict[str, Any]) -> dict[str, Any]:
    """The types of each annotation; those kept as text are read in the function's module."""
    scope = getattr(inspect.unwrap(function), "__globals__", {})
    inner = inspect.getclosurevars(function).nonlocals
    found = {}
    for name, note in written.items():
        if not _is_typed(note):
            continue
        try:
            found[name] = _types_in(eval(note, scope, inner) if isinstance(note, str) else note)
        except NameError as error:
            raise UsageError(
                f"ls.signature on {function.__qualname__} can't read the annotation of {name}",
                got=f"{note}: {error}",
                fix="import what it names at the top of its module",
            ) from error
    return found


def _types_in(note: Any) -> Any:
    """The types in an annotation: of a tensor, of an optional one, or a list for a tuple's."""
    for extra in getattr(note, "__metadata__", ()):
        if isinstance(extra, Types):
            return dict(extra.of)
    parts = [_types_in(part) for part in get_args(note)]
    if get_origin(note) is tuple:
        return parts if any(parts) else None
    return next((part for part in parts if part is not None), None)


def _claim(value: Any, types: Any, place: claims.Place, what: str) -> None:
    if isinstance(types, list) and isinstance(value, tuple):
        for i, (item, part) in enumerate(zip(value, types, strict=False)):
            _claim(item, part, place, f"{what} {i}")
    elif isinstance(value, torch.Tensor) and types is not None:
        claims.claim(value, types, place, what)


def _place(function: Callable[..., Any]) -> claims.Place:
    """The line of the function's `def`, below its decorators."""
    code = inspect.unwrap(function).__code__  # type: ignore[attr-defined]
    line = code.co_firstlineno
    while linecache.getline(code.co_filename, line).lstrip().startswith("@"):
        line += 1
    return claims.Place(code.co_filename, line)


def type_parameters(model: torch.nn.Module, patterns: Mapping[str, Mapping[str, Type]]) -> None:
    """Claim the types of a model's parameters by patterns of their names.

    `*` matches any text, dots too. Where several patterns match a parameter, each adds its axes,
    and for an axis that two of them name the later one holds. A second call adds to the first.

    Args:
        model: its parameters get one attribute each, and are not changed otherwise.
        patterns: pattern -> axis -> type.

    Raises:
        UsageError: no module, or no patterns; a pattern that matches nothing, with names close to
            it; an unknown axis, no type, or a shard of a dimension that the parameter lacks. Then
            nothing was changed.

    Example:
        >>> model = torch.nn.Linear(2, 2)
        >>> type_parameters(model, {"*.weight": {}})
        Traceback (most recent call last):
        lockstep.errors.UsageError: LS001: no parameter matches '*.weight'
          want one of the model's 2 names
          fix  'weight'
    """
    _refuse_wrong(model, patterns)
    named = dict(model.named_parameters(remove_duplicate=False))
    found: dict[str, dict[str, Type]] = {}
    for pattern, types in patterns.items():
        names = [name for name in named if fnmatchcase(name, pattern)]
        if not names:
            raise _unmatched(pattern, list(named))
        for name in names:
            _check(name, named[name], types)
            found.setdefault(name, {}).update(types)
    for name, more in found.items():
        setattr(named[name], ATTRIBUTE, types_of(named[name]) | more)


def _refuse_wrong(model: object, patterns: object) -> None:
    want = 'axis -> type by pattern, as {"*.weight": {"tp": ls.S(0)}}'
    if not isinstance(model, torch.nn.Module):
        raise UsageError("ls.type_parameters takes a Module", got=f"a {type(model).__name__}")
    if not isinstance(patterns, Mapping):
        raise UsageError(f"ls.type_parameters: patterns={patterns!r}", want=want)
    for pattern, types in patterns.items():
        if not isinstance(pattern, str) or not isinstance(types, Mapping):
            raise UsageError(f"ls.type_parameters: {pattern!r}: {types!r}", want=want)


def types_of(parameter: torch.Tensor) -> dict[str, Type]:
    """Return what `type_parameters` said of a parameter; empty where nothing."""
    return getattr(parameter, ATTRIBUTE, {})


def _check(name: str, parameter: torch.Tensor, types: Mapping[str, Type]) -> None:
    for axis, kind in types.items():
        axis_named(axis)
        checked_type(kind, f"ls.type_parameters, {name}, {axis}")
        if kind.dim is not None and kind.dim >= parameter.dim():
            raise UsageError(
                f"{name}: {axis} {kind} of a parameter of shape {list(parameter.shape)}",
                want=f"S(0) to S({parameter.dim() - 1})" if parameter.dim() else "no S: a scalar",
            )


def _unmatched(pattern: str, names: list[str]) -> UsageError:
    close = difflib.get_close_matches(pattern, names, n=3, cutoff=0.3)
    return UsageError(
        f"no parameter matches {pattern!r}",
        want=f"one of the model's {len(names)} names",
        fix=[repr(name) for name in close],
    )
