"""Refuse transitions that the table lacks, or holds for experts alone, and say what to use."""

from __future__ import annotations

from lockstep.errors import UsageError
from lockstep.spmd.transitions import TABLE
from lockstep.spmd.types import Type

_SAME = "the value is the same on every rank already: there is nothing to {done}"
_TERMS = (
    'all_reduce(x, "{axis}", src=P, dst={dst}) where the ranks\' values are terms of a sum; '
    'reinterpret(x, "{axis}", src=V, dst=P) says so of a V'
)
# (verb, src, dst), "*" for any: what to write instead.
_INSTEAD: list[tuple[tuple[str, str, str], str]] = [
    (("all_reduce", "R", "*"), _SAME.format(done="reduce")),
    (("all_reduce", "I", "*"), _SAME.format(done="reduce")),
    (("all_reduce", "S", "R"), 'all_gather(x, "{axis}", src={src}, dst=R)'),
    (("all_reduce", "S", "I"), 'all_gather(x, "{axis}", src={src}, dst=I)'),
    (("all_reduce", "P", "S"), 'reduce_scatter(x, "{axis}", src={src}, dst={dst})'),
    (("all_reduce", "P", "V"), 'reduce_scatter(x, "{axis}", src={src}, dst=V, dim=0)'),
    (("all_gather", "R", "*"), _SAME.format(done="gather")),
    (("all_gather", "I", "*"), _SAME.format(done="gather")),
    (("all_gather", "P", "*"), 'all_reduce(x, "{axis}", src={src}, dst={dst})'),
    (("reduce_scatter", "R", "*"), 'convert(x, "{axis}", src=R, dst={dst}), which slices'),
    (("reduce_scatter", "I", "*"), 'convert(x, "{axis}", src=I, dst={dst}), which slices'),
    (("reduce_scatter", "V", "*"), 'reinterpret(x, "{axis}", src=V, dst=P) first'),
    (("reduce_scatter", "S", "S"), 'all_to_all(x, "{axis}", src={src}, dst={dst})'),
    (("reduce_scatter", "P", "*"), 'all_reduce(x, "{axis}", src={src}, dst={dst})'),
    (("broadcast", "*", "*"), "src=V: a value that is the same on every rank needs no broadcast"),
    (("convert", "P", "R"), 'all_reduce(x, "{axis}", src={src}, dst=R)'),
    (("convert", "P", "I"), 'all_reduce(x, "{axis}", src={src}, dst=I)'),
    (("convert", "P", "S"), 'reduce_scatter(x, "{axis}", src={src}, dst={dst})'),
    (("convert", "P", "V"), 'reduce_scatter(x, "{axis}", src={src}, dst=V, dim=0)'),
    (("reinterpret", "R", "S"), 'convert(x, "{axis}", src=R, dst={dst}), which slices'),
    (("reinterpret", "S", "P"), 'convert(x, "{axis}", src={src}, dst=P), which pads with zeros'),
    (("reinterpret", "S", "R"), 'all_gather(x, "{axis}", src={src}, dst=R)'),
    (("reinterpret", "V", "R"), _TERMS),
    (("reinterpret", "P", "R"), 'all_reduce(x, "{axis}", src={src}, dst=R)'),
    (("*", "V", "R"), 'all_gather(x, "{axis}", src=V, dst=R), or ' + _TERMS),
    (("*", "V", "I"), 'all_gather(x, "{axis}", src=V, dst=I), or ' + _TERMS),
    (("*", "S", "R"), 'all_gather(x, "{axis}", src={src}, dst=R)'),
    (("*", "S", "I"), 'all_gather(x, "{axis}", src={src}, dst=I)'),
    (("*", "P", "P"), "x / N for the pending mean's value as a sum, x * N for a sum's as a mean"),
    (("*", "S", "S"), 'all_to_all(x, "{axis}", src={src}, dst={dst})'),
]
_EXPERT: dict[tuple[str, str, str], tuple[str, str]] = {
    ("convert", "R", "I"): (
        "the gradient of an R is a sum over the ranks; this keeps one rank's and drops the others",
        "dst=I in the collective that makes the value: "
        'all_reduce(y, "{axis}", src=P, dst=I) or all_gather(y, "{axis}", src=S(dim), dst=I)',
    ),
    ("reinterpret", "R", "P"): (
        "the same value is counted once on every rank: the sum is as many times too large",
        'convert(x, "{axis}", src=R, dst=P), which keeps it on one rank',
    ),
}


def admit(verb: str, axis: str, src: Type, dst: Type, expert: bool) -> None:
    """Refuse a transition, with the line that is meant instead.

    Raises:
        UsageError: the table does not hold it, or holds it for `expert=True` alone.
    """
    kinds = src.kind, dst.kind
    if verb == "reinterpret" and "I" in kinds:
        raise _no_invariant(axis, src, dst)
    if kinds not in TABLE[verb] or (src == dst and src.kind != "V"):
        raise _unknown(verb, axis, src, dst)
    if verb == "convert" and dst.factor == "mean":
        raise UsageError(
            f"convert on {axis} gives P, a pending sum, and no P(mean)",
            fix="dst=P",
        )
    if expert or (verb, *kinds) not in _EXPERT or dst.factor == "mean":
        return  # a mean of equal values is the value: reinterpret R->P(mean) counts nothing twice
    why, fix = _EXPERT[(verb, *kinds)]
    raise UsageError(
        f"{verb} on {axis} from {src} to {dst} is almost always a mistake",
        why=why,
        fix=[fix.format(axis=axis), "expert=True, where it is meant"],
    )


def _no_invariant(axis: str, src: Type, dst: Type) -> UsageError:
    if src.kind == "I":
        way = "convert" if ("I", dst.kind) in TABLE["convert"] else "convert I->R, then reinterpret"
        fix = f'{way}: convert(x, "{axis}", src=I, dst={dst if way == "convert" else "R"})'
    else:
        fix = "dst=I in the collective that makes the value"
    return UsageError(
        f"reinterpret on {axis} from {src} to {dst}",
        why="the gradient of an I is whole; leaving it untouched would make it a part of itself",
        fix=fix,
    )


def _unknown(verb: str, axis: str, src: Type, dst: Type) -> UsageError:
    known = ", ".join(f"{a}->{b}".replace("S", "S(dim)") for a, b in TABLE[verb])
    others = [other for other, rows in TABLE.items() if (src.kind, dst.kind) in rows]
    fixes = [
        text.format(axis=axis, src=src, dst=dst)
        for (v, a, b), text in _INSTEAD
        if v in ("*", verb) and a in ("*", src.kind) and b in ("*", dst.kind)
    ][:1]
    if src == dst:
        fixes = ["leave it out: the value has this type already"]
    elif not fixes:
        fixes = [f'{other}(x, "{axis}", src={src}, dst={dst})' for other in others if other != verb]
    return UsageError(
        f"{verb} on {axis} does not go from {src} to {dst}", want=f"one of {known}", fix=fixes
    )


def admit_op(verb: str, axis: str, src: Type, op: str | None, names: tuple[str, ...]) -> str:
    """Return the reduction that a call means.

    A pending sum is summed and a pending mean averaged, unless told; V takes max and min alone.

    Raises:
        UsageError: an unknown word, or one that does not fit the type.
    """
    if op is None:
        op = "avg" if src.factor == "mean" else "sum"
    if op not in names:
        raise UsageError(f"{verb} on {axis}: op={op!r}", want=f"one of {', '.join(names)}")
    if op == "sum" and src.factor == "mean":
        raise UsageError(
            f"{verb} on {axis}: the sum of a pending mean",
            why="a value of type P(mean) stands for the mean of what the ranks hold",
            fix=['op="avg"', "src=P, where the ranks hold terms of a sum"],
        )
    if op in ("max", "min") and src.kind != "V":
        raise UsageError(
            f"{verb} on {axis}: the {op} of {src}",
            want="src=V",
            why=f"the {op} over terms of a pending sum is not the {op} of the sum"
            if src.kind == "P"
            else None,
            fix=f'{verb}(x, "{axis}", src=V, dst=..., op="{op}")',
        )
    if op in ("sum", "avg") and src.kind == "V":
        raise UsageError(
            f"{verb} on {axis}: the {op} of V",
            why="nothing says that the ranks' values are terms of a sum",
            fix=[
                f'src=P, or reinterpret(x, "{axis}", src=V, dst=P) where the V is made',
                f'all_gather(x, "{axis}", src=V, dst=R), where they are parts of a whole',
            ],
        )
    return op
