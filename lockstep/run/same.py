"""Thousands of places compared by identity in a few flat passes, none of which is a loop of ours.

A call of a step looks at all that its program was made for, and next to never has any of it moved.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import chain
from operator import call, is_
from typing import Any

Place = tuple[Any, Any, Any]  # what has a `get`, as a mapping has, a key in it, and what it held


class Same:
    """What some places and containers hold, and whether they hold the very same objects later.

    Args:
        places: where single values are.
        inside: containers whose items are compared: lists, sets, or the views of a dictionary.
        sized: containers of which only the number of items is.

    Example:
        >>> table, row = {"a": None}, [1, 2]
        >>> same = Same([(table, "a", None)], [row])
        >>> before = same.holds()
        >>> row[1] = 3
        >>> before, same.holds()
        (True, False)
    """

    def __init__(
        self,
        places: Iterable[Place] = (),
        inside: Iterable[Collection[Any]] = (),
        sized: Iterable[Collection[Any]] = (),
    ) -> None:
        places, inside, sized = list(places), list(inside), list(sized)
        places.sort(key=lambda place: not isinstance(place[0], dict))  # the most, and quickest
        self._tables = [mapping for mapping, _, _ in places if isinstance(mapping, dict)]
        self._gets = [mapping.get for mapping, _, _ in places[len(self._tables) :]]
        self._keys = [key for _, key, _ in places]
        self._values = [value for _, _, value in places]
        self._rows = [one for one in inside if len(one)]
        self._items = list(chain.from_iterable(self._rows))
        self._empty = [one for one in (*inside, *sized) if not len(one)]  # the most, and quickest
        self._sized = [*self._rows, *(one for one in sized if len(one))]
        self._sizes = list(map(len, self._sized))

    def holds(self) -> bool:
        """Whether all of it is as it was."""
        if any(self._empty) or list(map(len, self._sized)) != self._sizes:
            return False
        keys, values = iter(self._keys), iter(self._values)  # what ends first leaves them there
        return (
            all(map(is_, map(dict.get, self._tables, keys), values))
            and all(map(is_, map(call, self._gets, keys), values))
            and all(map(is_, chain.from_iterable(self._rows), self._items))
        )
