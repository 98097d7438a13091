"""A debug Llama in a DDP: 20 steps with accumulation and clipping; and what is taken away.

As a script, `python -m tests.wrapped.ddp NAME` is one rank's part.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import lockstep as ls
from lockstep.models import llama
from tests.ranks.launch import Here, Torchrun
from tests.wrapped.row import Row

STEPS, RANKS = 20, 4
BATCH, TOKENS = 2, 16
Step = Callable[..., Tensor]


# ---- one rank ------------------------------------------------------------------------------------


def model(**options: bool) -> nn.Module:
    torch.manual_seed(0)
    plain = llama.Llama(llama.config("debug", layers=2))
    return DistributedDataParallel(plain, bucket_cap_mb=0.2, **options)


class Scaled(nn.Module):
    """The loss of a wrapped model, by a factor that the wrapper does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.wrapped, self.scale = model(), nn.Parameter(torch.ones(()))

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        return self.wrapped(tokens, labels) * self.scale


def whole(model: DistributedDataParallel, optimizer: torch.optim.Optimizer, ids: Tensor) -> Tensor:
    """Two micro-batches, of which the second reduces both; clipped."""
    optimizer.zero_grad()
    first, second = ids.unbind(0)
    with model.no_sync():
        ls.loss(model(first[:, :-1], first[:, 1:]) / 2, dp="mean").backward()
    loss = ls.loss(model(second[:, :-1], second[:, 1:]) / 2, dp="mean")
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss


def left_on(
    model: DistributedDataParallel, optimizer: torch.optim.Optimizer, ids: Tensor
) -> Tensor:
    """As `whole`, but nothing is ever reduced."""
    with model.no_sync():
        return _whole_batch(model, optimizer, ids)


def outside(model: nn.Module, optimizer: torch.optim.Optimizer, ids: Tensor) -> Tensor:
    """As `whole`, but a parameter is beside the wrapper."""
    return _whole_batch(model, optimizer, ids)


def _whole_batch(model: nn.Module, optimizer: torch.optim.Optimizer, ids: Tensor) -> Tensor:
    optimizer.zero_grad()
    loss = ls.loss(model(ids[0, :, :-1], ids[0, :, 1:]), dp="mean")
    loss.backward()
    optimizer.step()
    return loss


def trained(step: Step, made: nn.Module, steps: int) -> list[str]:
    """After each step a digest of the loss, the gradients, the parameters and AdamW's state."""
    optimizer, found = torch.optim.AdamW(made.parameters(), lr=1e-3), []
    for number in range(steps):
        draw = torch.Generator().manual_seed(100 * number + dist.get_rank())
        ids = torch.randint(256, (2, BATCH, TOKENS + 1), generator=draw)
        seen = [step(made, optimizer, ids).detach()]
        for parameter in made.parameters():
            state = [v for v in optimizer.state[parameter].values() if isinstance(v, Tensor)]
            grad = [parameter.grad] if parameter.grad is not None else []
            seen += [parameter.detach(), *grad, *state]
        digest = hashlib.sha256()
        for tensor in seen:
            digest.update(tensor.contiguous().numpy().tobytes())
        found.append(digest.hexdigest())
    return found


KINDS: dict[str, dict[str, bool]] = {
    "as it is": {},
    "static_graph": {"static_graph": True},
    "gradient_as_bucket_view": {"gradient_as_bucket_view": True},
}
TAKEN: dict[str, tuple[Step, Callable[[], nn.Module]]] = {
    "no_sync left on": (left_on, model),
    "a parameter outside": (outside, Scaled),
}


def main(name: str) -> None:
    """One rank's part of a case."""
    mesh, me = ls.mesh("cpu", dp=-1), Here()
    if name in TAKEN:
        step, make = TAKEN[name]
        trained(ls.compile(step, mesh=mesh, data="dp", backend="graph"), make(), 3)
        return
    own = trained(whole, model(**KINDS[name]), STEPS)
    compiled = ls.compile(whole, mesh=mesh, data="dp", backend="graph")
    ours = trained(compiled, model(**KINDS[name]), STEPS)
    me.result([i for i, (a, b) in enumerate(zip(own, ours, strict=True)) if a != b])


# ---- all of them ---------------------------------------------------------------------------------


def rows(torchrun: Torchrun, folder: Path) -> list[Row]:
    """A row for each kind and for each reduction that is taken away."""
    found = [_bitwise(torchrun, folder / name, name) for name in KINDS]
    return found + [_found(torchrun, folder / name, name) for name in TAKEN]


def _bitwise(torchrun: Torchrun, folder: Path, name: str) -> Row:
    ended = torchrun.run("tests.wrapped.ddp", name, folder=folder, world=RANKS, limit=900)
    built = {event["digest"] for event in ended.of("ready")}
    eager = len(ended.of("as_it_is", rank=0))
    differ = sorted({i for found in ended.results for i in found or ()})
    reductions = _reductions(folder)
    told = (
        f"{STEPS} steps on {RANKS} ranks, {eager} of them the wrapper's own; "
        f"{reductions} all-reduces; other bits after {differ or 'none'}; {len(built)} artifact(s)"
    )
    holds = ended.code == 0 and ended.results == [[]] * RANKS and len(built) == 1
    said = "runs as it is until DDP has the last buckets" in ended.texts[0]
    return Row(f"DDP, {name}", told, holds and said and reductions > 1 and eager < 3)


def _reductions(folder: Path) -> int:
    from lockstep.build.artifact import read_manifest

    found = [read_manifest(path)["schedule"] for path in (folder / "store").glob("*.lockstep")]
    return sum(row["op"] == "all_reduce" for schedule in found for row in schedule)


def _found(torchrun: Torchrun, folder: Path, name: str) -> Row:
    ended = torchrun.run("tests.wrapped.ddp", name, folder=folder, world=RANKS, limit=900)
    codes = [code for code in ("LS514", "LS550") if all(code in text for text in ended.texts)]
    told = f"refused on {len(ended.texts)} ranks: {', '.join(codes)}" if codes else "not found"
    none = not list((folder / "store").glob("*.lockstep"))
    return Row(f"DDP, {name}", told, ended.code == 1 and bool(codes) and none)


if __name__ == "__main__":
    main(sys.argv[1])
