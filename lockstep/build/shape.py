"""The form of a step's manifest: what every reader may rely on, checked before any of them."""

from __future__ import annotations

from typing import Any

Form = Any
_TIME = range(1 << 40)  # seconds; what a calendar can tell
_COUNT = range(1 << 53)
_SIZES = [(_COUNT, str)]  # a number, or a range in words

# A type, a range or set of values, None, ... for anything, a tuple of these, a list of one
# form, or an object by its keys: "a!" has to be there, "*" is any key, "=" lets no other key in.
_LAYOUT = {"axes!": [str], "placements!": [str], "shape!": [_COUNT], "stride!": [_COUNT]}
_INPUT = {
    "name!": str,
    "kind!": str,
    "shape!": _SIZES,
    "stride": _SIZES,
    "dtype!": str,
    "device": str,
    "requires_grad": bool,
    "ties": [str],
    "layout": _LAYOUT,
}
_CONTRACT = {
    "inputs": [_INPUT],
    "returns": [{"kind!": str, "index!": int, "value!": ..., "grad": bool, "layout": _LAYOUT}],
    "out_spec": str,
    "effects": [
        {
            "kind!": str,
            "name!": str,
            "output": (_COUNT, None),
            "input": (_COUNT, None),
            "layout": _LAYOUT,
        }
    ],
    "sizes": [{"=": ..., "name!": str, "dim!": _COUNT, "low!": _COUNT, "high!": _COUNT}],
    "guards": [{"text!": str, "line!": str}],
}
_REQUIRES = {
    "torch": str,
    "torch_git": (str, None),
    "machine": str,
    "python_abi": (str, None),
    "cpu_features": [str],
    "accelerator": {"type!": str, "*": str},
    "ops": [str],
}
_CHECK = {
    "mode!": frozenset({"types", "full", "off"}),
    "established": [str],
    "undecided": [str],
    "values": _COUNT,
    "unknown": {"*": _COUNT},
    "no rule for": {"*": _COUNT},
    "pending": {"*": str},
    "intended": [{"name!": str, "line!": str, "reason!": str}],
    "seconds": float,
}
_EAGER = {
    "mode!": frozenset({"on", "off"}),
    "result": frozenset({"equal", "rounding", "not comparable", "not run"}),
    "why": str,
    "collectives": {"*": _COUNT},
    "compared": _COUNT,
    "seconds": float,
}
_CALL = {"op": str, "axis": str, "shape": _SIZES, "dtype": str, "phase": str, "line": (str, None)}
_MESSAGE = {"op!": frozenset({"send", "recv"}), "axis!": str, "place!": int, "number!": _COUNT}
_MESSAGE |= {"shape!": _SIZES, "dtype!": str, "line!": str}
STEP = {
    "backend!": str,
    "requires!": _REQUIRES,
    "code": {"interpreter!": str, "magic!": str, "source!": str},
    "step": str,
    "nodes": _COUNT,
    "fingerprint": {"*": ...},
    "contract": _CONTRACT,
    "schedule": [_CALL],
    "messages": [_MESSAGE],
    "check": _CHECK,
    "eager": _EAGER,
    "built": {"time": _TIME, "rank": _COUNT, "world": _COUNT, "seconds": {"*": float}},
    "compared": {"ranks!": [_COUNT], "rows!": _COUNT},
    "early": [str],
    "passes": {"*": (_COUNT, str)},
    "repeats": {key: _COUNT for key in ("bodies", "calls", "nodes", "recomputed", "parts")}
    | {"flat": str},
    "parts": [str],
    "graph": str,
}
# What a job needs of an artifact, beyond what `lockstep show` does.
_BOUND = {key: ... for key in ("name!", "kind!", "shape!", "stride!", "dtype!", "device!", "ties!")}
_RETURN = {key: ... for key in ("kind!", "index!", "value!", "grad!")}
_EFFECT = {key: ... for key in ("kind!", "name!", "output!", "input!")}
ADMITTED = {
    "step!": str,
    "nodes!": int,
    "fingerprint!": ...,
    "check!": ...,
    "contract!": {
        "inputs!": [_BOUND],
        "returns!": [_RETURN],
        "out_spec!": ...,
        "effects!": [_EFFECT],
    },
    "built!": {"time!": ..., "rank!": ..., "world!": ..., "seconds!": ...},
}


def misfit(value: Any, form: Form, at: str = "manifest") -> str | None:
    """Return where and how a JSON value is not of a form; None where it is.

    Example:
        >>> misfit({"a": [1, "x"]}, {"a!": [int]})
        "manifest.a[1] is 'x', not a whole number"
        >>> misfit({}, {"a!": [int]})
        'manifest.a is missing'
    """
    if isinstance(form, tuple):
        return None if _is(value, form) else misfit(value, form[0], at)
    if isinstance(form, list):
        if not isinstance(value, list):
            return f"{at} is {_short(value)}, not a list"
        one = _read(form[0])
        for number, row in enumerate(value):
            if type(row) is not one and not _is(row, one) and misfit(row, one):
                return misfit(row, one, f"{at}[{number}]")  # its place is spelled only now
        return None
    form = _read(form)
    if isinstance(form, _Object):
        return form.misfit(value, at)
    return None if _is(value, form) else f"{at} is {_short(value)}, not {_called(form)}"


class _Object:
    """An object's form, taken apart once: a manifest has thousands of rows of few forms."""

    def __init__(self, form: dict[str, Form]) -> None:
        self._needed = [key[:-1] for key in form if key.endswith("!")]
        self._known = {k.rstrip("!"): _read(v) for k, v in form.items() if k not in ("*", "=")}
        self._rest, self._closed = _read(form.get("*", ...)), "=" in form

    def misfit(self, value: Any, at: str) -> str | None:
        if not isinstance(value, dict):
            return f"{at} is {_short(value)}, not an object"
        for key in self._needed:
            if key not in value:
                return f"{at}.{key} is missing"
        for key, item in value.items():
            one = self._known.get(key, self._rest)
            if self._closed and key not in self._known:
                return f"{at}.{_short(key)} is not known"
            if one is not ... and type(item) is not one and misfit(item, one):
                return misfit(item, one, f"{at}.{key[:60]}")
        return None


def _read(form: Form) -> Form:
    return _Object(form) if isinstance(form, dict) else form


def _is(value: Any, form: Form) -> bool:
    """Whether a value is of a form that is no list and no object, or of one of several such."""
    if form is ...:
        return True
    if isinstance(form, tuple):
        for one in form:
            if _is(value, one):
                return True
        return False
    if isinstance(form, range):
        return type(value) is int and value in form
    if isinstance(form, frozenset):
        return isinstance(value, str) and value in form
    if form is float:
        return type(value) in (int, float)
    return value is None if form is None else type(value) is form


def _called(form: Form) -> str:
    if isinstance(form, frozenset):
        return "one of " + ", ".join(sorted(form))
    if isinstance(form, range):
        return f"a whole number below {form.stop}"
    return {int: "a whole number", float: "a number", str: "text", bool: "true or false"}.get(
        form, str(form)
    )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
