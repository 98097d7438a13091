"""A captured step does to every tensor what the eager one does, bit by bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import lockstep as ls
from lockstep import _compat
from lockstep.capture.capture import capture
from lockstep.errors import UsageError
from tests.steps import Tiny, batch, equal, same_as_eager, tensors_of, train_step


def test_training_with_ties_dropout_and_batch_norm() -> None:
    step = same_as_eager(train_step, Tiny(), [batch(i) for i in range(3)])
    # .grad is None at the first call and there at the later ones: two variants, no more
    assert len(step._variants) == 2


def test_the_comparison_can_fail() -> None:
    def wrong(model: nn.Module, *given: torch.Tensor) -> torch.Tensor:
        return train_step(model, *given) * (1.0000001 if _compat.is_tracing() else 1)

    with pytest.raises(AssertionError, match="result 0"):
        same_as_eager(wrong, Tiny(), [batch(0)])


def test_gradients_accumulate_over_calls_and_are_kept_in_place() -> None:
    model = Tiny()
    step = ls.compile(backend="graph")(train_step)
    step(model, *batch(0))
    first = model.linear.weight.grad
    step(model, *batch(1))
    assert model.linear.weight.grad is first


def test_frozen_parameters_get_no_gradient() -> None:
    model = Tiny()
    model.linear.requires_grad_(False)
    same_as_eager(train_step, model, [batch(0), batch(1)])
    assert model.linear.weight.grad is None
    assert model.embedding.weight.grad is not None


def test_evaluation_without_backward() -> None:
    @torch.no_grad()
    def evaluate(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
        return model(tokens).argmax(-1)

    same_as_eager(evaluate, Tiny().eval(), [batch(0)[:1]])


def test_inference_mode() -> None:
    def infer(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            return model(tokens)

    same_as_eager(infer, Tiny().eval(), [batch(0)[:1]])
    outside = ls.compile(backend="graph")(lambda model, tokens: model(tokens))
    model = Tiny().eval()
    with torch.inference_mode():
        assert equal(outside(model, batch(0)[0]), model(batch(0)[0]))


def test_any_tree_in_and_out() -> None:
    def step(model: nn.Module, data: dict[str, Any], scale: float, *, flag: bool) -> Any:
        out = model(data["x"][0]) * scale
        out.sum().backward()
        return {"out": (out, [scale]), "flag": flag, "none": None, "name": "step", "n": 3}

    tokens, _ = batch(0)
    model = Tiny(0.0)
    compiled = ls.compile(backend="graph")(step)
    got = compiled(model, {"x": [tokens], "unused": torch.zeros(1)}, 2.0, flag=True)
    assert got["flag"] is True and got["none"] is None and got["name"] == "step" and got["n"] == 3
    again = compiled(model, {"x": [tokens], "unused": torch.zeros(1)}, 4.0, flag=True)
    assert torch.equal(again["out"][0], got["out"][0] * 2)


def test_outputs_that_alias_inputs_stay_aliases() -> None:
    def step(model: nn.Module, x: torch.Tensor) -> Any:
        model.linear.weight.sum().backward()
        return x, x.view(-1), model.embedding.weight, x.t()

    model, x = Tiny(), torch.randn(2, 3)
    same, flat, weight, turned = ls.compile(backend="graph")(step)(model, x)
    assert same is x and weight is model.embedding.weight
    assert flat.data_ptr() == turned.data_ptr() == x.data_ptr()


def test_the_same_tensor_twice_is_one_input_and_two_tensors_are_two() -> None:
    def step(model: nn.Module, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.add_(1)
        return b * 2

    x, y = torch.ones(2), torch.ones(2)
    compiled = ls.compile(backend="graph")(step)
    assert compiled(Tiny(), x, y).tolist() == [2, 2]
    assert compiled(Tiny(), x, x).tolist() == [6, 6]


def test_tensors_that_the_step_stores_on_a_module_are_stored_at_each_call() -> None:
    class Keeper(Tiny):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(()))
            self.table = torch.arange(16.0)  # a plain attribute, lifted as an input

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            out = super().forward(tokens)
            self.mean = 0.9 * self.mean + 0.1 * out.detach().mean()
            self.last = out.detach()
            return out + self.table[tokens].mean()

    model = Keeper()
    same_as_eager(train_step, model, [batch(i) for i in range(3)])
    model.table = torch.zeros(16)
    model.zero_grad()  # a deep copy has no gradients
    same_as_eager(train_step, model, [batch(5)])


def test_returned_numbers() -> None:
    def step(model: nn.Module, tokens: torch.Tensor, labels: torch.Tensor) -> Any:
        loss = train_step(model, tokens, labels)
        return {"loss": loss.item(), "count": labels.numel()}

    same_as_eager(step, Tiny(), [batch(0), batch(1)])


def test_gradient_hooks_and_parameter_attributes_are_part_of_the_step() -> None:
    class Marked(Tiny):
        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            out = super().forward(tokens)
            return out * 2 if getattr(self.linear.weight, "double", False) else out

    model = Marked()
    model.linear.weight.double_hook = model.linear.weight.register_hook(lambda g: g * 3)  # type: ignore[attr-defined]
    model.linear.weight.double = True  # type: ignore[method-assign, assignment]
    graph = capture(train_step, model, *batch(0))
    assert any(
        "mul" in str(n.target) and n.args[1] == 3 for n in graph.gm.graph.nodes if n.args[1:]
    )
    assert any(
        "mul" in str(n.target) and n.args[1] == 2 for n in graph.gm.graph.nodes if n.args[1:]
    )


@pytest.mark.parametrize("kind", ["adamw", "adamw_foreach", "sgd", "adam_amsgrad"])
def test_the_optimizer_inside_with_clipping_and_a_schedule(kind: str) -> None:
    def step(model: nn.Module, optimizer: Any, tokens: torch.Tensor, labels: torch.Tensor) -> Any:
        loss = train_step(model, tokens, labels)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        return loss, norm

    makers = {
        "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
        "adamw_foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
        "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
        "adam_amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    }
    runs = []
    for function in (step, ls.compile(backend="graph")(step)):
        torch.manual_seed(0)
        model = Tiny()
        optimizer = makers[kind](model.parameters())
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=8)
        out = []
        for i in range(6):
            out.append([t.detach().clone() for t in function(model, optimizer, *batch(i))])
            schedule.step()
            if optimizer.param_groups[0]["weight_decay"]:
                optimizer.param_groups[0]["weight_decay"] *= 0.5
        state = {
            f"{i}.{k}": v for i, s in optimizer.state_dict()["state"].items() for k, v in s.items()
        }
        runs.append((out, tensors_of(model), state, optimizer.param_groups[0]["lr"]))
    (out_a, model_a, state_a, lr_a), (out_b, model_b, state_b, lr_b) = runs
    assert lr_a == lr_b
    assert all(
        torch.equal(x, y)
        for a, b in zip(out_a, out_b, strict=True)
        for x, y in zip(a, b, strict=True)
    )
    assert state_a.keys() == state_b.keys() and model_a.keys() == model_b.keys()
    for name in model_a:
        assert equal(model_a[name], model_b[name]), name
    for name in state_a:
        assert equal(state_a[name], state_b[name]), name
    assert len(function._variants) == 1  # type: ignore[attr-defined]


def test_a_fused_optimizer_is_refused_by_name() -> None:
    def step(model: nn.Module, optimizer: Any, tokens: torch.Tensor, labels: torch.Tensor) -> None:
        train_step(model, tokens, labels)
        optimizer.step()

    model = Tiny()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    with pytest.raises(ls.LockstepError) as caught:
        ls.compile(backend="graph")(step)(model, optimizer, *batch(0))
    assert "optimizer is fused" in str(caught.value)
    assert "fused=False" in str(caught.value)


@pytest.mark.parametrize("name", ["momentum", "weight_decay"])
def test_a_group_s_number_that_becomes_0_is_another_program(name: str) -> None:
    def step(model: nn.Module, optimizer: Any, tokens: torch.Tensor, labels: torch.Tensor) -> Any:
        loss = train_step(model, tokens, labels)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    runs, compiled = [], ls.compile(backend="graph")(step)
    for function in (step, compiled):
        torch.manual_seed(0)
        model = Tiny()
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=0.1)
        for i, value in enumerate([0.5, 0.25, 0.0, 0.0, 0.5]):
            optimizer.param_groups[0][name] = value
            function(model, optimizer, *batch(i))
        runs.append(tensors_of(model))
    assert all(equal(runs[0][key], runs[1][key]) for key in runs[0])
    assert len(compiled._variants) == 2


def test_autocast_casts_as_eager_does() -> None:
    def step(model: nn.Module, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(tokens).float(), labels.flatten())
        loss.backward()
        return loss

    same_as_eager(step, Tiny(), [batch(0), batch(1)])

    compiled = ls.compile(backend="graph")(train_step)
    eager, model = Tiny(0.0), Tiny(0.0)
    model.load_state_dict(eager.state_dict())
    for on in (False, True, False):
        with torch.autocast("cpu", torch.bfloat16, enabled=on):
            assert equal(train_step(eager, *batch(3)), compiled(model, *batch(3)))
    for name, value in tensors_of(eager).items():
        assert equal(value, tensors_of(model)[name]), name


def test_a_method_of_a_trainer_as_the_step() -> None:
    class Trainer:
        def __init__(self) -> None:
            self.model = Tiny(0.0)
            self.weight = torch.tensor(2.0)

        @ls.compile(backend="graph")
        def step(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            return train_step(self.model, tokens, labels) * self.weight

    trainer, tokens = Trainer(), batch(0)
    got = trainer.step(*tokens)
    trainer.model.zero_grad()
    trainer.model.norm.reset_running_stats()
    assert equal(got, train_step(trainer.model, *tokens) * 2)


def test_after_a_capture_everything_is_as_it_was() -> None:
    model = Tiny()
    optimizer = torch.optim.AdamW(model.parameters())
    before, ids = (
        {n: t.clone() for n, t in model.state_dict().items()},
        [*map(id, model.parameters())],
    )
    draw = torch.get_rng_state()

    def step(model: nn.Module, optimizer: Any, *given: torch.Tensor) -> torch.Tensor:
        loss = train_step(model, *given)
        optimizer.step()
        return loss

    capture(step, model, optimizer, *batch(0))
    assert [*map(id, model.parameters())] == ids
    assert all(torch.equal(before[n], t) for n, t in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert optimizer.param_groups[0]["params"][0] is model.embedding.weight
    assert set(optimizer.state) == set(model.parameters())
    assert torch.equal(draw, torch.get_rng_state())
    train_step(model, *batch(0))


def test_every_node_knows_line_module_and_phase() -> None:
    graph = capture(train_step, Tiny(), *batch(0))
    origins = graph.source_map()
    missing = [
        n.name for n in graph.gm.graph.nodes if n.op == "call_function" and n.name not in origins
    ]
    assert missing == []
    line, module, phase = origins["addmm"]
    assert line.startswith("tests/steps.py:") and (module, phase) == ("model.linear", "forward")
    phases = [origin[2] for origin in origins.values()]
    assert phases.index("backward") > phases.index("forward") and set(phases) == {
        "forward",
        "backward",
    }
    backward = origins["embedding_dense_backward"]
    assert backward == [
        "tests/steps.py:" + origins["embedding"][0].split(":")[1],
        "model.embedding",
        "backward",
    ]


def test_only_attributes_that_the_step_may_read_make_variants() -> None:
    class Trainer:
        def __init__(self) -> None:
            self.model, self.scale, self.calls = Tiny(0.0), 1.0, 0

        def loop(self, times: int) -> None:
            for i in range(times):
                self.calls += 1
                self.step(*batch(i))
                self.model.zero_grad()

        @ls.compile(backend="graph")
        def step(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            return train_step(self.model, tokens, labels) * self.factor()

        def factor(self) -> float:
            return self.scale

    trainer, variants = Trainer(), vars(Trainer)["step"]._variants
    trainer.loop(3)
    assert len(variants) == 1
    trainer.scale = 2.0
    doubled = trainer.step(*batch(0))
    assert len(variants) == 2
    trainer.model.zero_grad()
    trainer.scale = 1.0
    assert torch.equal(trainer.step(*batch(0)) * 2, doubled)
    assert len(variants) == 2


class Checkpointed(Tiny):
    """Tiny with its middle under activation checkpointing; draws before, inside and after it."""

    def __init__(self, dropout: float, reentrant: bool) -> None:
        super().__init__(dropout)
        self.reentrant = reentrant

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = F.dropout(self.embedding(tokens), 0.25)
        hidden = checkpoint(self.middle, hidden, use_reentrant=self.reentrant)
        hidden = checkpoint(self.middle, hidden, use_reentrant=self.reentrant)
        return self.head(F.dropout(hidden.flatten(0, 1), 0.25))

    def middle(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.dropout(torch.relu(self.dropout(self.linear(hidden))))


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_checkpointed_regions_draw_once_and_are_eager_bit_by_bit(
    dropout: float, reentrant: bool
) -> None:
    same_as_eager(train_step, Checkpointed(dropout, reentrant), [batch(i) for i in range(3)])


def test_a_gradient_through_what_a_step_returned_is_refused_and_never_dropped() -> None:
    def forward(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
        return model(tokens).mean()

    model, extra = Tiny(0.0), torch.ones((), requires_grad=True)
    step = ls.compile(backend="graph")(forward)
    out = step(model, batch(0)[0])
    assert out.requires_grad
    with pytest.raises(UsageError, match="through what a compiled step returned"):
        (out * extra).backward()
    (out.detach() * extra).backward()
    with torch.no_grad():
        assert not step(model, batch(0)[0]).requires_grad
    loss = ls.compile(backend="graph")(train_step)(model, *batch(0))
    with pytest.raises(UsageError, match="call backward\\(\\) inside the step"):
        (loss + extra).backward()
