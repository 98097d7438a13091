"""What a back end makes of a captured step: text and libraries, free of device and rank."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Program:
    """A lowered step.

    Args:
        backend: the back end's name, "graph" or "inductor".
        text: one readable Python module that defines `call(inputs: list) -> Sequence`. The call
            empties its list, so that inputs are freed as early as eager frees them. The loader
            runs it with gradients and autocast off.
        kernels: digest of a kernel's generated source -> the bytes of its shared library.
        requires: what a rank must have to load it: {"torch", "torch_git", "ops"}, with kernels
            also {"machine", "python_abi", "cpu_features"}, with an accelerator {"accelerator"}.
        sources: digest of a kernel -> the C++ or Triton that it was compiled from, to be read.
        files: of an accelerator's kernels: "<digest>.cubin" and how it is started, "<digest>.json".
        repeats: of repeated parts that were compiled once: how many bodies, calls of them, and
            nodes in them; or {"flat": why the graph was compiled whole}.
        parts: the key of each part, as `lockstep.build.parts` names it.

    Example:
        >>> Program("graph", "def call(inputs): return ()", {}, {}).backend
        'graph'
    """

    backend: str
    text: str = field(repr=False)
    kernels: dict[str, bytes] = field(repr=False)
    requires: dict[str, Any]
    sources: dict[str, str] = field(repr=False, default_factory=dict)
    files: dict[str, bytes] = field(repr=False, default_factory=dict)
    repeats: dict[str, Any] = field(default_factory=dict)
    parts: list[str] = field(default_factory=list)
