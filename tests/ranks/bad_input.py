"""What can be given wrongly: each function is a script of its own, run on every rank of a launch.

torchrun ... -m tests.ranks.bad_input NAME
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lockstep as ls
from tests.ranks.launch import Here


class Net(nn.Module):
    """An embedding and a projection; tied where asked."""

    def __init__(self, width: int = 8, tied: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.out = nn.Embedding(16, width), nn.Linear(width, 16, bias=False)
        if tied:
            self.out.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.embed(tokens))


class Renamed(Net):
    """The same network with its projection under another name."""

    def __init__(self) -> None:
        super().__init__()
        self.head = self.out
        del self.out

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embed(tokens))


class Raising(Net):
    """A model with a mistake in it."""

    def forward(self, tokens: Tensor) -> Tensor:
        raise ValueError("layer 3 has no weights")


class Branching(Net):
    """A model that looks at a value."""

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embed(tokens)
        if hidden.sum() > 0:
            hidden = -hidden
        return self.out(hidden)


mesh = ls.mesh(dp=-1)
SCALE = torch.tensor([2.0])


def train_step(model: Net, tokens: Tensor) -> Tensor:
    loss = ls.loss(F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()), dp="mean")
    loss.backward()
    ls.reduce_grads(model, dp="mean")
    return loss


def eval_step(model: Net, tokens: Tensor) -> Tensor:
    return F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).detach()


def scaled_step(model: Net, tokens: Tensor) -> Tensor:
    return model(tokens).sum() * SCALE


def compiled(step: Any = train_step, **options: Any) -> Any:
    return ls.compile(step, mesh=mesh, data="dp", backend="graph", **options)


def batch(*shape: int) -> Tensor:
    return torch.arange(16).repeat(8)[: shape[0] * shape[1]].view(shape)


def artifacts(folder: Path) -> list[Path]:
    return sorted((folder / "store").glob("*.lockstep"))


# ---- scripts that end in the error ---------------------------------------------------------------


def new_shape(me: Here) -> None:
    step, model = compiled(on_new_shape="error"), Net()
    step(model, batch(4, 8))
    model.zero_grad()
    me.result(step(model, batch(4, 8)).item())
    model.zero_grad()
    step(model, batch(3, 8))


def renamed(me: Here) -> None:
    me.result(compiled()(Net(), batch(4, 8)).item())
    (pinned,) = artifacts(me.folder)
    Net().zero_grad()
    me.result(compiled(store=pinned)(Net(), batch(4, 8)).item())
    compiled(store=pinned)(Renamed(), batch(4, 8))


def odd_shape(me: Here) -> None:
    compiled()(Net(), batch(4, 9 if me.rank == 1 else 8))


def other_step(me: Here) -> None:
    train, evaluate = compiled(), compiled(eval_step)
    (evaluate if me.rank == 1 else train)(Net(), batch(4, 8))


def branches(me: Here) -> None:
    compiled()(Branching(), batch(4, 8))


def raises(me: Here) -> None:
    compiled()(Raising(), batch(4, 8))


def flipped(me: Here) -> None:
    me.result(compiled()(Net(), batch(4, 8)).item())
    torch.distributed.barrier()
    (path,) = artifacts(me.folder)
    if me.rank == 0:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    torch.distributed.barrier()
    compiled()(Net(), batch(4, 8))


def mistrusted(me: Here) -> None:
    """Built and loaded with a key that is trusted at first, and is not any more."""
    me.result(compiled()(Net(), batch(4, 8)).item())
    os.environ["LOCKSTEP_TRUST"] = os.environ["LATER"]
    compiled()(Net(), batch(4, 8))


def reachable(me: Here) -> None:
    """LOCKSTEP_STORE is below a folder that others can write."""
    compiled()(Net(), batch(4, 8))


def no_store(me: Here) -> None:
    """LOCKSTEP_STORE names something below a file."""
    compiled()(Net(), batch(4, 8))


def sleeps(me: Here) -> None:
    """Rank 1 is given a token that no embedding has, swallows its exception, and sleeps."""
    step, model = compiled(), Net()
    for _ in range(5):
        me.result(step(model, batch(4, 8)).item())
        model.zero_grad()
    try:
        step(model, batch(4, 8) + (100 if me.rank == 1 else 0))
    except IndexError:
        time.sleep(120)


def between(me: Here) -> None:
    """Rank 1 fails in the script, between two steps."""
    step, model = compiled(), Net()
    step(model, batch(4, 8))
    if me.rank == 1:
        raise KeyError("learning_rate")
    for _ in range(5):
        model.zero_grad()
        step(model, batch(4, 8))


# ---- one script whose errors leave the job alive -------------------------------------------------


def lives(me: Here) -> None:
    """Refusals before anything was agreed on, and a store that takes nothing."""
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
    from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
    from torch.nn.parallel import DistributedDataParallel

    found = {"closes over": _refused(compiled(scaled_step), Net(), batch(4, 8))}
    wrapped = DistributedDataParallel(Net())
    power = powerSGD_hook.PowerSGDState(None)
    wrapped.register_comm_hook(power, powerSGD_hook.powerSGD_hook)
    found["ddp"] = _refused(compiled(), wrapped, batch(4, 8))
    sharded = fully_shard(Net(), mesh=mesh, offload_policy=CPUOffloadPolicy(pin_memory=False))
    found["fsdp"] = _refused(compiled(), sharded, batch(4, 8))
    step, model = compiled(store="/proc/lockstep-takes-nothing"), Net()
    found["from memory"] = step(model, batch(4, 8)).item()
    model.zero_grad()
    found["again"] = step(model, batch(4, 8)).item()
    found["eager"] = train_step(Net(), batch(4, 8)).item()
    me.result(found)


def _refused(step: Any, *args: Any) -> str:
    try:
        step(*args)
    except ls.LockstepError as error:
        return str(error)
    return "nothing was refused"


# ---- a world of one ------------------------------------------------------------------------------


def alone(me: Here) -> None:
    """Outside torchrun: `ls.compile` works, and what is refused leaves the process alive."""
    step, model = compiled(on_new_shape="error"), Net()
    found: dict[str, Any] = {"loss": step(model, batch(4, 8)).item()}
    found["eager"] = train_step(Net(), batch(4, 8)).item()
    model.zero_grad()
    found["dtype"] = _refused(step, model, batch(4, 8).int())
    found["device"] = _refused(step, model, batch(4, 8).to("meta"))
    found["as before"] = step(model, batch(4, 8)).item()
    (pinned,) = artifacts(me.folder)
    found["pinned"] = compiled(store=pinned)(Net(), batch(4, 8)).item()
    found["renamed"] = _refused(compiled(store=pinned), Renamed(), batch(4, 8))
    found["reshaped"] = _refused(compiled(store=pinned), Net(width=12), batch(4, 8))
    found["retied"] = _refused(compiled(store=pinned), Net(tied=True), batch(4, 8))
    found["branches"] = _refused(compiled(), Branching(), batch(4, 8))
    found |= _damaged(pinned, me.folder / "damaged.lockstep")
    me.result(found)


def _damaged(good: Path, bad: Path) -> dict[str, Any]:
    """Cut the artifact at many lengths and flip a bit at many places, each in turn."""
    data = good.read_bytes()
    step, model, shape = compiled(store=bad), Net(), batch(4, 8)
    loaded = []
    for at in sorted({0, 8, 40, 47, *range(48, len(data), len(data) // 12), len(data) - 1}):
        for name, content in (("cut", data[:at]), ("flip", _flip(data, at))):
            bad.write_bytes(content)
            bad.chmod(0o600)
            text = _refused(step, model, shape)
            if ("LS210" not in text and "LS211" not in text) or str(bad) not in text:
                loaded.append([name, at, text])
    bad.write_bytes(data)
    return {"damaged": loaded, "mended": step(model, shape).item()}


def _flip(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


if __name__ == "__main__":
    globals()[sys.argv[1]](Here())
