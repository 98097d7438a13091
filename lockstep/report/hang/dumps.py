"""Torch's flight-recorder dumps, read without executing anything of them.

A dump is a pickle of plain values, or the same as JSON. A file's name ends with the rank's number,
as torch writes it. Read in torch 2.14: format 2.10.
"""

from __future__ import annotations

import io
import json
import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lockstep.errors import UsageError
from lockstep.report.hang.calls import Call, RankCalls

_RANK = re.compile(r"(\d+)(?:\.(?:json|pickle|pkl))?$")
_DTYPES = {"Float": "f32", "Double": "f64", "Half": "f16", "BFloat16": "bf16", "Long": "i64",
           "Int": "i32", "Short": "i16", "Char": "i8", "Byte": "u8", "Bool": "bool"}  # fmt: skip
_TORCH = re.compile(r"/torch/|^<|^\?\?")
_OURS = re.compile(r"/lockstep/(?!models/)")

Lines = Mapping[str, Mapping[int, str]]  # a program's name in tracebacks -> its line -> the user's


def read_dumps(files: list[Path], lines: Lines | None = None) -> dict[int, RankCalls]:
    """Read the dumps of several ranks.

    Args:
        files: one a rank.
        lines: of artifacts: what stands in the user's code for a line of a program.

    Raises:
        UsageError: a file is no dump, or its name tells no rank.
    """
    found = {}
    for file in files:
        named = _RANK.search(file.name)
        if named is None:
            raise UsageError(
                f"{file} tells no rank", want="a name that ends with it, as nccl_trace_rank_3"
            )
        found[int(named.group(1))] = calls_of(int(named.group(1)), _loaded(file), lines or {})
    return found


def calls_of(rank: int, dump: Mapping[str, Any], lines: Lines) -> RankCalls:
    """The calls of one dump, in the order in which they were made."""
    entries = sorted(dump["entries"], key=lambda entry: entry["record_id"])
    entries = [entry for entry in entries if not entry.get("is_p2p")]
    groups = {
        _axis((name, group.get("desc", ""))): json.loads(group["ranks"])
        for name, group in dump.get("pg_config", {}).items()
    }
    before = entries[0]["record_id"] if entries else 0
    return RankCalls(rank, [_call(entry, lines) for entry in entries], before, groups=groups)


class _Plain(pickle.Unpickler):
    """Loads values alone: a dump names no class and no function."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def _loaded(file: Path) -> Mapping[str, Any]:
    data = file.read_bytes()
    try:
        is_text = data[:1] == b"{"
        dump = json.loads(data) if is_text else _Plain(io.BytesIO(data), encoding="utf-8").load()
        if "entries" in dump and isinstance(dump["entries"], list):
            return dump
        got = "no entries in it"
    except Exception as error:  # whatever a file of another kind makes of a reader
        got = f"{type(error).__name__}: {error}"
    raise UsageError(f"{file} is no flight-recorder dump", got=got, want="what torch has dumped")


def _call(entry: Mapping[str, Any], lines: Lines) -> Call:
    sizes, dtypes = entry.get("input_sizes") or [], entry.get("input_dtypes") or []
    what = ", ".join(
        f"{_DTYPES.get(dtype, dtype)}[{', '.join(map(str, size))}]"
        for size, dtype in zip(sizes, dtypes, strict=False)
    )
    op = entry["profiling_name"].partition(":")[2] or entry["profiling_name"]
    line = _line(entry.get("frames") or [], lines)
    done = entry.get("state") == "completed" or bool(entry.get("retired"))  # gloo's are retired
    return Call(op, _axis(entry["process_group"]), what or "nothing", line, done)


def _axis(group: tuple[str, str]) -> str:
    name, desc = group
    return "all ranks" if desc == "default_pg" else desc.removeprefix("mesh_") or name


def _line(frames: list[Mapping[str, Any]], lines: Lines) -> str:
    """The innermost line of the user's: torch's frames come first."""
    for frame in frames:
        known = lines.get(frame["filename"], {}).get(frame["line"])
        if known:
            return known
    for frame in frames:
        file = frame["filename"]
        if not _TORCH.search(file) and not _OURS.search(file) and file.endswith(".py"):
            return f"{Path(file).name}:{frame['line']}"
    return ""
