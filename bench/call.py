"""What a call of a compiled step costs beside its program, in microseconds and by part.

    python bench/call.py

The step does next to nothing to a Llama of many small parameters, so that what is left is the look
at everything that could make the call another program. Each figure is the least of several rounds:
what else a busy machine does is no part of it.
"""

from __future__ import annotations

import os
import sys
import tempfile
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent))  # run as a script

LIMIT_US = 100.0
EAGER, WHOLE = "the same call, eager", "the whole call"

Call = Callable[[], Any]


def ways(layers: int) -> tuple[dict[str, Call], int]:
    """Return what is timed, each as a call of nothing, and how many parameters the model has."""
    import torch

    import lockstep as ls
    from lockstep.models import llama

    torch.set_num_threads(1)
    small = llama.config("debug", layers=layers, dim=16, heads=2, kv_heads=2, ffn=16, vocab=16)
    model, x = llama.Llama(small), torch.zeros(1)

    def nothing(model: llama.Llama, x: torch.Tensor) -> torch.Tensor:
        return x + 1

    step: Any = ls.compile(nothing, backend="graph")
    for _ in range(4):
        step(model, x)
    call = step.step.call((model, x), {})
    bound = step.bind(call)
    variant = bound.known[bound.quick_key(call)]
    made = {
        EAGER: lambda: nothing(model, x),
        WHOLE: lambda: step(model, x),
        "  take the arguments apart": lambda: step.step.call((model, x), {}),
        "  is all below them as it was": lambda: bound.holds(call),
        "  the rest of the key": lambda: bound.quick_key(call),
        "  the program, and what goes in and out": lambda: variant.run(call, bound),
    }
    return made, len(list(model.parameters()))


def microseconds(made: dict[str, Call], rounds: int, calls: int) -> dict[str, float]:
    """Time each in turn, `rounds` times; return the least of each, for one call."""
    least = dict.fromkeys(made, float("inf"))
    for _ in range(rounds):
        for name, function in made.items():
            least[name] = min(least[name], 1e6 * timeit.timeit(function, number=calls) / calls)
    return least


def main(layers: int = 11, rounds: int = 300, calls: int = 10) -> int:
    """Measure, print, and return 0 where a call costs at most 100 us more than the eager one.

    Args:
        layers: of the Llama, nine parameters each.
        rounds: of which the least counts.
        calls: in a round.
    """
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"LOCKSTEP_STORE": f"{folder}/store", "LOCKSTEP_RUNS": f"{folder}/runs"}
        made, parameters = ways(layers)
        least = microseconds(made, rounds, calls)
    table = Table("", "us a call", title=f"{parameters} parameters, least of {rounds} rounds")
    for name, us in least.items():
        table.add_row(name, f"{us:.1f}")
    Console().print(table)
    return judge(least, parameters)


def judge(least: dict[str, float], parameters: int) -> int:
    """Print the line, last; returns the exit code."""
    added = least[WHOLE] - least[EAGER]
    holds, times = added <= LIMIT_US, least[WHOLE] / least[EAGER]
    print(
        f"{'holds' if holds else 'FAILS'}: a call of a step over {parameters} parameters costs"
        f" {added:.1f} us beside its program, at most {LIMIT_US:.0f}; {times:.1f} times an eager"
        f" call that does as little"
    )
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
