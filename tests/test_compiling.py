"""C++ kernels are compiled while code is generated for what follows, each once."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from lockstep import _compat
from lockstep.build.compiling import compiling
from lockstep.build.rewrite import Kernel
from lockstep.errors import LoweringError
from tests.graphs import trace

WAIT_S = 60
ONE, OTHER = 'extern "C" void kernel() { /* one */ }', 'extern "C" void kernel() { /* other */ }'


def digest(source: str) -> str:
    return Kernel((), source).digest


def test_two_are_compiled_at_a_time_and_each_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    both, calls = threading.Barrier(3), list[str]()

    def library(argtypes: list[str], source: str) -> str:
        calls.append(source)
        both.wait(WAIT_S)  # passes where both are under way, and this thread goes on
        path = tmp_path / digest(source)
        path.write_text(source)
        return str(path)

    monkeypatch.setattr(_compat, "built_library", library)
    monkeypatch.setattr(_compat, "compile_threads", lambda: 2)
    with compiling() as libraries:
        for source in (ONE, OTHER, ONE):
            libraries.start([], source)
        both.wait(WAIT_S)
        libraries.wait()
        assert libraries.read(digest(OTHER)) == OTHER.encode()
    assert sorted(calls) == sorted([ONE, OTHER])


def test_generated_code_gives_its_kernels_and_does_not_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch

    from lockstep.build.backends import lower

    def library(*_: Any) -> str:
        raise RuntimeError("the compiler failed: target: aten.tanh.default")

    monkeypatch.setattr(_compat, "built_library", library)
    with pytest.raises(LoweringError, match=r"the compiler can't hold aten\.tanh\.default"):
        lower(trace(lambda x: (x.tanh() * 3,), [torch.ones(5)]), "inductor")


def test_a_user_may_have_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch._inductor.config as config

    with config.patch(compile_threads=1):
        assert _compat.compile_threads() == 1
    with config.patch(compile_threads=3):
        assert _compat.compile_threads() == 3
