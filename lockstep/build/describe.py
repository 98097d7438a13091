"""The text of `lockstep show`: an artifact's manifest in rows; nothing of it is executed.

The standard library alone is used.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from typing import Any

from lockstep.build import stored
from lockstep.build.inspect import Inspected, inspect, size_text
from lockstep.capture.ranges import Size, readable

_SHORT = {"float": "f", "bfloat": "bf", "int": "i", "uint": "u", "complex": "c"}
_TOLD = {
    "code",
    "step",
    "backend",
    "nodes",
    "built",
    "requires",
    "fingerprint",
    "contract",
    "schedule",
    "messages",
    "check",
    "eager",
    "compared",
    "early",
    "repeats",
    "passes",
    "blobs",
}
_PASSES = {
    "update": "calls over lists of tensors are made tensor by tensor",
    "share": "calls are gone that computed what another had",
    "memory": "calls run again in the backward, for the budget of memory",
    "bucket": "collectives go together with others",
    "bucket_wide": "collectives go together with others, sums over any number of ranks",
    "overlap": "collectives have more of the step beside them",
}


def describe(path: str | os.PathLike[str]) -> str:
    """Verify the file of an artifact, or of a bundle, and tell what is in it.

    Args:
        path: the file.

    Returns:
        Lines of text: the step, who built it and what it needs, its inputs, outputs and
        collectives, its blobs, and the fingerprint's fields. Of a bundle, its artifacts.

    Raises:
        ArtifactError: LS210, the file is damaged or foreign; LS211, not signed as asked.
        OSError: the file can't be read.
    """
    seen = inspect(path)
    manifest = seen.manifest
    if seen.artifacts:
        rows = [
            (one.name, size_text(one.size), one.digest[:16], f"{one.step} {one.role}".strip())
            for one in seen.artifacts
        ]
        return printable("\n\n".join(["\n".join(seen.head()), _table("artifacts", rows)]))
    parts = [
        _head(seen),
        _requires(manifest.get("requires", {})),
        _contract(manifest.get("contract", {})),
        _schedule(manifest.get("schedule", [])),
        _messages(manifest.get("messages", [])),
        _check(manifest.get("check", {})),
        _eager(manifest.get("eager", {})),
        _blobs(manifest["blobs"]),
        _fields("fingerprint", manifest.get("fingerprint", {})),
        _fields("also", {key: manifest[key] for key in sorted(set(manifest) - _TOLD)}),
    ]
    return printable("\n\n".join(part for part in parts if part))


def printable(text: str) -> str:
    """Escape what would steer a terminal, or that no terminal can show."""
    return "".join(
        char if char == "\n" or char.isprintable() else ascii(char)[1:-1] for char in text
    )


def _head(seen: Inspected) -> str:
    manifest, lines = seen.manifest, seen.head()
    nodes = f", {manifest['nodes']} nodes" if "nodes" in manifest else ""
    step = manifest.get("step", "no name")
    lines.append(f"  step      {step}, back end {manifest['backend']}{nodes}")
    once = manifest.get("repeats", {})
    if "bodies" in once:
        told = "{bodies} bodies of {nodes} nodes, compiled once for {calls} calls"
        lines.append(f"  repeats   {told.format_map(once)}")
    if "flat" in once:
        lines.append(f"  repeats   compiled as a whole: {once['flat']}")
    if "parts" in once:
        lines.append(f"  cut       into {once['parts']} parts, where collectives start and end")
    if "recomputed" in once:
        lines.append(f"  kept less {once['recomputed']} values are computed again in the backward")
    for name, done in manifest.get("passes", {}).items():
        what = f"{done} {_PASSES.get(name, 'times')}" if isinstance(done, int) else done
        lines.append(f"  pass      {name}: {what}")
    built = manifest.get("built")
    if isinstance(built, dict):
        lines.append(f"  built     {_built(built)}")
    same = manifest.get("compared")
    if isinstance(same, dict):
        ranks = " and ".join(map(str, same["ranks"]))
        lines.append(f"  compared  the graphs of ranks {ranks} are the same: {same['rows']} rows")
    lines += [f"  each rank {formula}" for formula in manifest.get("early", [])]
    return "\n".join(lines)


def _built(built: dict[str, Any]) -> str:
    parts = []
    if "time" in built:
        parts.append(time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(built["time"])))
    if "rank" in built:
        parts.append(f"by rank {built['rank']} of {built.get('world', '?')}")
    seconds = built.get("seconds", {})
    parts += [f"{name} {value:.1f} s" for name, value in sorted(seconds.items())]
    return ", ".join(parts)


def _requires(requires: dict[str, Any]) -> str:
    rows = [
        (name.replace("_", " "), ", ".join(map(str, value)) if isinstance(value, list) else value)
        for name, value in sorted(requires.items())
        if value != []
    ]
    return _table("requires", rows)


def _contract(contract: dict[str, Any]) -> str:
    inputs = [
        (
            item["kind"],
            item["name"] + "".join(f" = {tie}" for tie in item.get("ties", [])),
            _type(item),
        )
        for item in contract.get("inputs", [])
    ]
    returns = [(item["kind"], _rest(item, "kind")) for item in contract.get("returns", [])]
    effects = [
        (item["kind"], item["name"], _rest(item, "kind", "name"))
        for item in contract.get("effects", [])
    ]
    tables = [_table("inputs", inputs), _sizes(contract), _table("returns", returns)]
    tables.append(_table("effects", effects))
    tables.append(_table("told", [_told(item) for item in contract.get("emits", [])]))
    return "\n\n".join(table for table in tables if table)


def _told(emit: dict[str, Any]) -> tuple[str, str, str]:
    """What is told or called, where, and from which line."""
    places = [f"{'' if where['inside'] else 'not '}{_places(where)}" for where in emit["where"]]
    name = emit["name"] or ""
    if isinstance(name, dict):  # a logger's
        name = name["logger"] or ""
    named = name if isinstance(name, str) else ".".join(map(str, name[1:]))
    return f"{emit['do']} {named}".strip(), " and ".join(places) or "every rank", emit["line"]


def _places(where: dict[str, Any]) -> str:
    names = [name.replace("world", "rank") for name in where["names"]]
    found = [
        " ".join(f"{name} {place}" for name, place in zip(names, places, strict=True))
        for places in where["places"][:4]
    ]
    return ", ".join(found) + (", ..." if len(where["places"]) > 4 else "")


def _schedule(schedule: list[dict[str, Any]]) -> str:
    rows = [
        (
            item.get("op", "?"),
            item.get("axis", "?"),
            _type(item) if "shape" in item else "",
            item.get("phase", ""),
            item.get("line") or "",
        )
        for item in schedule
    ]
    return _table("collectives", rows)


def _messages(messages: list[dict[str, Any]]) -> str:
    rows = [
        (
            item["op"],
            item["axis"],
            f"{'to' if item['op'] == 'send' else 'from'} {item['place']:+d}",
            _type(item),
            item["line"],
        )
        for item in messages
    ]
    return _table("messages", rows)


def _check(check: dict[str, Any]) -> str:
    """What the check at the build said; an artifact with findings is never made."""
    if not check:
        return ""
    if check["mode"] == "off":
        return "check: off, the gradients of this step were not checked"
    took = f" in {check['seconds']:.2f} s" if "seconds" in check else ""
    head = f"check: {check['mode']}, no findings{took}"
    return "\n".join([head, *_table("", check_rows(check)).splitlines()[1:]])


def _eager(eager: dict[str, Any]) -> str:
    """How the captured graph was compared with the step itself."""
    if not eager or eager["mode"] == "off":
        return "eager: off, the graph was not compared with the step itself" if eager else ""
    result = eager.get("result", "not run")
    if result != "equal":
        return f"eager: {result}: {eager.get('why', '')}"
    took = f" in {eager['seconds']:.2f} s" if "seconds" in eager else ""
    rows = [(name, f"{count} times") for name, count in eager.get("collectives", {}).items()]
    head = f"eager: the graph gave the bits of the step in {eager.get('compared', 0)} values{took}"
    return "\n".join([head, *_table("", rows).splitlines()[1:]])


def check_rows(check: dict[str, Any]) -> list[tuple[str, str]]:
    """What a manifest's "check" says, as rows: how sure it is, and of what."""
    rows = [("established", line) for line in check.get("established", [])]
    rows += [("undecided", line) for line in check.get("undecided", [])]
    values = check.get("values", 0)
    unknown = check.get("unknown", {}).items()
    rows += [("unknown", f"{count} of {values} values along {axis}") for axis, count in unknown]
    rules = check.get("no rule for", {}).items()
    rows += [("unknown", f"{op}, {count} times: no type rule") for op, count in rules]
    rows += [("pending", f"{way} over {axis}") for axis, way in check.get("pending", {}).items()]
    for intent in check.get("intended", []):
        rows.append(("intended", f"{intent['name']}, {intent['line']}: {intent['reason']}"))
    return rows


def _blobs(blobs: list[dict[str, Any]]) -> str:
    rows = [
        (row["name"], size_text(row["size"]), _in_file(row), row["sha256"][:16]) for row in blobs
    ]
    return _table("blobs", rows)


def _in_file(row: stored.Row) -> str:
    return "" if row["stored"] == stored.RAW else f"deflated to {size_text(row['stored_size'])}"


def _fields(title: str, fields: dict[str, Any]) -> str:
    rows = [
        (name, value if isinstance(value, str) else json.dumps(value))
        for name, value in fields.items()
    ]
    return _table(title, sorted(rows))


def _sizes(contract: dict[str, Any]) -> str:
    """What may differ from call to call, and what has to hold of it."""
    sizes = [Size(**row) for row in contract.get("sizes", [])]
    rows = [(str(size), size.ends, "") for size in sizes]
    rows += [(readable(g["text"], sizes), "", g["line"]) for g in contract.get("guards", [])]
    return _table("sizes", rows)


def _type(item: dict[str, Any]) -> str:
    """`f32[8, 16]` of a shape and a dtype's name; `f32[2..64, 16]` where a size may differ."""
    dtype = str(item.get("dtype", "?")).removeprefix("torch.")
    stem = dtype.rstrip("0123456789")
    return f"{_SHORT.get(stem, stem)}{dtype[len(stem) :]}[{', '.join(map(str, item['shape']))}]"


def _rest(item: dict[str, Any], *but: str) -> str:
    rest = {key: value for key, value in item.items() if key not in but and value not in (None, -1)}
    return " ".join(f"{key} {value}" for key, value in rest.items())


def _table(title: str, rows: Iterable[tuple[Any, ...]]) -> str:
    """Rows under a title with their count; columns padded, the last one as it is."""
    texts = [tuple(str(cell) for cell in row) for row in rows]
    if not texts:
        return ""
    widths = [max(len(row[column]) for row in texts) for column in range(len(texts[0]))]
    widths[-1] = 0
    lines = ["  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in texts]
    return "\n".join([f"{title} ({len(texts)})", *lines])
