"""A program's byte code: what the same interpreter loads without reading the program's text.

The text stays what counts: byte code names the interpreter it is of, and the digest of the text it
was made from. Where either differs, the text is compiled. That the two agree can be seen without
running any of it: `lockstep verify` compiles the text and compares.
"""

from __future__ import annotations

import importlib.util
import marshal
import sys
from types import CodeType
from typing import Any

BLOB = "program.code"
# Without references inside: bytes then depend on nothing but the code.
_MARSHAL = 2


def compiled(text: str, digest: str) -> CodeType:
    """Compile a program's text, alike in every process whatever its flags.

    Args:
        digest: of the text, in hex; its file name in tracebacks.
    """
    return compile(text, filename_of(digest), "exec", dont_inherit=True, optimize=0)


def filename_of(digest: str) -> str:
    """Return what tracebacks call the program."""
    return f"<{digest[:12]} program.py>"


def here() -> dict[str, str]:
    """Return what says which interpreters read each other's byte code.

    Example:
        >>> sorted(here())
        ['interpreter', 'magic']
    """
    tag = sys.implementation.cache_tag or sys.implementation.name
    return {"interpreter": tag, "magic": importlib.util.MAGIC_NUMBER.hex()}


def byte_code(text: str, digest: str) -> tuple[dict[str, str], bytes]:
    """Return what a manifest tells of a program's byte code, and the byte code."""
    return here() | {"source": digest}, marshal.dumps(compiled(text, digest), _MARSHAL)


def code_of(told: dict[str, str] | None, data: bytes | None, digest: str) -> CodeType | None:
    """Return the code that byte code is, where this interpreter and that text are its own.

    Args:
        told: the manifest's "code".
        data: the blob.
        digest: of the program's text.
    """
    if told is None or data is None or told != here() | {"source": digest}:
        return None
    try:
        found: Any = marshal.loads(data)
    except (ValueError, EOFError, TypeError):
        return None
    return found if isinstance(found, CodeType) else None


def agrees(told: dict[str, str] | None, data: bytes | None, text: str, digest: str) -> bool | None:
    """Return whether byte code is what the text compiles to; None where that can't be told here."""
    if told is None or data is None or {**told, "source": ""} != here() | {"source": ""}:
        return None
    return told["source"] == digest and data == marshal.dumps(compiled(text, digest), _MARSHAL)
