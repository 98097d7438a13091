"""Byte code beside the text: used where it is this interpreter's and of that text alone."""

from __future__ import annotations

import hashlib
import traceback
from dataclasses import replace
from typing import Any

import pytest

from lockstep.build import bytecode
from lockstep.build.artifact import Artifact, pack
from lockstep.build.program import Program
from lockstep.build.requires import basic_requires
from lockstep.errors import ArtifactError
from lockstep.run.loader import load_program

TEXT = "def call(inputs):\n    return ('text',)\n"
OTHER = "def call(inputs):\n    return ('other',)\n"


def artifact(**told: Any) -> Artifact:
    """An artifact whose byte code is another program's, so that one sees which of the two runs."""
    made = pack({}, Program("graph", TEXT, {}, basic_requires([])))
    _, code = bytecode.byte_code(OTHER, hashlib.sha256(TEXT.encode()).hexdigest())
    manifest = made.manifest | {"code": made.manifest["code"] | told}
    return replace(made, blobs=made.blobs | {"program.code": code}, manifest=manifest)


def test_byte_code_of_this_interpreter_is_what_runs():
    assert load_program(artifact())([]) == ("other",)


@pytest.mark.parametrize(
    "told", [{"magic": "00000000"}, {"interpreter": "cpython-399"}, {"source": "0" * 64}]
)
def test_the_text_is_compiled_where_the_byte_code_is_not_of_both(told):
    assert load_program(artifact(**told))([]) == ("text",)


@pytest.mark.parametrize("data", [b"", b"not marshalled", None])
def test_the_text_is_compiled_where_the_byte_code_cannot_be_read(data):
    made = artifact()
    blobs = {**made.blobs, "program.code": data} if data is not None else dict(made.blobs)
    if data is None:
        del blobs["program.code"]
    assert load_program(replace(made, blobs=blobs))([]) == ("text",)


def test_the_same_text_gives_the_same_byte_code():
    digest = hashlib.sha256(TEXT.encode()).hexdigest()
    assert bytecode.byte_code(TEXT, digest) == bytecode.byte_code(TEXT, digest)
    assert bytecode.agrees(*bytecode.byte_code(TEXT, digest), TEXT, digest) is True
    assert bytecode.agrees(*bytecode.byte_code(OTHER, digest), TEXT, digest) is False
    told, data = bytecode.byte_code(TEXT, digest)
    assert bytecode.agrees({**told, "magic": "00"}, data, TEXT, digest) is None


def test_a_file_whose_byte_code_is_another_program_is_found_without_running_it(tmp_path):
    from lockstep.build.inspect import inspect
    from tests.corruption.forged import parts, rebuilt

    path = tmp_path / "step.lockstep"
    path.write_bytes(pack({}, Program("graph", "raise SystemExit", {}, {})).to_bytes())
    assert inspect(path).byte_code is True
    manifest, blobs, seal = parts(path.read_bytes())
    digest = hashlib.sha256(blobs["program.py"]).hexdigest()
    blobs["program.code"] = bytecode.byte_code("raise SystemExit(1)", digest)[1]
    path.write_bytes(rebuilt(manifest, blobs, seal))
    with pytest.raises(ArtifactError, match="byte code is not that of the program's text"):
        inspect(path)


def test_an_error_inside_byte_code_shows_the_text_s_line():
    text = "def call(inputs):\n    return 1 / 0  # here\n"
    call = load_program(pack({}, Program("graph", text, {}, basic_requires([]))))
    with pytest.raises(ZeroDivisionError) as caught:
        call([])
    assert "return 1 / 0  # here" in "".join(traceback.format_tb(caught.value.__traceback__))
