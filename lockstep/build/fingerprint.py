"""Whether an artifact is the one that a job wants, said without tracing anything.

A fingerprint is a readable table: field -> value. Its digest names the artifact in a store, and two
tables that differ are told field by field. Paths, hosts, users, process ids and the rank are never
in it.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import json
import platform
import sys
import textwrap
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from types import CodeType
from typing import Any

import torch

from lockstep import __version__, _compat
from lockstep.build.flags import global_flags
from lockstep.build.requires import basic_requires
from lockstep.build.settings import build_settings
from lockstep.capture.binding import CODE, WRITTEN, Call, Step
from lockstep.capture.reach import Reach
from lockstep.capture.state import State

Fields = dict[str, Any]
LONGEST = 2000  # characters of one value that are shown


def fingerprint(
    step: Step,
    call: Call,
    state: State,
    found: Reach,
    *,
    contract: Fields,
    mesh: dict[str, int],
    backend: str,
    options: Fields,
) -> Fields:
    """Make the table for one variant of a step.

    Args:
        found: the code and values that the step reaches.
        contract: the variant's key as JSON values: arguments, parameters, modes.
        mesh: axis -> number of ranks.
        backend, options: how the graph is lowered.

    Returns:
        Field -> JSON value, the same on every rank that wants the same program.
    """
    fields: Fields = {"step": step.name, "backend": backend, **_flat("options", options)}
    fields |= _flat("mesh", mesh)
    fields |= {f"source {name}": digest_of_source(f) for name, f in sorted(found.functions.items())}
    fields |= {f"value {name}": short(v) for name, (v, _) in sorted(found.values.items())}
    fields |= _attributes(call, state, found)
    fields |= _flat("contract", contract)
    fields |= _versions(found)
    fields |= global_flags()
    fields |= _flat("build", build_settings(backend))
    fields["not covered"] = sorted(found.opaque)
    return fields


def digest(fields: Fields) -> str:
    """The sha256 of a fingerprint, in hex: the artifact's name in a store."""
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def file_of(fields: Fields) -> str:
    """The name of the file that holds a fingerprint's artifact in a store."""
    return f"{digest(fields)[:32]}.lockstep"


def differences(wanted: Fields, got: Fields) -> list[tuple[str, Any, Any]]:
    """Every field in which two fingerprints differ: (field, wanted, got), "-" where missing."""
    names = sorted({*wanted, *got})
    rows = [(name, wanted.get(name, "-"), got.get(name, "-")) for name in names]
    return [row for row in rows if row[1] != row[2]]


def _flat(prefix: str, values: Fields) -> Fields:
    return {f"{prefix} {name}": value for name, value in values.items()}


@functools.lru_cache(maxsize=4096)
def digest_of_source(item: Any) -> str:
    """A digest of a function's or class' code: no comments, docstrings or positions.

    What has no source (made by exec) is digested by its byte code, and so is a lambda, since the
    source of one is its whole line, which may hold several.
    """
    code = getattr(item, "__code__", None)
    if code is not None and code.co_name == "<lambda>":
        return _digest_of_code(code)
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(item)))
    except (OSError, TypeError, SyntaxError):
        return _digest_of_code(code) if code is not None else f"no source of {item.__qualname__}"
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            if isinstance(body[0].value, ast.Constant) and isinstance(body[0].value.value, str):
                body.pop(0)
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()[:16]


def _digest_of_code(code: CodeType) -> str:
    inner = [_digest_of_code(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    raw = repr((code.co_code, inner, code.co_names, code.co_varnames, code.co_freevars))
    return "bytecode " + hashlib.sha256(raw.encode()).hexdigest()[:16]


def show(value: Any, depth: int = 0) -> Any:
    """A plain value as JSON; floats by their exact hex form.

    A config object is told by its plain attributes, a deep or foreign one by its type.
    """
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value.hex()
    if depth < 4 and isinstance(value, (list, tuple)):
        return [show(v, depth + 1) for v in value]
    if depth < 4 and isinstance(value, dict):
        return {str(k): show(v, depth + 1) for k, v in value.items()}
    if depth < 4 and isinstance(value, (set, frozenset)):
        return sorted(repr(show(v, depth + 1)) for v in value)
    if isinstance(value, torch.device):
        return value.type
    if isinstance(value, slice):
        return {part: show(getattr(value, part), depth + 1) for part in ("start", "stop", "step")}
    if isinstance(value, (torch.Size, *WRITTEN)):
        return repr(value)
    if isinstance(value, functools.partial) and depth < 4:
        parts = (value.func, value.args, value.keywords)
        return ["partial", *(show(part, depth + 1) for part in parts)]
    if isinstance(value, CODE):
        return f"{value.__module__}.{getattr(value, '__qualname__', type(value).__qualname__)}"
    fields = getattr(type(value), "__dataclass_fields__", None)
    if fields is not None and depth < 4:
        return {name: show(getattr(value, name, None), depth + 1) for name in fields}
    if type(value).__qualname__ == "FakeTensor":  # of a set-up without values: told as if real
        kind: type = torch.nn.Parameter if isinstance(value, torch.nn.Parameter) else torch.Tensor
        return f"<{kind.__module__}.{kind.__qualname__}>"
    held = (torch.nn.Module, torch.optim.Optimizer, torch.Tensor)  # told by fields of their own
    if depth < 2 and hasattr(value, "__dict__") and not isinstance(value, held):
        plain = {k: v for k, v in vars(value).items() if _is_plain(v) and not k.startswith("_")}
        return {"class": type(value).__qualname__, **show(plain, depth + 1)}
    return f"<{type(value).__module__}.{type(value).__qualname__}>"


def _is_plain(value: Any) -> bool:
    """Whether a value of a config object says the same in every process."""
    return value is None or isinstance(value, (bool, int, float, str, list, tuple, dict))


def short(value: Any) -> Any:
    """A plain value as JSON; by its digest where it is long, as a table of text or numbers is."""
    shown = show(value)
    text = json.dumps(shown)
    if len(text) <= LONGEST:
        return shown
    return f"{type(value).__name__}, sha256 {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _attributes(call: Call, state: State, found: Reach) -> Fields:
    """Each object's class and the attributes that the step may read: `self.eps`, a config."""
    fields: Fields = {}
    for name, obj in call.objects.items():
        own = {k: short(v) for k, v in found.readable(obj)} if hasattr(obj, "__dict__") else {}
        fields[f"object {name}"] = {"class": type(obj).__qualname__, **own}
    for name, module in state.modules:
        own = {key: short(value) for key, value in found.readable(module)}
        tables = _compat.hook_tables(module)
        hooks = [[show(hook) for hook in table.values()] for table in tables if table]
        fields[f"module {name}"] = {"class": type(module).__qualname__, **own, "hooks": hooks}
    for slot in state.parameters:
        hooks = [show(hook) for hook in _compat.all_tensor_hooks(slot.tensor)]
        fields |= {f"hooks {slot.name}": hooks} if hooks else {}
    for name, optimizer in state.optimizers:
        fields[f"optimizer {name}"] = type(optimizer).__qualname__
    return fields


def _versions(found: Reach) -> Fields:
    fields: Fields = {
        "version lockstep": _own_version(),
        "version python": platform.python_version(),
    }
    fields |= {f"version {k}": v for k, v in basic_requires(()).items() if k != "ops"}
    fields["machine"] = platform.machine()
    for package in sorted(found.libraries - {"torch", "lockstep"}):
        for distribution in _distributions_of(package):
            fields[f"version {distribution}"] = metadata.version(distribution)
    return fields


@functools.cache
def _own_version() -> str:
    """Lockstep's version, with a digest of the sources that decide what a program is."""
    root = Path(__file__).parents[1]
    files = [
        root / "_compat.py",
        *(f for d in ("spmd", "capture", "build") for f in (root / d).glob("*.py")),
    ]
    texts = b"".join(file.read_bytes() for file in sorted(files))
    return f"{__version__}+{hashlib.sha256(texts).hexdigest()[:12]}"


@functools.cache
def _distributions_of(package: str) -> tuple[str, ...]:
    """The distributions that own an import package; none for Python's own.

    Most bear their package's name. The full table reads every installed file's name, which takes
    longer than loading a program, so it is asked last.
    """
    if package in sys.stdlib_module_names:
        return ()
    try:
        metadata.version(package)
        return (package,)
    except metadata.PackageNotFoundError:
        return tuple(sorted(set(_owners().get(package, []))))


@functools.cache
def _owners() -> Mapping[str, list[str]]:
    return metadata.packages_distributions()
