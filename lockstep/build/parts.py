"""Parts of a graph by name: what a compiler makes of one is known where the same was compiled.

A part is what the compiler is given at once: a repeated body, or the whole graph. Its key is a
digest of all that is compiled, so that an artifact with that key among its parts holds the text
and the kernels that would be made again: under the same versions, flags and options, which the
key says nothing about.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lockstep import _compat
from lockstep.build.artifact import PROGRAM, Artifact
from lockstep.build.graph_backend import graph_text
from lockstep.build.outline.driver import BODY
from lockstep.build.rewrite import Rewritten
from lockstep.errors import LockstepError

UNNAMED = ""  # in a manifest's list: a part that has no key
_OWN = {"aten", "prims", "prim", "_c10d_functional", "lockstep"}  # what only torch and we define
_DIGEST = re.compile("[0-9a-f]{32}")

Earlier = Callable[[str], Rewritten | None]


def nothing_earlier(key: str) -> Rewritten | None:
    """Where nothing was compiled before."""
    return None


@dataclass(frozen=True)
class Made:
    """A kernel that was compiled before.

    Args:
        files: by ending, "so" or "cubin" and "json"; without the source.
        source: the C++ or Triton that it was compiled from.
    """

    files: dict[str, bytes]
    source: str


def key_of(gm: Any, epilogue: str = "") -> str:
    """The name of a part: a digest of its text, of every value's form, and of what is appended.

    Returns:
        UNNAMED where sizes may differ, or another's operators are called: more decides there.
    """
    nodes = list(gm.graph.nodes)
    try:
        forms = [_form(node.meta.get("val")) for node in nodes]
        if not all(map(_is_own, nodes)):
            return UNNAMED
        told = json.dumps([graph_text(gm), forms, _shared(nodes), epilogue])
    except (_Open, LockstepError):
        return UNNAMED
    return hashlib.sha256(told.encode()).hexdigest()[:32]


def held_part(artifact: Artifact, key: str) -> Rewritten | None:
    """What an artifact holds of a part; None where it is not as its manifest says."""
    keys: list[str] = artifact.manifest.get("parts", [])
    if key not in keys:
        return None
    text = _part_text(artifact.blobs[PROGRAM].decode(), keys.index(key))
    kernels = {digest: _made(artifact, digest) for digest in sorted(set(_DIGEST.findall(text)))}
    found = {digest: made for digest, made in kernels.items() if made.files}
    return Rewritten(text, dict(found), frozenset(), key) if text else None


def _part_text(text: str, at: int) -> str:
    """The module that a body was before it became a function; of no bodies, the whole text."""
    functions = {
        item.name: item for item in ast.parse(text).body if isinstance(item, ast.FunctionDef)
    }
    if BODY.format(0) not in functions:
        return text if at == 0 else ""
    body = functions.get(BODY.format(at))
    return ast.unparse(ast.Module(body.body[:-1], [])) + "\n" if body is not None else ""


def _made(artifact: Artifact, digest: str) -> Made:
    prefix = f"kernels/{digest}."
    files = {
        name.removeprefix(prefix): data
        for name, data in artifact.blobs.items()
        if name.startswith(prefix)
    }
    source = (files.pop("cpp", None) or files.pop("py", b"")).decode()
    return Made(files, source)


class _Open(Exception):
    """A value's form is not known in full."""


def _form(value: Any) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        sizes = [*value.shape, *value.stride(), value.storage_offset()]
        if not all(type(size) is int for size in sizes):
            raise _Open
        marks = (value.requires_grad, value.is_conj(), value.is_neg())
        return [str(value.dtype), str(value.device), len(value.shape), *sizes, *marks]
    if isinstance(value, (tuple, list)):
        return list(map(_form, value))
    if value is None or type(value) in (bool, int, float, str):
        return [type(value).__name__, repr(value)]
    raise _Open


def _is_own(node: Any) -> bool:
    if isinstance(node.target, _compat.op_overload_type()):
        return node.target.namespace in _OWN
    return node.op != "call_function" or not hasattr(node.target, "namespace")


def _shared(nodes: list[Any]) -> list[int]:
    """Which inputs lie in one memory: for each the first that lies in its own."""
    import torch

    first: dict[Any, int] = {}
    given = [node.meta["val"] for node in nodes if node.op == "placeholder"]
    tensors = [value for value in given if isinstance(value, torch.Tensor)]
    return [
        first.setdefault(_compat.storage_identity(value), at) for at, value in enumerate(tensors)
    ]
