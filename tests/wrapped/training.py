"""Training a wrapped model as it is and compiled, and what is seen of the two from outside."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

import lockstep as ls
from lockstep._compat_dtensor import local_of
from tests.ranks.launch import Ended, Here, Torchrun
from tests.wrapped.row import Row

STEPS, RANKS = 20, 4
BATCH, TOKENS = 2, 16
Step = Callable[..., Tensor]
Make = Callable[[], nn.Module]


# ---- one rank ------------------------------------------------------------------------------------


def whole_batch(model: nn.Module, optimizer: torch.optim.Optimizer, ids: Tensor) -> Tensor:
    """One batch, and nothing but what the wrapper does to its gradients."""
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
        digest = hashlib.sha256()
        for tensor in [step(made, optimizer, ids), *_held(made, optimizer)]:
            local = local_of(tensor.detach()).contiguous()
            digest.update(local.reshape(-1).view(torch.uint8).numpy().tobytes())
        found.append(digest.hexdigest())
    return found


def _held(made: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    for parameter in made.parameters():
        yield parameter
        yield from [] if parameter.grad is None else [parameter.grad]
        yield from (v for v in optimizer.state[parameter].values() if isinstance(v, Tensor))


def both_ways(step: Step, make: Make) -> None:
    """Leave the steps after which a compiled step has other bits than the wrapper's own run."""
    me = Here()
    own = trained(step, make(), STEPS)
    ours = trained(compiled(step), make(), STEPS)
    me.result([i for i, (a, b) in enumerate(zip(own, ours, strict=True)) if a != b])


def compiled(step: Step) -> Step:
    return ls.compile(mesh=ls.mesh("cpu", dp=-1), data="dp", backend="graph")(step)


# ---- all of them ---------------------------------------------------------------------------------


def bitwise(torchrun: Torchrun, module: str, name: str, folder: Path, op: str) -> tuple[Row, Ended]:
    """Run a case of `both_ways`; its row says how often the program reduces by `op`."""
    ended = torchrun.run(module, name, folder=folder, world=RANKS, limit=900)
    built = {event["digest"] for event in ended.of("ready")}
    eager = len(ended.of("as_it_is", rank=0))
    differ = sorted({i for found in ended.results for i in found or ()})
    reductions = _calls(folder, op)
    told = (
        f"{STEPS} steps on {RANKS} ranks, {eager} of them the wrapper's own; {reductions} {op}; "
        f"other bits after {differ or 'none'}; {len(built)} artifact(s)"
    )
    holds = ended.code == 0 and ended.results == [[]] * RANKS and len(built) == 1
    return Row(name, told, holds and reductions > 1), ended


def _calls(folder: Path, op: str) -> int:
    from lockstep.build.artifact import read_manifest

    found = [read_manifest(path)["schedule"] for path in (folder / "store").glob("*.lockstep")]
    return sum(row["op"] == op for schedule in found for row in schedule)


def refused(torchrun: Torchrun, module: str, name: str, folder: Path) -> Row:
    """Run a case without its reduction: every rank is told of it, and nothing is stored."""
    ended = torchrun.run(module, name, folder=folder, world=RANKS, limit=900)
    codes = [code for code in ("LS514", "LS550") if all(code in text for text in ended.texts)]
    told = f"refused on {len(ended.texts)} ranks: {', '.join(codes)}" if codes else "not found"
    none = not list((folder / "store").glob("*.lockstep"))
    return Row(name, told, ended.code == 1 and bool(codes) and none)
