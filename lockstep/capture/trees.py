"""The tree of what a step returns, as text that another rank reads back."""

from __future__ import annotations

import functools

import torch

from lockstep._compat import pytree
from lockstep.errors import CaptureError


def tree_text(spec: pytree.TreeSpec) -> str:
    """Return a tree without its leaves as text.

    Raises:
        CaptureError: it holds a container whose type has no name that a file could hold.
    """
    _name_torchs_own()
    try:
        return pytree.treespec_dumps(spec)
    except (NotImplementedError, TypeError) as error:
        raise CaptureError(
            "the step returns a container that no file can name",
            got=str(error).partition(" found.")[0],
            want="tuples, lists, dictionaries, or a type whose tree was registered with a name",
            why="a rank that loads the program has to know what to return",
            fix="return what is needed of it in a tuple or a dictionary",
        ) from error


def tree_of(text: str) -> pytree.TreeSpec:
    """Return the tree that `tree_text` wrote."""
    _name_torchs_own()
    return pytree.treespec_loads(text)


@functools.cache
def _name_torchs_own() -> None:
    """What `torch.max(x, dim=0)` and kin return is a tree, but torch gives it no name for files."""
    names, kinds = pytree.SUPPORTED_SERIALIZED_TYPES, pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE
    for kind in torch.return_types.all_return_types:
        known = names.get(kind)
        if known and known.serialized_type_name == pytree.NO_SERIALIZED_TYPE_NAME_FOUND:
            name = f"torch.return_types.{kind.__name__}"
            names[kind] = known._replace(serialized_type_name=name)
            kinds[name] = kind
