"""Whether the programs of all roles answer each other's messages, and in an order that ends.

Pure functions of what the programs say of themselves, so that any rank may judge and all agree.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lockstep.fleet.faults import Fault

Message = Mapping[str, Any]
Place = tuple[int, ...]
Name = tuple[Any, ...]  # who sends it to whom, along which axis, and which of those it is


@dataclass(frozen=True)
class Roles:
    """The roles of a step, each with the messages of its program.

    Args:
        axes: along which ranks run other programs.
        sizes: of the mesh.
        programs: coordinates along `axes` -> messages in order, as `messages_of` gives them.

    Example:
        >>> sent = {"op": "send", "axis": "pp", "place": 1, "number": 0, "line": "a.py:3"}
        >>> sent |= {"shape": ["4"], "dtype": "f32"}
        >>> Roles(("pp",), {"pp": 2}, {(0,): [sent], (1,): []}).fault().what
        'pp=0 sends message 1 to 1 along pp, and pp=1 does not take it'
    """

    axes: Sequence[str]
    sizes: Mapping[str, int]
    programs: Mapping[Place, Sequence[Message]]
    _by_name: dict[tuple[str, Name], Message] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for at, rows in self.programs.items():
            for row in rows:
                self._by_name[row["op"], self._name(at, row)] = row

    def fault(self) -> Fault | None:
        """What is wrong, in words; None where every message is taken."""
        return next((f for f in (*self._lonely(), *self._waiting()) if f is not None), None)

    def _lonely(self) -> Iterator[Fault]:
        """Messages that the other end does not have, or has in another form."""
        for at, rows in self.programs.items():
            for row in rows:
                other = "recv" if row["op"] == "send" else "send"
                found = self._by_name.get((other, self._name(at, row)))
                if found is None or _form(found) != _form(row):
                    yield self._apart(at, row, found)

    def _apart(self, at: Place, row: Message, found: Message | None) -> Fault:
        sends = row["op"] == "send"
        verb, way, take = ("sends", "to", "take") if sends else ("waits for", "from", "send")
        told = f"message {row['number'] + 1} {way} {row['place']} along {row['axis']}"
        peer = self.called(self._peer(at, row))
        what = f"{self.called(at)} {verb} {told}, and {peer} "
        if found is None:
            back = -row["place"]
            fix = f'ls.recv(like, "{row["axis"]}", from_={back})' if sends else ""
            fix = fix or f'ls.send(x, "{row["axis"]}", to={back})'
            return Fault(
                "odd",
                None,
                what + f"does not {take} it",
                got=f"{_form(row)} at {row['line']}",
                why="one of the two would wait for ever",
                fix=f"{fix} in the program of {peer}",
            )
        return Fault(
            "odd",
            None,
            what + ("takes another form" if sends else "sends another form"),
            got=f"{_form(row)} at {row['line']}\n{_form(found)} at {found['line']}",
            want="the same shape and dtype at both ends",
            fix="give ls.recv a `like` of the shape and dtype that is sent",
        )

    def _waiting(self) -> Iterator[Fault]:
        """Walk all programs: where none can go on, they wait for each other."""
        done = dict.fromkeys(self.programs, 0)
        sent: set[Name] = set()
        moved = True
        while moved:
            moved = False
            for at, rows in self.programs.items():
                while done[at] < len(rows):
                    row = rows[done[at]]
                    name = self._name(at, row)
                    if row["op"] == "recv" and name not in sent:
                        break
                    sent.add(name)
                    done[at] += 1
                    moved = True
        stuck = {at: rows[done[at]] for at, rows in self.programs.items() if done[at] < len(rows)}
        if stuck:
            yield Fault(
                "odd",
                None,
                "the roles wait for each other",
                got="\n".join(
                    f"{self.called(at)} waits for {self.called(self._peer(at, row))} at "
                    f"{row['line']}"
                    for at, row in stuck.items()
                ),
                why="each would send only after it has received",
                fix="send before the receive that waits for the answer",
            )

    def called(self, at: Place) -> str:
        """A role in words: "pp=1"."""
        named = zip(self.axes, at, strict=True)
        return ",".join(f"{axis}={place}" for axis, place in named) or "every rank"

    def _peer(self, at: Place, row: Message) -> Place:
        """The role at the other end; along an axis without roles it is the same."""
        return tuple(
            (place + row["place"]) % self.sizes[axis] if axis == row["axis"] else place
            for axis, place in zip(self.axes, at, strict=True)
        )

    def _name(self, at: Place, row: Message) -> Name:
        """A message by who sends it and who takes it, the same at both ends."""
        peer = self._peer(at, row)
        sends = row["op"] == "send"
        ends = (at, peer) if sends else (peer, at)
        return (*ends, row["axis"], row["place"] if sends else -row["place"], row["number"])


def _form(row: Message) -> str:
    return f"{row['dtype']}[{', '.join(row['shape'])}]"
