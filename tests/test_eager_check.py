"""A graph that is compared with its step before it is built: refused, passed, or not comparable."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lockstep as ls
from lockstep.build.artifact import read_manifest
from lockstep.build.describe import describe
from lockstep.capture import standin
from lockstep.errors import ArtifactError, EagerMismatch, LoweringError, UsageError
from lockstep.run import trial
from tests.steps import Tiny, batch, equal, tensors_of, train_step


def compiled(step: Callable[..., Any], folder: Path, **options: Any) -> Any:
    return ls.compile(
        step,
        **{"backend": "graph", "store": folder, "check": "off", "eager_check": "on", **options},
    )


def eager_of(folder: Path) -> dict[str, Any]:
    (artifact,) = folder.glob("*.lockstep")
    found: dict[str, Any] = read_manifest(artifact)["eager"]
    return found


def stored(folder: Path) -> list[Path]:
    return list(folder.glob("*.lockstep"))


# ---- nothing is lost -----------------------------------------------------------------------------


def trained(folder: Path, eager_check: str) -> tuple[dict[str, Any], list[float]]:
    torch.manual_seed(0)
    model = Tiny()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def whole(model: nn.Module, tokens: Tensor, labels: Tensor) -> Tensor:
        loss = train_step(model, tokens, labels)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    step = compiled(whole, folder, eager_check=eager_check)
    losses = [step(model, *batch(i)).item() for i in range(3)]
    return tensors_of(model), [*losses, torch.rand(()).item()]


def test_training_is_the_same_with_the_comparison_and_without(tmp_path: Path) -> None:
    on, drawn_on = trained(tmp_path / "on", "on")
    off, drawn_off = trained(tmp_path / "off", "off")
    assert drawn_on == drawn_off
    assert on.keys() == off.keys() and all(equal(on[name], off[name]) for name in on)
    assert eager_of(tmp_path / "on")["result"] == "equal"
    assert eager_of(tmp_path / "on")["compared"] > len(on)
    assert eager_of(tmp_path / "off") == {"mode": "off"}


def test_gradients_that_were_there_are_accumulated_to_once(tmp_path: Path) -> None:
    model, x = nn.Linear(3, 2), torch.ones(1, 3)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    held = model.weight.grad

    def step(model: nn.Module, x: Tensor) -> Tensor:
        loss = model(x).sum()
        loss.backward()
        return loss

    compiled(step, tmp_path)(model, x)
    assert equal(model.weight.grad, torch.full((2, 3), 2.0)) and held is not None
    assert eager_of(tmp_path)["result"] == "equal"


def test_the_step_runs_once_more_at_a_build_and_not_at_a_load(tmp_path: Path) -> None:
    seen: list[int] = []

    def count() -> None:
        seen.append(1)

    def step(x: Tensor) -> Tensor:
        ls.on_rank(0, count)
        return x * 2

    compiled(step, tmp_path)(torch.ones(2))
    assert len(seen) == 1, "what the step calls beside is left out of the comparison"
    compiled(step, tmp_path)(torch.ones(2))
    assert len(seen) == 2 and len(stored(tmp_path)) == 1


def test_an_argument_that_the_step_writes_to_is_as_it_was(tmp_path: Path) -> None:
    def step(x: Tensor) -> Tensor:
        x.add_(1)
        return x * 2

    x = torch.zeros(3)
    assert equal(compiled(step, tmp_path)(x), torch.full((3,), 2.0))
    assert equal(x, torch.ones(3))


# ---- something is lost ---------------------------------------------------------------------------


def test_a_lost_hook_is_named_by_the_first_gradient_that_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2)), torch.ones(1, 3)
    model[1].weight.register_hook(lambda grad: grad * 2)

    def step(model: nn.Module, x: Tensor) -> Tensor:
        loss = model(x).sum()
        loss.backward()
        return loss

    with monkeypatch.context() as patch:
        patch.setattr(standin, "dress", lambda fake, real: setattr(fake, "grad", None))
        with pytest.raises(EagerMismatch) as refused:
            compiled(step, tmp_path)(model, x)
    name = step.__qualname__
    assert str(refused.value).splitlines()[:4] == [
        f"LS420: the captured graph of {name} does not do what {name} does: no artifact is made",
        "  at   model.1.weight.grad",
        "  got  more than rounding in 1 gradient(s): model.1.weight.grad",
        "  want the collectives of the step run eagerly from the same state, and but for rounding "
        "its values",
    ]
    assert stored(tmp_path) == [] and model[1].weight.grad is None
    compiled(step, tmp_path)(model, x)  # nothing is lost now
    assert eager_of(tmp_path)["result"] == "equal"


def test_a_constant_that_only_the_capture_has_is_refused(tmp_path: Path) -> None:
    def step(x: Tensor) -> Tensor:
        return x * (1.0 if "Fake" in type(x).__name__ else 2.0)

    with pytest.raises(
        EagerMismatch, match="got  more than rounding in 1 other value\\(s\\): output 0"
    ):
        compiled(step, tmp_path)(torch.ones(2))
    assert stored(tmp_path) == []


@torch.library.custom_op("lockstep_tests::noise", mutates_args=())
def noise(x: Tensor) -> Tensor:
    return x + int.from_bytes(os.urandom(2), "big")


@noise.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def test_a_step_that_differs_from_itself_is_not_comparable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def step(x: Tensor) -> Tensor:
        return noise(x)

    compiled(step, tmp_path)(torch.ones(2))
    eager = eager_of(tmp_path)
    assert eager["result"] == "not comparable" and "output 0" in eager["why"]
    assert "and its graph: not comparable: two runs of it differ" in capsys.readouterr().err
    (artifact,) = stored(tmp_path)
    assert "\neager: not comparable: two runs of it differ by themselves: output 0" in describe(
        artifact
    )


def test_a_step_that_fails_eagerly_leaves_its_state(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    before = model.weight.detach().clone()

    def step(model: nn.Module, x: Tensor) -> Tensor:
        with torch.no_grad():
            model.weight.add_(1)
        return failing(model(x))

    with pytest.raises(ValueError, match="on real values"):
        compiled(step, tmp_path)(model, torch.ones(1, 2))
    assert equal(model.weight.detach(), before) and stored(tmp_path) == []


@torch.library.custom_op("lockstep_tests::failing", mutates_args=())
def failing(x: Tensor) -> Tensor:
    raise ValueError("on real values")


@failing.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


# ---- what is asked for, and what an artifact has -------------------------------------------------


def double(x: Tensor) -> Tensor:
    return x * 2


def test_without_it_the_manifest_says_so_and_asking_for_it_builds_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ls.compile(double, backend="graph", store=tmp_path, check="off")(torch.ones(2))
    assert eager_of(tmp_path) == {"mode": "off"}
    compiled(double, tmp_path)(torch.ones(2))
    told = capsys.readouterr().err
    assert "with eager_check='off', and eager_check='on' is asked for; it is built again" in told
    assert eager_of(tmp_path)["result"] == "equal"
    compiled(double, tmp_path, eager_check="off")(torch.ones(2))
    assert eager_of(tmp_path)["result"] == "equal", "more than is asked for is good"


def test_a_pinned_artifact_that_was_not_compared_is_refused(tmp_path: Path) -> None:
    compiled(double, tmp_path, eager_check="off")(torch.ones(2))
    (artifact,) = stored(tmp_path)
    with pytest.raises(ArtifactError, match="got  eager_check='off'\n  want eager_check='on'"):
        compiled(double, artifact)(torch.ones(2))
    compiled(double, artifact, eager_check="off")(torch.ones(2))


def test_a_word_that_is_neither_is_refused() -> None:
    with pytest.raises(UsageError, match="LS001: eager_check='maybe'\n  want one of off, on"):
        ls.compile(eager_check="maybe")


def test_what_the_graph_cannot_hold_is_built_and_said_not_to_be_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lower = trial.lower

    def refusing(graph: Any, backend: str) -> Any:
        raise LoweringError("the graph calls a function that text can't name")

    monkeypatch.setattr(trial, "lower", refusing)
    compiled(double, tmp_path / "inductor", backend="inductor")(torch.ones(2))
    assert eager_of(tmp_path / "inductor") == {
        "mode": "on",
        "result": "not run",
        "why": "the back end graph cannot hold it: the graph calls a function that text can't name",
        "seconds": eager_of(tmp_path / "inductor")["seconds"],
    }
    with pytest.raises(LoweringError):
        compiled(double, tmp_path / "graph")(torch.ones(2))
    monkeypatch.setattr(trial, "lower", lower)
    compiled(double, tmp_path / "graph")(torch.ones(2))
    assert eager_of(tmp_path / "graph")["result"] == "equal"


def test_the_manifest_is_shown(tmp_path: Path) -> None:
    compiled(double, tmp_path / "on")(torch.ones(2))
    compiled(double, tmp_path / "off", eager_check="off")(torch.ones(2))
    (on,), (off,) = stored(tmp_path / "on"), stored(tmp_path / "off")
    assert "\neager: the graph gave the bits of the step in 3 values in 0." in describe(on)
    assert "\neager: off, the graph was not compared with the step itself" in describe(off)


def test_a_counter_that_no_capture_sees_makes_it_not_comparable(tmp_path: Path) -> None:
    """Eager differs from itself: what is told, and not refused, is that nothing can be said."""
    numbers = itertools.count(5)

    def step(x: Tensor) -> Tensor:
        return x + counted(x)

    def counted(x: Tensor) -> int:
        return 0 if "Fake" in type(x).__name__ else next(_NUMBERS[0])

    _NUMBERS[:] = [numbers]
    compiled(step, tmp_path)(torch.ones(2))
    assert eager_of(tmp_path)["result"] == "not comparable"


_NUMBERS: list[Any] = []
