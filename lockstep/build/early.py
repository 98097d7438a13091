"""Ints that were read of the rank before the step, seen as a difference between fingerprints.

Where every rank's number follows one formula of its coordinates, the formula takes the number's
place, so that all ranks ask for one program. It is verified at every rank.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Sequence
from typing import Any

from lockstep.build.fingerprint import Fields
from lockstep.spmd.affine import Affine, Place, fitted, read_affine

Path = list[Any]  # of a leaf: the field, then keys and places in it; a JSON value itself
Formulas = list[tuple[Path, Affine]]

# Fields that tell what lies in the objects, globals, closures and arguments of a step.
_OWNERS = ("module ", "object ")
_VALUES = ("value ", "contract ")
_TOLD = ("class", "children", "hooks")  # of an owner: they say what it is


def formulas(tables: Sequence[Fields], places: Sequence[Place]) -> Formulas:
    """Find the ints that differ between ranks and follow a formula of their coordinates.

    Args:
        tables: each rank's fingerprint. One that differs in other ways too is no trouble here:
            compare what `settled` makes of the tables.
        places: where each rank is; see `lockstep.spmd.affine.place_here`.

    Returns:
        Each such leaf's path, with its formula; in an order that is the same wherever it is asked.

    Example:
        >>> tables = [{"module model": {"start": 4 * rank}} for rank in range(2)]
        >>> found = formulas(tables, [{"tp": rank, "world": rank} for rank in range(2)])
        >>> [(name_of(path), str(formula)) for path, formula in found]
        [('model.start', '4*tp')]
        >>> settled(tables[0], found) == settled(tables[1], found)
        True
    """
    found: Formulas = []
    for path in unlike(tables):
        values = values_at(tables, path)
        formula = fitted(values, places) if values else None
        if formula is not None:
            found.append((path, formula))
    return found


def settled(table: Fields, found: Formulas) -> Fields:
    """A fingerprint with formulas in place of this rank's own numbers."""
    table = copy.deepcopy(table)
    for path, formula in found:
        *above, last = path
        _at(table, above)[last] = formula.record()
    return table


def agreeing(table: Fields, other: Fields, place: Place | None) -> Fields:
    """A fingerprint with another's formulas, wherever they give this rank the number it has.

    Args:
        place: where the rank is; None: not known, and any number of its own is taken for it.
    """
    mine: Formulas = []
    for path, formula in _formulas_in(other, []):
        own = _at(table, path)
        if not _is_number(own):
            continue
        if place is None or (formula.per.keys() <= place.keys() and own == formula.at(place)):
            mine.append((path, formula))
    return settled(table, mine) if mine else table


def values_at(tables: Sequence[Fields], path: Path) -> list[int]:
    """Every rank's int at a path that lies where a step can be given another number; else none."""
    field, *keys = path
    owned = field.startswith(_OWNERS) and keys and keys[0] not in _TOLD
    values = [_at(table, path) for table in tables] if owned or field.startswith(_VALUES) else []
    return values if all(map(_is_number, values)) else []


def unlike(tables: Sequence[Fields]) -> list[Path]:
    """The paths of all leaves in which any table differs from the first."""
    seen: dict[str, Path] = {}
    distinct = {json.dumps(table, sort_keys=True): table for table in tables}
    for table in distinct.values():
        for path in differing_paths(tables[0], table):
            seen.setdefault(json.dumps(path), path)
    return [seen[key] for key in sorted(seen)]


def differing_paths(one: Any, other: Any, path: Sequence[Any] = ()) -> Iterator[Path]:
    """The paths of all leaves in which two JSON values differ, in their order.

    Example:
        >>> list(differing_paths({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}))
        [['a', 1, 'b']]
    """
    if isinstance(one, dict) and isinstance(other, dict):
        for key in dict.fromkeys([*one, *other]):
            yield from differing_paths(one.get(key), other.get(key), [*path, key])
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for at, (mine, its) in enumerate(zip(one, other, strict=True)):
            yield from differing_paths(mine, its, [*path, at])
    elif type(one) is not type(other) or one != other:
        yield list(path)


def name_of(path: Sequence[Any]) -> str:
    """What the user calls a leaf: "model.bounds[0]", "train.py's START" as "train:START"."""
    field, *keys = path
    name = field.partition(" ")[2]
    for key in keys:
        name += f"[{key}]" if isinstance(key, int) else f".{key}"
    return name


def _is_number(value: Any) -> bool:
    return type(value) is int


def _at(table: Any, path: Sequence[Any]) -> Any:
    """What lies at a path; None where the table has no such place."""
    for key in path:
        if isinstance(table, dict):
            table = table.get(key)
        elif isinstance(table, list) and isinstance(key, int) and key < len(table):
            table = table[key]
        else:
            return None
    return table


def _formulas_in(value: Any, path: Path) -> Iterator[tuple[Path, Affine]]:
    formula = read_affine(value)
    if formula is not None:
        yield path, formula
    elif isinstance(value, (dict, list)):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in items:
            yield from _formulas_in(inner, [*path, key])
