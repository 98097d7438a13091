"""What may change while a step is in use: each case runs a step in a way of its own."""

from __future__ import annotations

import torch

from tests.bitwise.compare import History
from tests.bitwise.training import Run, Step


def evaluate_between(step: Step, evaluate: Step) -> History:
    """Train, then `model.eval()` with another step and with the same one, then train on."""
    run, batches = Run(steps=8), Run(steps=8).batches()
    for number in range(8):
        tokens, labels = next(batches)
        if number in (3, 4):
            run.model.eval()
            run.record(loss=evaluate(run.model, tokens, labels))
            run.record(loss=step(run.model, tokens, labels))
            run.optimizer.zero_grad()
            run.model.train()
        run.record(loss=step(run.model, tokens, labels))
        run.advance()
    return run.history


def freeze_at_five(step: Step) -> History:
    """Freeze the first layer, and thaw it again, in the middle of the training."""
    run = Run(steps=10)
    for number, (tokens, labels) in zip(range(1, 11), run.batches(), strict=False):
        if number == 5:
            run.model.layers[0].requires_grad_(False)
        if number == 9:
            run.model.layers[0].requires_grad_(True)
        run.record(loss=step(run.model, tokens, labels))
        run.advance()
    return run.history


def toggle_autocast(step: Step) -> History:
    """Switch bfloat16 autocast on and off."""
    run = Run(steps=8)
    for number, (tokens, labels) in zip(range(8), run.batches(), strict=False):
        with torch.autocast("cpu", torch.bfloat16, enabled=number % 4 in (1, 2)):
            loss = step(run.model, tokens, labels)
        run.record(loss=loss)
        run.advance()
    return run.history


def four_micro_steps(step: Step) -> History:
    """Add up four batches' gradients; the last of them reduces."""
    run = Run(steps=5)
    batches = run.batches()
    for _ in range(5):
        for part in range(4):
            tokens, labels = next(batches)
            run.record(loss=step(run.model, tokens, labels, part == 3))
        run.advance()
    return run.history


def infer(step: Step) -> History:
    """Forward alone, in inference mode."""
    run = Run()
    run.model.eval()
    for _, (tokens, _labels) in zip(range(4), run.batches(), strict=False):
        with torch.inference_mode():
            run.history.append({"logits": step(run.model, tokens).clone()})
    return run.history
