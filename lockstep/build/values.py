"""Python values as JSON, the same in every process that holds the same value.

Paths, addresses and device numbers are left out: they differ between jobs that want one program.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

import torch

from lockstep import _compat_fsdp
from lockstep.capture.binding import WRITTEN
from lockstep.capture.parts import CODE, WRAPPERS, attributes_of, behind, is_closed, is_object
from lockstep.capture.reached import Reach

LONGEST = 2000  # characters of one value that are shown
DEEPEST = 8
ORDER = "(order)"  # of a dictionary whose keys are not in the order of their text
_NUMBERED = re.compile(r"(cuda|xpu|mps|hpu|npu|privateuseone):\d+")
_PATHS = {"path", "paths", "dir", "dirs", "directory", "file", "files", "filename", "folder"}
_PLAIN = (bool, int, float, str, list, tuple, dict, type(None))
_KNOWN = (bool, int, float, str, type(None), torch.dtype, torch.device)
_REPR = ("decimal.Decimal", "fractions.Fraction", "datetime.timedelta", "re.Pattern", "uuid.UUID")


@dataclass
class Values:
    """Shows values for one fingerprint.

    Args:
        found: says which attributes of an object may be read.
        names: id of a module, parameter or optimizer of the step -> its name.
        opaque: where something was met of which only the type is told.
    """

    found: Reach | None = None
    names: Mapping[int, str] = field(default_factory=dict)
    opaque: set[str] = field(default_factory=set)

    def show(self, value: Any, at: str = "", above: tuple[int, ...] = ()) -> Any:
        """A value as JSON; floats by their exact hex form.

        Args:
            at: where it is, for what can't be read.
            above: ids of what holds it.
        """
        scalar = _scalar(value)
        if scalar is not _NONE:
            return scalar
        if id(value) in self.names:
            return f"<{self.names[id(value)]}>"
        if id(value) in above or len(above) > DEEPEST:
            return f"<{class_of(value)}>"
        above = (*above, id(value))
        if isinstance(value, (*CODE, *WRAPPERS)):
            return self._code(value, at, above)
        if isinstance(value, Mapping):
            return self._dictionary(value, at, above)
        if isinstance(value, (list, tuple)):
            return [self.show(v, f"{at}[{i}]", above) for i, v in enumerate(value)]
        if isinstance(value, (set, frozenset)):
            return sorted(json.dumps(self.show(v, at, above), sort_keys=True) for v in value)
        if isinstance(value, slice):
            return {p: self.show(getattr(value, p), at, above) for p in ("start", "stop", "step")}
        if isinstance(value, torch.Tensor):
            return _tensor(value)
        if isinstance(value, torch.nn.Module):
            return self._module(value, at, above)
        return self._object(value, at, above)

    def short(self, value: Any, at: str = "") -> Any:
        """A value as JSON; by its digest where it is long, as a table of text or numbers is."""
        shown = self.show(value, at)
        text = json.dumps(shown)
        if len(text) <= LONGEST:
            return shown
        return f"{type(value).__name__}, sha256 {hashlib.sha256(text.encode()).hexdigest()[:16]}"

    def attributes(self, owner: Any, at: str) -> dict[str, Any]:
        """What the code in reach may read of an owner's attributes."""
        return {key: self.short(value, f"{at}.{key}") for key, value in self._readable(owner)}

    def _readable(self, owner: Any) -> Iterator[tuple[str, Any]]:
        if self.found is not None:
            yield from self.found.readable(owner)
            return
        for key, value in attributes_of(owner).items():
            if not key.startswith("_") and isinstance(value, _PLAIN):
                yield key, value

    def _code(self, value: Any, at: str, above: tuple[int, ...]) -> Any:
        if isinstance(value, functools.partial):
            parts = (value.func, value.args, value.keywords)
            return ["partial", *(self.show(part, at, above) for part in parts)]
        if isinstance(value, WRAPPERS):
            return [type(value).__name__, *(self.show(part, at, above) for part in behind(value))]
        name = f"{value.__module__}.{getattr(value, '__qualname__', type(value).__qualname__)}"
        own = getattr(value, "__self__", None)
        if own is None or isinstance(own, type) or type(own).__name__ == "module":
            return name
        return {"method": name, "of": self.show(own, at, above)}

    def _dictionary(self, value: Mapping[Any, Any], at: str, above: tuple[int, ...]) -> Any:
        shown = {str(k): self._named(str(k), v, f"{at}[{k}]", above) for k, v in value.items()}
        keys = list(shown)
        return shown if keys == sorted(keys) else {**shown, ORDER: keys}

    def _named(self, key: str, value: Any, at: str, above: tuple[int, ...]) -> Any:
        """A value under a name: where that says it is a path, only that it is one."""
        if isinstance(value, str) and _PATHS & set(key.lower().split("_")):
            return "<path>"
        return self.show(value, at, above)

    def _module(self, module: torch.nn.Module, at: str, above: tuple[int, ...]) -> Any:
        """A layer that is none of the step's own."""
        if self.found is None:  # told by fields of its own
            return f"<{class_of(module)}>"
        children = {n: self.show(c, f"{at}.{n}", above) for n, c in module.named_children()}
        own = {k: self._named(k, v, f"{at}.{k}", above) for k, v in self._readable(module)}
        return {"class": class_of(module), "training": module.training, **own, **children}

    def _object(self, value: Any, at: str, above: tuple[int, ...]) -> Any:
        kind = class_of(value)
        if kind.startswith("numpy.") and hasattr(value, "tobytes"):
            return f"{value.dtype}{list(value.shape)} {_digest(value.tobytes())}"
        if kind in _REPR:
            return repr(value)
        if isinstance(getattr(type(value), "__members__", None), dict):  # an enumeration of C++'s
            return f"{kind}.{value.name}"
        wrapped = behind(value) if is_closed(value) else []
        if wrapped:
            return [kind, *(self.show(part, at, above) for part in wrapped)]
        if not is_object(value):
            return f"<{kind}>"
        shown: dict[str, Any] = {"class": kind}
        for key, item in self._readable(value):
            if not isinstance(item, torch.Tensor):
                shown[key] = self._named(key, item, f"{at}.{key}", above)
        if not is_closed(value):
            return shown
        own = {key: item for key, item in attributes_of(value).items() if key != "prev"}
        if own and kind.startswith("torch.") and all(isinstance(v, _KNOWN) for v in own.values()):
            return {"class": kind, **{key: self.show(item, at, above) for key, item in own.items()}}
        told = kind.startswith("torch.autograd.grad_mode.") or _compat_fsdp.is_state(value)
        if at and not told:
            self.opaque.add(f"{at}: {kind}")
        return f"<{kind}>"


class _Nothing:
    pass


_NONE = _Nothing()


def show(value: Any) -> Any:
    """A value as JSON, every public attribute of an object in it; see `Values.show`.

    Example:
        >>> show({"b": (1, None), "a": 0.5})
        {'b': [1, None], 'a': '0x1.0000000000000p-1', '(order)': ['b', 'a']}
    """
    return Values().show(value)


def short(value: Any) -> Any:
    """What `show` gives, by its digest where it is long."""
    return Values().short(value)


def _scalar(value: Any) -> Any:
    if isinstance(value, str):
        return _text(str(value))  # a type of the language is a text, and is read back as one
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, PurePath):
        return "<path>"
    if isinstance(value, torch.device):
        return value.type
    if isinstance(value, (torch.Size, *WRITTEN)) and not isinstance(value, slice):
        return repr(value)
    return _NONE


def _text(value: str) -> str:
    if len(value) > 1 and value.startswith(("/", "~/")) and "\n" not in value:
        return "<path>"
    return value.partition(":")[0] if _NUMBERED.fullmatch(value) else value


def class_of(value: Any) -> str:
    """The full name of a value's class."""
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _tensor(value: torch.Tensor) -> str:
    """A tensor that is no input: what it is, but not what it holds."""
    if type(value).__qualname__ == "FakeTensor":  # of a set-up without values: told as if real
        kind: type = torch.nn.Parameter if isinstance(value, torch.nn.Parameter) else torch.Tensor
        return f"<{kind.__module__}.{kind.__qualname__}>"
    return f"<{class_of(value)}>"


def _digest(data: bytes) -> str:
    return "sha256 " + hashlib.sha256(data).hexdigest()[:16]
