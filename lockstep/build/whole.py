"""Whether a library is whole: one that a killed linker left is not, and opening it may end us."""

from __future__ import annotations

import struct
from pathlib import Path

_MAGIC = b"\x7fELF\x02\x01"  # 64 bits, little-endian
_SECTIONS = struct.Struct("<40xQ10xHH2x")  # of the header: where the table of sections is


def is_whole(path: str) -> bool:
    """Return whether a file is an ELF library to its last byte: its table of sections ends it.

    Opening a shorter one is an error where its header is cut, and SIGBUS where more is there.
    Of a file of another kind only the beginning is looked at.
    """
    try:
        with Path(path).open("rb") as stream:
            head = stream.read(_SECTIONS.size)
        size = Path(path).stat().st_size
    except FileNotFoundError:
        return False
    if len(head) < _SECTIONS.size:
        return False
    if not head.startswith(_MAGIC):
        return any(head)
    table, each, count = _SECTIONS.unpack(head)
    return table > 0 and size >= table + each * count
