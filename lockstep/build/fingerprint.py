"""Whether an artifact is the one that a job wants, said without tracing anything.

A fingerprint is a readable table: field -> value. Its digest names the artifact in a store, and two
tables that differ are told field by field. Paths, hosts, users, process ids and the rank are never
in it.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from lockstep import __version__, _compat
from lockstep.build.flags import global_flags
from lockstep.build.requires import basic_requires
from lockstep.build.settings import build_settings
from lockstep.build.sources import digest_of_source, remembered
from lockstep.build.values import Values, class_of, short, show
from lockstep.capture.binding import Call, Step
from lockstep.capture.reach import Reach
from lockstep.capture.state import State

__all__ = ["Fields", "differences", "digest", "file_of", "fingerprint", "short", "show"]

Fields = dict[str, Any]
OPTIMIZED = sys.flags.optimize  # asserts are left out, and what hangs on __debug__


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
    fields |= {**_flat("mesh", mesh), "order of axes": list(mesh)}
    fields |= {f"source {name}": digest_of_source(f) for name, f in sorted(found.functions.items())}
    fields |= {f"class {name}": bases for name, bases in sorted(found.classes.items())}
    values = Values(found, _names(state))
    for name, (value, _) in sorted(found.values.items()):
        fields[f"value {name}"] = values.short(value, name)
    fields |= _attributes(call, state, found, values)
    fields |= _flat("contract", contract)
    fields |= _versions(found)
    fields |= global_flags()
    fields |= _flat("build", build_settings(backend))
    fields["not covered"] = sorted(found.opaque | values.opaque)
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


def _attributes(call: Call, state: State, found: Reach, values: Values) -> Fields:
    """Each object's class and the attributes that the step may read: `self.eps`, a config."""
    fields: Fields = {}
    for name, obj in call.objects.items():
        own = values.attributes(obj, name)
        fields[f"object {name}"] = {"class": class_of(obj), **own}
    for name, module in state.modules:
        own = values.attributes(module, name)
        tables = _compat.hook_tables(module)
        hooks = [[values.show(h, name) for h in table.values()] for table in tables if table]
        children = [key for key, _ in module.named_children()]
        fields[f"module {name}"] = {
            "class": class_of(module),
            **own,
            **({"children": children} if len(children) > 1 else {}),
            "hooks": hooks,
        }
    for slot in state.slots:
        hooks = [values.show(h, slot.name) for h in _compat.all_tensor_hooks(slot.tensor)]
        fields |= {f"hooks {slot.name}": hooks} if hooks else {}
    tensors = [(slot.name, slot.tensor) for slot in state.slots]
    given = zip(call.names, call.leaves, strict=True)
    tensors += [(name, leaf) for name, leaf in given if isinstance(leaf, torch.Tensor)]
    for name, tensor in tensors:
        if not vars(tensor):
            continue
        marks = values.attributes(tensor, name)
        fields |= {f"marks {name}": marks} if marks else {}
    for name, optimizer in state.optimizers:
        own = values.attributes(optimizer, name)
        fields[f"optimizer {name}"] = {"class": class_of(optimizer), **own}
    fields["order of tensors"] = values.short([slot.name for slot in state.slots])
    return fields


def _names(state: State) -> dict[int, str]:
    """What the step's own modules, tensors and optimizers are called where a value holds one."""
    named: list[tuple[Any, str]] = [(module, name) for name, module in state.modules]
    named += [(slot.tensor, slot.name) for slot in state.slots]
    named += [(optimizer, name) for name, optimizer in state.optimizers]
    return {id(thing): name for thing, name in named}


def _versions(found: Reach) -> Fields:
    fields: Fields = {
        "version lockstep": own_version(),
        "version python": platform.python_version() + (f" -{'O' * OPTIMIZED}" if OPTIMIZED else ""),
    }
    fields |= {f"version {k}": v for k, v in basic_requires(()).items() if k != "ops"}
    fields["machine"] = platform.machine()
    for package in sorted(found.libraries - {"torch", "lockstep"}):
        for distribution in distributions_of(package):
            fields[f"version {distribution}"] = metadata.version(distribution)
    return fields


@functools.cache
def own_version() -> str:
    """Lockstep's version, with a digest of the sources that decide what a program is."""
    root = Path(__file__).parents[1]
    compat = root / "_compat.py"
    stats = [(str(compat), compat.stat())]
    for folder in ("spmd", "capture", "build"):
        stats += _sources(str(root / folder))
    stats.sort()
    seen = [(name, at.st_mtime_ns, at.st_ctime_ns, at.st_size, at.st_ino) for name, at in stats]
    return f"{__version__}+{remembered(seen, lambda: _digest_of([name for name, _ in stats]))}"


def _sources(folder: str) -> Iterator[tuple[str, os.stat_result]]:
    """The Python files below a folder, by a few quick calls: it is part of every start."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                yield from _sources(entry.path)
            elif entry.name.endswith(".py"):
                yield entry.path, entry.stat()


def _digest_of(names: list[str]) -> str:
    return hashlib.sha256(b"".join(Path(name).read_bytes() for name in names)).hexdigest()[:12]


@functools.cache
def distributions_of(package: str) -> tuple[str, ...]:
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
