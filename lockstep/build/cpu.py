"""The CPU's instruction sets, as /proc/cpuinfo names them."""

from __future__ import annotations

import functools
import re
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")


def parse_cpuinfo(text: str) -> frozenset[str]:
    """Return the features that every processor of a /proc/cpuinfo text has.

    Example:
        >>> sorted(parse_cpuinfo("flags : fpu avx2\\n\\nflags : fpu avx2 amx\\n"))
        ['avx2', 'fpu']
    """
    lines = re.findall(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    return (
        frozenset.intersection(*(frozenset(line.split()) for line in lines))
        if lines
        else frozenset()
    )


@functools.cache
def cpu_features() -> frozenset[str]:
    """Return the features of this machine's processors; empty where there is no /proc/cpuinfo."""
    try:
        return parse_cpuinfo(_CPUINFO.read_text())
    except OSError:
        return frozenset()


# What gcc and clang may use in vectorised code for `-march=native`, by the kernel's names. Flags of
# other kinds (virtualisation, mitigations) differ between equal machines and would refuse them.
_VECTOR = re.compile(
    r"sse3|pni|ssse3|sse4_1|sse4_2|sse4a|avx.*|fma|fma4|xop|f16c|bmi1|bmi2|abm|lzcnt|tbm|movbe|popcnt"
    r"|adx|gfni|amx.*|cx16|lahf_lm|asimd.*|sve.*|sme|sme[0-9].*|bf16|i8mm|fphp|fcma|atomics|jscvt|lrcpc"
)


def kernel_features() -> frozenset[str]:
    """Return the features of this machine that compiled kernels may use."""
    return frozenset(name for name in cpu_features() if _VECTOR.fullmatch(name))
