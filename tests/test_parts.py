"""What was compiled before is found by what it is, and is what would be compiled again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lockstep import _compat
from lockstep.build.artifact import Artifact, pack
from lockstep.build.backends import lower
from lockstep.build.keys import SIGN, TRUST, generate
from lockstep.build.parts import UNNAMED, held_part, key_of
from lockstep.build.program import Program
from lockstep.errors import LoweringError
from lockstep.fleet.store import ArtifactStore
from lockstep.run.earlier import Earlier
from tests.graphs import Block, Tiny, Traced, trace, training_inputs, training_step

pytestmark = pytest.mark.timeout(600)  # a cold compiler cache takes most of it

FIELDS = {"step": "train", "backend": "inductor", "version torch": "2.14", "source train": "0a"}


class Other(Block):
    """A layer of another structure."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).tanh() + x


def layers(odd: tuple[int, ...] = ()) -> Traced:
    """A training step of six layers, of which some are of another structure."""
    torch.manual_seed(0)
    made = Tiny(layers=6)
    for at in range(6):
        made.blocks[at] = (Other if at in odd else Block)(16, 2)
    return trace(training_step(made), training_inputs(made))


@pytest.fixture(scope="module")
def traced() -> Traced:
    return layers()


@pytest.fixture(scope="module")
def program(traced: Traced) -> Program:
    made = lower(traced, "inductor")
    assert made.repeats["bodies"] > 1
    return made


@pytest.fixture
def store(tmp_path: Path, program: Program) -> ArtifactStore:
    return stored(tmp_path / "store", program)


def stored(folder: Path, program: Program, fields: dict[str, Any] = FIELDS) -> ArtifactStore:
    store = ArtifactStore(folder)
    data = pack({"step": "train", "fingerprint": fields}, program).to_bytes()
    store.write("train.lockstep", data)
    return store


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("it was compiled again")

    monkeypatch.setattr(_compat, "compile_to_python", refuse)


def test_the_same_graph_is_taken_whole(
    store: ArtifactStore, traced: Traced, program: Program, no_compiler: None
) -> None:
    changed = FIELDS | {"source train": "1b", "contract x": "f32[2]", "step": "other"}
    earlier = Earlier(store, changed)
    again = lower(traced, "inductor", earlier)
    assert again == program
    assert earlier.taken == len([key for key in program.parts if key]) > 2
    with pytest.raises((AssertionError, LoweringError), match="compiled again"):
        lower(traced, "inductor", Earlier(store, FIELDS | {"version torch": "2.15"}))


@pytest.mark.parametrize("field", ["build cpu threads", "flag cudnn", "contract mode grad"])
def test_other_flags_make_other_code(store: ArtifactStore, program: Program, field: str) -> None:
    (key,) = {key for key in program.parts[:1] if key}
    assert Earlier(store, FIELDS)(key) is not None
    assert Earlier(store, FIELDS | {field: "another"})(key) is None


def test_a_changed_layer_alone_is_compiled(
    store: ArtifactStore, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[Any] = []
    original = _compat.compile_to_python

    def counted(gm: Any, fakes: list[Any]) -> str:
        compiled.append(gm)
        return original(gm, fakes)

    monkeypatch.setattr(_compat, "compile_to_python", counted)
    earlier, changed = Earlier(store, FIELDS), layers(odd=(5,))
    made = lower(changed, "inductor", earlier)
    assert 0 < earlier.taken < len(made.parts)
    assert len(compiled) == len([key for key in made.parts if key]) - earlier.taken
    assert made == lower(changed, "inductor")  # as without a store
    shared = set(program.parts) & set(made.parts) - {UNNAMED}
    assert len(shared) == earlier.taken


def test_a_graph_that_is_compiled_whole_is_one_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    traced = trace(lambda x: (x, (x * 2 + 1).tanh()), [torch.ones(4, 3)])
    program = lower(traced, "inductor")
    assert len(program.parts) == 1 and "flat" in program.repeats
    store = stored(tmp_path / "store", program)
    monkeypatch.setattr(_compat, "compile_to_python", None)
    assert lower(traced, "inductor", Earlier(store, FIELDS)) == program


@pytest.mark.parametrize(
    "change",
    [
        lambda x: (x, (x * 3 + 1).tanh()),
        lambda x: ((x * 2 + 1).tanh(), x),
        lambda x: ((x * 2 + 1).tanh(),),
    ],
)
def test_another_graph_has_another_key(change: Callable[..., Any]) -> None:
    def key(step: Callable[..., Any], x: torch.Tensor) -> str:
        return key_of(trace(step, [x]).gm)

    def step(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x, (x * 2 + 1).tanh()

    own = key(step, torch.ones(4, 3))
    assert own == key(step, torch.zeros(4, 3)) != UNNAMED
    others = [torch.ones(4, 4), torch.ones(3, 4).t(), torch.ones(4, 3, dtype=torch.float64)]
    assert own not in [key(step, x) for x in others]
    assert own != key(change, torch.ones(4, 3))
    gm = trace(step, [torch.ones(4, 3)]).gm
    assert key_of(gm, "def call(inputs): ...") != own


def test_operators_of_others_have_no_key() -> None:
    @torch.library.custom_op("tests_parts::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    twice.register_fake(torch.empty_like)
    assert key_of(trace(lambda x: (twice(x),), [torch.ones(2)]).gm) == UNNAMED


def test_a_damaged_artifact_gives_nothing(store: ArtifactStore, program: Program) -> None:
    key = program.parts[0]
    assert Earlier(store, FIELDS)(key) is not None
    path = store.path_of("train.lockstep")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    assert Earlier(store, FIELDS)(key) is None


def test_a_builder_signs_only_what_it_made_or_trusts(
    store: ArtifactStore, program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = program.parts[0]
    generate(tmp_path / "own")
    monkeypatch.setenv(SIGN, str(tmp_path / "own"))
    assert Earlier(store, FIELDS)(key) is None
    monkeypatch.setenv(TRUST, str(tmp_path / "own.pub"))
    assert Earlier(store, FIELDS)(key) is None  # unsigned
    assert Earlier(stored(tmp_path / "signed", program), FIELDS)(key) is not None


def test_a_part_that_a_file_does_not_hold(program: Program) -> None:
    artifact = pack({"step": "train"}, program)
    assert held_part(artifact, "0" * 32) is None
    wrong = Artifact(artifact.manifest | {"parts": [*program.parts, "0" * 32]}, artifact.blobs, "")
    assert held_part(wrong, "0" * 32) is None
