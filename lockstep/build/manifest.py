"""A manifest's text: canonical JSON, in limits that are checked before a parser sees it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from lockstep.errors import UsageError

MAX_BYTES = 32 << 20
MAX_VALUES = 2 << 20  # commas and brackets, those in strings too: what bounds a parser's memory
MAX_DEPTH = 64

_NO_BRACKETS = bytes(byte for byte in range(256) if byte not in b'[]{}"')
_STRING = re.compile(rb'"[^"]*"')


def canonical(manifest: Mapping[str, Any]) -> bytes:
    """Return the one spelling of a manifest: ASCII, keys sorted, no white space, no NaN.

    Raises:
        UsageError: LS001, it holds a value that JSON does not, or is over a limit.

    Example:
        >>> canonical({"b": [1, 2.5, None], "a": "x"})
        b'{"a":"x","b":[1,2.5,null]}'
    """
    try:
        text = _spelled(manifest)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError("the manifest holds a value that JSON does not", got=str(error)) from error
    over = over_limit(text)
    if over is not None:
        raise UsageError("the manifest is over a limit of the format", got=over[0], want=over[1])
    return text


def parse(text: bytes) -> dict[str, Any]:
    """Return the manifest that a canonical text is.

    Raises:
        ValueError: in words, what is wrong with the text.
    """
    over = over_limit(text)
    if over is not None:
        raise ValueError(f"{over[0]}, where a manifest has {over[1]}")
    try:
        manifest = json.loads(text.decode("ascii"))
        same = isinstance(manifest, dict) and _spelled(manifest) == text
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON: {error}") from error
    if not same:
        raise ValueError("it is in another spelling than canonical JSON of an object")
    return manifest


def over_limit(text: bytes) -> tuple[str, str] | None:
    """Return what a text has too much of, and the limit; None where it is within all of them.

    Example:
        >>> over_limit(b"[" * 100)
        ('brackets that do not close', 'balanced ones')
        >>> over_limit(b"[" * 100 + b"]" * 100)
        ('values nested deeper than 64', 'at most 64 levels')
    """
    if len(text) > MAX_BYTES:
        return f"{len(text)} bytes", f"at most {MAX_BYTES} bytes"
    values = text.count(b",") + text.count(b"[") + text.count(b"{")
    if values > MAX_VALUES:
        return f"{values} values", f"at most {MAX_VALUES} values"
    return _too_deep(text)


def _too_deep(text: bytes) -> tuple[str, str] | None:
    """Take away the innermost pairs of brackets, level by level."""
    unescaped = text.replace(rb"\\", b"").replace(rb"\"", b"")
    brackets = unescaped.translate(None, _NO_BRACKETS).replace(b'""', b"")
    left = _STRING.sub(b"", brackets)
    for _ in range(MAX_DEPTH):
        if not left:
            return None
        inner = left.replace(b"[]", b"").replace(b"{}", b"")
        if len(inner) == len(left):
            return "brackets that do not close", "balanced ones"
        left = inner
    if not left:
        return None
    return f"values nested deeper than {MAX_DEPTH}", f"at most {MAX_DEPTH} levels"


def _spelled(manifest: Mapping[str, Any]) -> bytes:
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return text.encode("ascii")
