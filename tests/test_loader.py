"""Loading: requirements first, under the alarm, and with nothing of a compiler imported."""

from __future__ import annotations

import subprocess
import sys
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from lockstep.build.artifact import Artifact, pack
from lockstep.build.backends import lower
from lockstep.build.cpu import cpu_features, parse_cpuinfo
from lockstep.build.program import Program
from lockstep.build.requires import basic_requires
from lockstep.errors import AlarmError, ArtifactError
from lockstep.run.loader import load_program
from tests.graphs import trace


def artifact_of(text: str, **requires: Any) -> Artifact:
    return pack({}, Program("graph", text, {}, basic_requires([]) | requires))


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("torch", "another torch\n"),
        ("torch_git", "another torch git"),
        ("machine", "another machine"),
        ("python_abi", "another python abi"),
    ],
)
def test_another_version_is_refused_before_anything_runs(key: str, said: str) -> None:
    with pytest.raises(ArtifactError, match=said) as caught:
        load_program(artifact_of("raise SystemExit", **{key: "other"}))
    assert "  want other\n" in str(caught.value)
    assert "  fix  build it again here" in str(caught.value)


def test_lacking_cpu_features_are_named() -> None:
    with pytest.raises(ArtifactError, match=r"got  no amx_unheard_of\n"):
        load_program(artifact_of("raise SystemExit", cpu_features=["amx_unheard_of"]))
    have = sorted(cpu_features())[:2]
    load_program(artifact_of("def call(inputs): return ()", cpu_features=have))


def test_cpu_features_are_those_of_every_processor() -> None:
    assert parse_cpuinfo("Features : asimd sve\n\nFeatures\t: asimd\n") == {"asimd"}
    assert parse_cpuinfo("") == frozenset()


def test_an_unregistered_operator_is_named() -> None:
    with pytest.raises(ArtifactError, match=r"not registered here: nowhere::op.default"):
        load_program(artifact_of("raise SystemExit", ops=["nowhere::op.default"]))


def test_custom_operators_are_listed_and_found() -> None:
    @torch.library.custom_op("lockstep_test::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    twice.register_fake(torch.empty_like)
    program = lower(trace(lambda x: (torch.ops.lockstep_test.twice(x),), [torch.ones(2)]), "graph")
    assert program.requires["ops"] == ["lockstep_test::twice"]
    (out,) = load_program(pack({}, program))([torch.ones(2)])
    assert out.tolist() == [2, 2]


def test_a_program_that_compiles_while_loading_rings_the_alarm() -> None:
    with pytest.raises(AlarmError, match=r"loading artifact .*: something was traced or compiled"):
        load_program(artifact_of("import os\nos.system('true')"))


def test_an_artifact_without_a_program_is_refused() -> None:
    sound = artifact_of("def call(inputs): return ()")
    with pytest.raises(ArtifactError, match=r"holds no readable program\.py"):
        load_program(replace(sound, blobs={}))


def test_errors_inside_a_step_show_the_program_s_line() -> None:
    call = load_program(artifact_of("def call(inputs):\n    return 1 / 0\n"))
    with pytest.raises(ZeroDivisionError) as caught:
        call([])
    assert "program.py>" in "".join(traceback.format_tb(caught.value.__traceback__))
    assert "return 1 / 0" in "".join(traceback.format_tb(caught.value.__traceback__))


def test_a_fresh_process_loads_and_runs_without_a_compiler(tmp_path: Path) -> None:
    program = lower(trace(lambda x: (x.exp() + 1,), [torch.ones(2)]), "graph")
    path = tmp_path / "step.lockstep"
    path.write_bytes(pack({}, program).to_bytes())
    code = """if True:
        import pathlib, sys
        from lockstep.build.artifact import Artifact
        from lockstep.run.loader import load_program
        call = load_program(Artifact.from_bytes(pathlib.Path(sys.argv[1]).read_bytes()))
        import torch
        print(call([torch.zeros(2)])[0].tolist())
        print([m for m in sys.modules if m.startswith(("torch._inductor", "torch._dynamo"))])
    """
    env = {"PATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", code, path], capture_output=True, text=True, check=True, env=env
    )
    assert done.stdout.splitlines() == ["[2.0, 2.0]", "[]"]
