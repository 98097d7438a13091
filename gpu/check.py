"""What Lockstep claims of accelerators, tried on those of this machine.

    python gpu/check.py              # a table; 0 where every check that could run holds
    python gpu/check.py --rehearse   # the checks of one device on the CPU: do they themselves work?

A check needs no, one or two devices of a kind. What can't run here is "not verified here: why".
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 900
HOLDS, FAILS, NOT = "holds", "does not hold", "not verified here"
Run = Callable[["Chain"], str]


@dataclass(frozen=True)
class Check:
    """One line of the table.

    Args:
        needs: devices of one kind.
        run: returns what it saw; raises where the line does not hold.
    """

    line: str
    needs: int
    run: Run


class Chain:
    """Processes that share one store: the first builds on index 0, others load where they are.

    Args:
        devices: how many there are; 0 rehearses on the CPU.
    """

    def __init__(self, folder: Path, devices: int) -> None:
        self.devices, self._folder = devices, folder
        self._made: dict[tuple[str, int, bool], dict[str, Any]] = {}

    def step(self, backend: str, index: int = 0, eager: bool = False) -> dict[str, Any]:
        """The result of `gpu/step.py` there; the first of a back end is the one that builds."""
        if not eager and index != 0:
            self.step(backend)
        return self._once(backend, index, eager)

    def again(self, backend: str, index: int) -> dict[str, Any]:
        """The result of a new process, after one on index 0 has built."""
        self.step(backend)
        return self._process(backend, index, False)

    def _once(self, backend: str, index: int, eager: bool) -> dict[str, Any]:
        key = (backend, index, eager)
        if key not in self._made:
            self._made[key] = self._process(*key)
        return self._made[key]

    def _process(self, backend: str, index: int, eager: bool) -> dict[str, Any]:
        words = [sys.executable, str(ROOT / "gpu" / "step.py"), backend]
        env = {k: v for k, v in os.environ.items() if not k.startswith(("LOCKSTEP", "RANK"))}
        env |= {
            "LOCAL_RANK": str(index),
            "LOCKSTEP_STORE": str(self._folder / "store"),
            "LOCKSTEP_RUNS": str(self._folder / "runs"),
            "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # else matrix products may differ by the run
            "TORCHINDUCTOR_CACHE_DIR": str(self._folder / f"cache-{index}"),
            **({"LOCKSTEP": "off"} if eager else {}),
        }
        return json.loads(_output(words, env).splitlines()[-1])


def _output(words: Sequence[str], env: dict[str, str]) -> str:
    done = subprocess.run(
        words, cwd=ROOT, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    if done.returncode != 0:
        tail = (done.stderr.strip() or done.stdout.strip()).splitlines()[-12:]
        raise AssertionError("\n".join([f"exit code {done.returncode}", *tail]))
    return done.stdout


def tests_pass(*files: str) -> Run:
    """A check that is a part of the tests."""

    def run(_chain: Chain) -> str:
        words = [sys.executable, "-m", "pytest", "-q", *files]
        return _output(words, dict(os.environ)).strip().splitlines()[-1]

    return run


def as_eager(backend: str) -> Run:
    """Losses and parameters of the built step are those of the eager one, bit by bit."""

    def run(chain: Chain) -> str:
        built, eager = chain.step(backend), chain.step(backend, eager=True)
        assert built["roles"] and set(built["roles"]) == {"built"}, built
        assert _numbers(built) == _numbers(eager), f"{_numbers(built)} is not {_numbers(eager)}"
        return f"{len(built['losses'])} calls, state {built['state'][:12]}"

    return run


def loads(backend: str, index: int | None) -> Run:
    """A new process loads what index 0 built, compiles nothing, and computes the same.

    Args:
        index: of its device; None: every other one.
    """

    def run(chain: Chain) -> str:
        there = range(1, chain.devices) if index is None else [index]
        first = chain.step(backend)
        assert first["counts"]["traces"] > 0, "the counters count nothing"
        for i in there:
            loaded = chain.again(backend, i)
            assert set(loaded["roles"]) == {"loaded"}, f"on index {i}: {loaded['roles']}"
            assert loaded["digests"] == first["digests"], f"on index {i}: another artifact"
            assert not any(loaded["counts"].values()), f"on index {i}: {loaded['counts']}"
            assert _numbers(loaded) == _numbers(first), f"on index {i}: other numbers"
        return f"on index {', '.join(map(str, there))}: artifact {first['digests'][0][:12]}"

    return run


def _numbers(result: dict[str, Any]) -> tuple[Any, ...]:
    return result["losses"], result["state"]


CHECKS = [
    Check(
        "fake cuda:0: no index in a graph; a second accelerator is refused at its line",
        0,
        tests_pass("tests/test_devices.py", "tests/test_devices_training.py"),
    ),
    Check(
        "pretended sm_90: index 0 and 3 give one program; its binaries are shipped and found",
        0,
        tests_pass("tests/test_cubins.py"),
    ),
    Check("graph: built on index 0, bitwise equal to eager there", 1, as_eager("graph")),
    Check("graph: a new process loads it, nothing is compiled", 1, loads("graph", 0)),
    Check("inductor: a new process loads it, nothing is compiled", 1, loads("inductor", 0)),
    Check("graph: built on index 0, loaded on every other", 2, loads("graph", None)),
    Check("inductor: built on index 0, loaded on every other", 2, loads("inductor", None)),
]


def devices() -> tuple[int, str]:
    """How many accelerators of one kind there are, and what they are."""
    import torch

    if not torch.accelerator.is_available():
        return 0, "no accelerator"
    count = torch.accelerator.device_count()
    kind = torch.accelerator.current_accelerator()
    names = [f"{kind}"] * count
    if kind is not None and kind.type == "cuda":
        names = [torch.cuda.get_device_name(i) for i in range(count)]
    same = names.index(next((n for n in names if n != names[0]), names[0])) or count
    return same, f"{count} x {names[0]}" + ("" if same == count else ", then others")


def table(checks: Sequence[Check], chain: Chain, there: int, what: str) -> list[tuple[str, str]]:
    """Run what can run.

    Returns:
        For each check its outcome, with what was seen or why not, and its line.
    """
    rows = []
    for check in checks:
        if check.needs > there:
            rows.append((f"{NOT}: {what}", check.line))
            continue
        try:
            rows.append((f"{HOLDS}: {check.run(chain)}", check.line))
        except (AssertionError, ValueError, subprocess.TimeoutExpired) as error:
            rows.append((f"{FAILS}: {error}", check.line))
        print(f"{rows[-1][1]}: {rows[-1][0].splitlines()[0]}", file=sys.stderr, flush=True)
    return rows


def main(words: Sequence[str]) -> int:
    """Print the table; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rehearse", action="store_true", help="one device's checks, on the CPU")
    rehearse = parser.parse_args(words).rehearse
    there, what = (1, "a rehearsal on the CPU") if rehearse else devices()
    checks = [c for c in CHECKS if c.needs or not rehearse]
    with tempfile.TemporaryDirectory(prefix="lockstep-gpu-") as folder:
        rows = table(checks, Chain(Path(folder), there), there, what)
    print(f"\n{what}; torch's own words for what did not hold stand below its line\n")
    for outcome, line in rows:
        print(f"{line}\n    {outcome.replace(chr(10), chr(10) + '    ')}")
    counts = {word: sum(outcome.startswith(word) for outcome, _ in rows) for word in (HOLDS, FAILS)}
    left = len(rows) - sum(counts.values())
    print(f"\n{counts[HOLDS]} hold, {counts[FAILS]} do not, {left} not verified here")
    return 1 if counts[FAILS] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
