"""Kernels of an accelerator: the binary that Triton made of a source, and how it is started.

Read in torch 2.14.1 and tried against its code generation; launched on no accelerator yet.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

from lockstep import _compat
from lockstep.errors import LoweringError


@dataclass(frozen=True)
class Triton:
    """One kernel as the compiler was given it."""

    name: str
    source: str

    @property
    def digest(self) -> str:
        """The kernel's name in an artifact: of its source, not of the machine."""
        return hashlib.sha256(json.dumps([self.name, self.source]).encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Launch:
    """How a kernel is started: what is shipped beside its binary, as JSON.

    Args:
        entry: the function's name in the binary.
        warps, shared: threads of a block in warps, and its shared memory in bytes.
        types: one letter a parameter: "O" a pointer, "i" an int32, "f" a float, ...
        launcher: the text of `launcher(...)`, which returns the grid and the parameters.
    """

    entry: str
    warps: int
    shared: int
    types: str
    launcher: str

    def to_json(self) -> bytes:
        """Return the launch as it is shipped."""
        return json.dumps(asdict(self), sort_keys=True).encode()


def launcher_text(takes: list[str], before: list[str], grid: list[Any], gives: list[str]) -> str:
    """Write the function from what a program passes to the grid and the binary's parameters.

    Example:
        >>> print(launcher_text(["x", "xnumel"], [], ["-(xnumel // -64)", 1, 1], ["x"]), end="")
        def launcher(x, xnumel):
            grid_0 = -(xnumel // -64)
            grid_1 = 1
            grid_2 = 1
            return (grid_0, grid_1, grid_2), (x,)
    """
    lines = [*before, *(f"grid_{i} = {size}" for i, size in enumerate(grid))]
    lines.append(f"return (grid_0, grid_1, grid_2), ({', '.join(gives)},)")
    return "\n    ".join([f"def launcher({', '.join(takes)}):", *lines]) + "\n"


def compiled(kernels: dict[str, Triton]) -> dict[str, bytes]:
    """Gather the binaries that this process has just made: hits in the compiler's own tables.

    Returns:
        File name -> bytes: a binary and a launch for each digest.

    Raises:
        LoweringError: LS200, a kernel that only Triton itself can start.
    """
    files: dict[str, bytes] = {}
    for digest, kernel in kernels.items():
        try:
            made = _compat.triton_kernel(kernel.name, kernel.source)
        except (AttributeError, KeyError, ValueError, StopIteration) as error:
            raise LoweringError(
                f"the kernel {kernel.name} can't be started without Triton",
                got=f"{type(error).__name__}: {error}",
                want="one tuned configuration, for torch's static launcher",
                fix='backend="graph"',
            ) from error
        nulls = ["None"] * made["nulls"]
        text = launcher_text(made["takes"], made["before"], made["grid"], made["gives"] + nulls)
        types = made["types"] + "O" * made["nulls"]
        launch = Launch(made["entry"], made["warps"], made["shared"], types, text)
        files |= {f"{digest}.cubin": made["binary"], f"{digest}.json": launch.to_json()}
    return files
