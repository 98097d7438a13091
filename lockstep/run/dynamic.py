"""`dynamic=` of `ls.compile`: which sizes may differ from call to call, and what is outside."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from types import CodeType
from typing import Any, TypeAlias

import torch

from lockstep.capture.binding import Call, describe
from lockstep.capture.ranges import Size, readable
from lockstep.capture.sizes import odd_layout
from lockstep.errors import ContractError, UsageError

MOST_TRIED = 100_000  # sizes of a range that are looked through for those left out
Loose: TypeAlias = Mapping[int, Mapping[int, Size]]  # argument leaf -> dimension -> its range
_WIDER = 'on_new_shape="build" builds a program for these sizes, by a vote of all ranks'


def read_dynamic(given: Any) -> tuple[Size, ...]:
    """Read `dynamic=`.

    Raises:
        UsageError: not {argument: {dimension: (smallest, largest)}}, or a range without two sizes.
    """
    form = 'ranges by argument and dimension, as {"tokens": {0: (2, 64)}}'
    if given is None:
        return ()
    if not isinstance(given, Mapping):
        raise UsageError(f"dynamic={given!r}", want=form)
    found = []
    for name, dims in given.items():
        if not isinstance(name, str) or not isinstance(dims, Mapping):
            raise UsageError(f"dynamic: {name!r}: {dims!r}", want=form)
        for dim, ends in dims.items():
            said = f"dynamic: {name}, dimension {dim!r}: {ends!r}"
            if type(dim) is not int or dim < 0:
                raise UsageError(said, want="dimensions from 0 on")
            pair = isinstance(ends, (tuple, list)) and len(ends) == 2
            if not pair or any(type(end) is not int for end in ends) or ends[0] >= ends[1]:
                raise UsageError(
                    said, want="(smallest, largest), two numbers", fix=f"{dim}: (2, 64)"
                )
            if ends[0] < 2:
                raise UsageError(
                    said,
                    want="2 as the smallest size",
                    why="a size of 1 is spread over others, and one of 0 leaves nothing to compute",
                    fix="pad those: ls.even_batches",
                )
            found.append(Size(name, dim, *ends))
    return tuple(found)


class Dynamic:
    """The sizes that differ, at the calls of one step.

    Args:
        name: the step's, for errors.
        sizes: as read from `dynamic=`.
        builds: whether a size outside is built a program for, instead of refused.
    """

    def __init__(self, name: str, sizes: Sequence[Size], builds: bool) -> None:
        self._name, self.sizes, self.builds = name, tuple(sizes), builds
        self._at: dict[int, tuple[list[str], dict[int, dict[int, Size]]]] = {}

    def loose(self, call: Call) -> Loose:
        """The sizes of a call that its key leaves open; none where one is outside and is built for.

        Raises:
            UsageError: an argument or a dimension that the call lacks, or an odd layout.
            ContractError: a size outside of its range.
        """
        loose = self._places(call)
        outside = []
        for at, dims in loose.items():
            shape = _shape(call, at, dims)
            outside += [(size, shape[d]) for d, size in dims.items() if not _within(size, shape[d])]
        if not outside:
            return loose
        if self.builds:
            return {}
        wider = {size: (min(size.low, max(is_, 2)), max(size.high, is_)) for size, is_ in outside}
        said = ", ".join(f'"{s.name}": {{{s.dim}: {ends}}}' for s, ends in wider.items())
        small = any(is_ < 2 for _, is_ in outside)
        raise ContractError(
            f"{self._name}: a size is outside of what dynamic= says",
            got="\n".join(f"{size} = {is_}" for size, is_ in outside),
            want="\n".join(f"{size} from {size.low} to {size.high}" for size, _ in outside),
            fix=["pad it: ls.even_batches" if small else f"dynamic={{{said}}}", _WIDER],
        )

    def refuse_broken(self, broken: tuple[str, str], call: Call) -> None:
        """Refuse a call within the ranges for which its program was not captured.

        Raises:
            ContractError: it is not built for, either.
        """
        if self.builds:
            return
        guard, line = broken
        places = self._places(call).items()
        sizes = [(s, call.leaves[at].shape[d]) for at, dims in places for d, s in dims.items()]
        raise ContractError(
            f"{self._name}: this call's sizes are not those that its program holds for",
            where=line or None,
            got=", ".join(f"{size} = {is_}" for size, is_ in sizes if str(size) in guard),
            want=guard,
            why="the step compares sizes there, and was captured on one side of it",
            fix=["keep to it: pad, or give dynamic= a range on one side", _WIDER],
        )

    def _places(self, call: Call) -> dict[int, dict[int, Size]]:
        known = self._at.get(id(call.names))
        if known is None:
            known = self._at[id(call.names)] = call.names, self._found(call)
        return known[1]

    def _found(self, call: Call) -> dict[int, dict[int, Size]]:
        found: dict[int, dict[int, Size]] = {}
        for size in self.sizes:
            if size.name not in call.names:
                tensors = [
                    name
                    for name, leaf in zip(call.names, call.leaves, strict=True)
                    if isinstance(leaf, torch.Tensor)
                ]
                raise UsageError(
                    f"dynamic: {self._name} has no argument {size.name}",
                    want=f"one of {', '.join(tensors) or 'none: it takes no tensor'}",
                )
            found.setdefault(call.names.index(size.name), {})[size.dim] = size
        return found


def _shape(call: Call, at: int, dims: Mapping[int, Size]) -> torch.Size:
    """The shape of a leaf that has sizes which differ."""
    leaf, name = call.leaves[at], call.names[at]
    if not isinstance(leaf, torch.Tensor):
        raise UsageError(f"dynamic: {name} is no tensor", got=f"a {type(leaf).__name__}")
    if max(dims) >= leaf.dim():
        raise UsageError(
            f"dynamic: {name} has no dimension {max(dims)}",
            got=describe(leaf),
            want=f"a dimension from 0 to {leaf.dim() - 1}" if leaf.dim() else "a tensor with some",
        )
    if odd_layout(leaf.shape, leaf.stride(), dims):
        raise UsageError(
            f"dynamic: {name} is not contiguous along dimension {min(dims)}",
            got=f"{describe(leaf)} with strides {list(leaf.stride())}",
            fix=f"pass {name}.contiguous()",
        )
    return leaf.shape


def _within(size: Size, actual: int) -> bool:
    return size.low <= actual <= size.high


def fits(actual: Any, built: Any) -> bool:
    """Whether what a tensor has is what a contract says: a range "2..64" admits what is in it."""
    if not isinstance(built, (list, tuple)):
        return bool(actual == built)
    return len(actual) == len(built) and all(map(_fits, actual, built))


def _fits(actual: int, built: int | str) -> bool:
    if isinstance(built, int):
        return actual == built
    low, _, high = built.partition("..")
    return built == "*" or int(low) <= actual <= int(high)


class Guards:
    """What a program takes to hold of sizes, as its contract says it; asked at each call."""

    def __init__(self, contract: Mapping[str, Any]) -> None:
        self._sizes = [Size(**row) for row in contract.get("sizes", ())]
        self._rows: list[tuple[CodeType, str, str]] = [
            (_formula(row["text"], len(self._sizes)), row["text"], row["line"])
            for row in contract.get("guards", ())
        ]
        self._at: dict[int, tuple[list[str], list[Callable[[list[Any]], int]]]] = {}

    def broken(self, call: Call) -> tuple[str, str] | None:
        """The first that does not hold for a call, readable, and the line that asked for it."""
        if not self._rows:
            return None
        known = self._at.get(id(call.names))
        if known is None:
            readers = [_reader(call.names.index(s.name), s.dim) for s in self._sizes]
            known = self._at[id(call.names)] = call.names, readers
        numbers = {f"n{i}": read(call.leaves) for i, read in enumerate(known[1])}
        for code, text, line in self._rows:
            if not _holds(code, numbers):
                return readable(text, self._sizes), line
        return None

    def left_out(self) -> list[str]:
        """What of the declared ranges a program does not serve, by guards on one size alone."""
        told = []
        for code, text, line in self._rows:
            numbers = set(re.findall(r"\bn(\d+)\b", text))
            size = self._sizes[int(min(numbers))]
            if len(numbers) != 1 or size.high - size.low > MOST_TRIED:
                continue
            every = range(size.low, size.high + 1)
            bad = [n for n in every if not _holds(code, {f"n{min(numbers)}": n})]
            if bad:
                shown = ", ".join(map(str, bad[:3])) + (f" to {bad[-1]}" if len(bad) > 3 else "")
                told.append(
                    f"{len(bad)} of the {len(every)} sizes of {size} ({shown}) are left out: "
                    f"{readable(text, self._sizes)}, {line or 'by the compiler'}"
                )
        return told


def _formula(text: str, sizes: int) -> CodeType:
    """A guard's code: of a file, so that it may name sizes, min and max, and nothing else.

    Raises:
        ValueError: it is no such formula.
        SyntaxError: it is no expression.
    """
    code, own = compile(text, "<guard>", "eval"), {f"n{number}" for number in range(sizes)}
    names = set(code.co_names)
    nested = any(isinstance(constant, CodeType) for constant in code.co_consts)
    if nested or not names & own or not names <= own | {"min", "max"}:
        raise ValueError(f"a guard that is no formula of the sizes: {text}")
    return code


def _holds(code: CodeType, numbers: dict[str, int]) -> bool:
    return bool(eval(code, {"__builtins__": {"min": min, "max": max}}, numbers))


def _reader(at: int, dim: int) -> Callable[[list[Any]], int]:
    return lambda leaves: leaves[at].shape[dim]
