"""The idea of Lockstep in one file: 4 simulated ranks, one traced program, proved gradients.

    python docs/from_scratch.py

Four threads play four ranks. A training step with collectives is (1) captured once as a graph,
(2) checked against true gradients, (3) written as text with a digest, and (4) run by every rank
from that text: nobody traces again. A step that forgets one collective trains on without any
error; the check names its line. Everything else in this repository makes these four parts hold for
real models and real ranks.
"""

from __future__ import annotations

import hashlib
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode

RANKS = 4
HERE = threading.local()  # .world and .rank of the thread that plays a rank


# -- a world: the ranks, and the one collective that all others are made of ------------------------


class World:
    """Ranks that meet: each gives a tensor, and each gets those of all."""

    def __init__(self) -> None:
        self._meet = threading.Barrier(RANKS, timeout=30)
        self._given: list[Any] = [None] * RANKS

    def exchange(self, mine: torch.Tensor) -> list[torch.Tensor]:
        self._given[HERE.rank] = mine
        self._meet.wait()
        all_given = list(self._given)
        self._meet.wait()  # nobody writes into the next exchange before all have read this one
        return all_given

    def run(self, play: Callable[[int], Any]) -> list[Any]:
        """Call `play(rank)` on every rank at once; returns what each returned."""
        results: list[Any] = [None] * RANKS
        errors: list[BaseException] = []

        def rank_main(rank: int) -> None:
            HERE.world, HERE.rank = self, rank
            try:
                results[rank] = play(rank)
            except BaseException as error:
                errors.append(error)
                self._meet.abort()  # or the other ranks would wait for this one

        threads = [threading.Thread(target=rank_main, args=(rank,)) for rank in range(RANKS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise next((e for e in errors if not _is_consequence(e)), errors[0])
        return results


def _is_consequence(error: BaseException) -> bool:
    return isinstance(error, threading.BrokenBarrierError)


# -- collectives with types: what a value is before and after says what the backward does ----------
#
# R replicate   the same on every rank; its gradient is still a sum to be made over the ranks
# I invariant   the same on every rank; its gradient is whole already
# P partial     the value itself is a sum to be made over the ranks


@torch.library.custom_op("scratch::all_reduce", mutates_args=())
def all_reduce_op(x: torch.Tensor) -> torch.Tensor:
    return torch.stack(HERE.world.exchange(x)).sum(0)


@all_reduce_op.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)  # under tracing there is no world: shapes are enough


class AllReducePToI(torch.autograd.Function):
    """Forward: a sum over the ranks. Backward: nothing, for the gradient of an I is whole."""

    @staticmethod
    def forward(_ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return all_reduce_op(x)

    @staticmethod
    def backward(_ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad


class ConvertIToR(torch.autograd.Function):
    """Forward: nothing. Backward: a sum over the ranks, each of which used the value."""

    @staticmethod
    def forward(_ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(_ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return all_reduce_op(grad)


def all_reduce(x: torch.Tensor) -> torch.Tensor:
    """P -> I."""
    if gold := getattr(HERE, "gold", None):  # plain arithmetic, so that autograd sees every rank
        return sum(gold.exchange(x))
    return AllReducePToI.apply(x)


def convert(x: torch.Tensor) -> torch.Tensor:
    """I -> R."""
    return x if getattr(HERE, "gold", None) else ConvertIToR.apply(x)


# -- 1. capture: one graph, with every intermediate value's gradient among its outputs ------------


@dataclass
class Value:
    """A value of the forward: where it was made, itself, and the gradient traced for it."""

    line: str
    tensor: torch.Tensor
    cotangent: torch.Tensor | None = None


@dataclass
class Values(TorchFunctionMode):
    """Notes each floating-point value that the user's code makes, and the gradient it receives."""

    found: list[Value] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        frame = sys._getframe(1)
        if isinstance(out, torch.Tensor) and out.requires_grad and "step" in frame.f_code.co_name:
            self.note(out, f"{frame.f_code.co_name}, line {frame.f_lineno}")
        return out

    def note(self, tensor: torch.Tensor, line: str) -> None:
        value = Value(line, tensor)
        self.found.append(value)
        tensor.register_hook(lambda grad: setattr(value, "cotangent", grad))


@dataclass
class Program:
    """What is shipped: text and its digest. `lines` says of which values the last outputs tell."""

    text: str
    lines: list[str]

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


def capture(step: Callable[..., torch.Tensor], params: list[Any], batch: list[Any]) -> Program:
    """Trace a step's forward and backward under fake tensors: nothing is computed."""
    lines: list[str] = []

    def whole_step(*tensors: torch.Tensor) -> list[torch.Tensor]:
        leaves = [tensor.detach().requires_grad_() for tensor in tensors[: len(params)]]
        with Values() as values:
            loss = step(*leaves, *tensors[len(params) :])
        grads = torch.autograd.grad(loss, leaves)
        seen = [value for value in values.found if value.cotangent is not None]
        lines[:] = [value.line for value in seen]
        told = [tensor for value in seen for tensor in (value.tensor.detach(), value.cotangent)]
        return [loss.detach(), *grads, *told]

    graph = make_fx(whole_step, tracing_mode="fake")(*params, *batch)
    return Program(graph.code, lines)


# -- 2. check: the traced gradients against those of one autograd graph across all ranks -----------


def check(
    program: Program, step: Callable[..., torch.Tensor], names: list[str], given: list[list[Any]]
) -> list[str]:
    """Return what is wrong with a program's gradients, nearest to the loss first.

    Args:
        given: by rank, its parameters and its batch, in float64: an error is no rounding then.
    """
    ran = World().run(lambda rank: load(program)(*given[rank]))
    gold_loss, gold_params, gold_values = gold(step, len(names), given)
    problems = []
    for i in reversed(range(len(program.lines))):
        at = 1 + len(names) + 2 * i
        values, traced = [out[at] for out in ran], [out[at + 1] for out in ran]
        true = [found[i] for found in gold_values]
        if judged(values, traced, true) == "partial":
            problems.append(f"{program.lines[i]}: its gradient is never summed over the ranks")
    wrong = []
    for i, name in enumerate(names):
        values, traced = [mine[i] for mine in given], [out[1 + i] for out in ran]
        verdict = judged(values, traced, [found[i] for found in gold_params])
        if verdict not in ("whole", "own"):
            wrong.append(f"{name}: its gradient is {verdict}")
    assert torch.allclose(ran[0][0], gold_loss), "the two ways of running the forward differ"
    return [*wrong, *problems] if wrong else []


def judged(values: list[Any], traced: list[Any], true: list[Any]) -> str:
    """Say what traced gradients are: whole, partial, each rank's own, or wrong."""
    tied = all(torch.equal(value, values[0]) for value in values)
    if not tied:
        return "own" if all(map(torch.allclose, traced, true)) else "wrong"
    total = sum(true)
    if all(torch.allclose(grad, total) for grad in traced):
        return "whole"
    return "partial" if torch.allclose(sum(traced), total) else "wrong"


def gold(step: Callable[..., torch.Tensor], count: int, given: list[list[Any]]) -> tuple[Any, ...]:
    """The loss, and its true derivative by every parameter and every value of every rank.

    The collectives are plain sums of all ranks' tensors, so one backward goes through them all.
    """
    world = World()

    def forward(rank: int) -> tuple[Any, ...]:
        HERE.gold = world
        leaves = [tensor.clone().requires_grad_() for tensor in given[rank][:count]]
        with Values() as values:
            loss = step(*leaves, *given[rank][count:])
        return loss, leaves, [value.tensor for value in values.found]

    ran = world.run(forward)
    loss = ran[0][0]  # the same on every rank: it is an I
    wanted = [tensor for _, leaves, values in ran for tensor in (*leaves, *values)]
    found = torch.autograd.grad(loss, wanted, allow_unused=True, materialize_grads=True)
    by_rank = [list(part) for part in zip(*[iter(found)] * (len(found) // RANKS), strict=True)]
    return loss.detach(), [g[:count] for g in by_rank], [g[count:] for g in by_rank]


# -- 3. and 4. ship text, load it, run it ----------------------------------------------------------


def load(program: Program) -> Callable[..., list[torch.Tensor]]:
    """Make the program callable. Nothing is traced: this is all that a restart has to do."""
    namespace: dict[str, Any] = {"torch": torch, "device": torch.device}
    exec(program.text, namespace)  # Lockstep verifies digests and a signature before it does this
    forward = namespace["forward"]
    return lambda *tensors: forward(None, *tensors)


# -- a model: a projection that all ranks hold alike, and a two-layer block cut over the ranks -----


def step(w_in: Any, w_up: Any, w_down: Any, x: Any, y: Any) -> torch.Tensor:
    hidden = x @ w_in
    up = torch.relu(convert(hidden) @ w_up)
    out = all_reduce(up @ w_down)
    return ((out - y) ** 2).mean()


def forgetful_step(w_in: Any, w_up: Any, w_down: Any, x: Any, y: Any) -> torch.Tensor:
    hidden = x @ w_in
    up = torch.relu(hidden @ w_up)  # forgotten: convert(hidden)
    out = all_reduce(up @ w_down)
    return ((out - y) ** 2).mean()


NAMES = ["w_in", "w_up", "w_down"]


def make_ranks(dtype: torch.dtype) -> tuple[list[list[Any]], list[Any]]:
    """Each rank's own part of one model; and a batch, the same on all ranks."""
    draw = torch.Generator().manual_seed(0)
    w_in, w_up, w_down, x, y = (
        torch.randn(shape, generator=draw).to(dtype)
        for shape in [(8, 8), (8, 4 * RANKS), (4 * RANKS, 8), (16, 8), (16, 8)]
    )
    cuts = zip(w_up.chunk(RANKS, 1), w_down.chunk(RANKS, 0), strict=True)
    return [[w_in.clone(), up.contiguous(), down.clone()] for up, down in cuts], [x, y]


def train(run: Callable[..., Any], steps: int = 30) -> list[tuple[float, torch.Tensor]]:
    """Train on every rank; returns each rank's last loss and its `w_in`."""
    ranks, batch = make_ranks(torch.float32)

    def play(rank: int) -> tuple[float, torch.Tensor]:
        params = ranks[rank]
        for _ in range(steps):
            loss, *grads = run(*params, *batch)[: 1 + len(params)]
            for param, grad in zip(params, grads, strict=True):
                param -= 0.01 * grad
        return loss.item(), params[0]

    return World().run(play)


def eagerly(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """The same step as plain PyTorch runs it."""
    leaves = [tensor.detach().requires_grad_() for tensor in tensors[: len(NAMES)]]
    loss = step(*leaves, *tensors[len(NAMES) :])
    return [loss.detach(), *torch.autograd.grad(loss, leaves)]


def main() -> None:
    ranks, batch = make_ranks(torch.float64)
    given = [[*params, *batch] for params in ranks]

    wrong = capture(forgetful_step, ranks[0], batch)
    print("forgetful_step:", *check(wrong, forgetful_step, NAMES, given), sep="\n  ")
    print("step:", *(check(capture(step, ranks[0], batch), step, NAMES, given) or ["right"]))

    program = capture(step, *make_float_inputs())
    results = train(load(program))
    same = all(torch.equal(w_in, results[0][1]) for _, w_in in results)
    eager = train(eagerly)
    equal = all(torch.equal(a, b) for (_, a), (_, b) in zip(results, eager, strict=True))
    print(f"one program for {RANKS} ranks: {len(program.text)} bytes, sha256 {program.digest[:12]}")
    print(f"30 steps: loss {results[0][0]:.3f}, w_in the same on all ranks: {same},")
    print(f"equal to eager to the bit: {equal}")

    lost = train(load(capture(forgetful_step, *make_float_inputs())))
    apart = max((w_in - lost[0][1]).abs().max().item() for _, w_in in lost)
    print(f"forgetful_step would have run on: loss {lost[0][0]:.3f}, w_in apart by {apart:.2f}")


def make_float_inputs() -> tuple[list[Any], list[Any]]:
    ranks, batch = make_ranks(torch.float32)
    return ranks[0], batch


if __name__ == "__main__":
    main()
