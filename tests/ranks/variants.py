"""One step on two ranks whose surroundings change from call to call; eager is its twin.

After each call the script notes whether loss, gradients and parameters have eager's bits, and how
many variants were made ready so far, by the journal.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import lockstep as ls
from lockstep.journal import read_journals
from lockstep.run.session import session
from tests.bitwise.compare import same
from tests.ranks.launch import Here

here = Here()
mesh = ls.mesh(dp=-1)
FACTOR = 1.0


class Net(nn.Module):
    """A network with dropout, and with Python attributes of several kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.drop = nn.Linear(6, 8), nn.Linear(8, 4), nn.Dropout(0.5)
        self.scale, self.residual, self.powers = 1.0, False, [1, 2]
        self.act: Callable[[Tensor], Tensor] = torch.tanh

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.drop(self.act(self.first(x)))
        hidden = sum(hidden**power for power in self.powers)  # type: ignore[assignment]
        if self.residual:
            hidden = hidden + x.repeat(1, 2)[:, :8]
        return self.second(hidden) * self.scale


def train_step(model: Net, x: Tensor, power: int = 2, weight: float = 1.0) -> Tensor:
    loss = ls.loss((model(x).abs() ** power).mean() * weight * FACTOR, dp="mean")
    loss.backward()
    ls.reduce_grads(model, dp="mean")
    return loss


def logits(model: Net, x: Tensor) -> Tensor:
    return F.log_softmax(model(x), -1)


torch.manual_seed(0)
mine = Net()
eager = copy.deepcopy(mine)
found: list[dict[str, Any]] = []


class Pair:
    """A compiled step and its twin."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.eager = function
        self.compiled = ls.compile(function, mesh=mesh, data="dp", backend="graph")

    def call(self, what: str, *args: Any, keep: bool = False, **kwargs: Any) -> None:
        """Call both on their models with the same seed (but for a twin); note what came out."""
        results = []
        for step, model in ((self.eager, eager), (self.compiled, mine)):
            odd = what.startswith("twin") and step is self.compiled
            torch.manual_seed(len(found) * 10 + here.rank + odd * 5)
            results.append(step(model, *args, **kwargs))
        pairs = [(*results,)]
        for (_, a), (_, b) in zip(eager.named_parameters(), mine.named_parameters(), strict=True):
            pairs.append((a.detach(), b.detach()))
            if a.grad is not None or b.grad is not None:
                pairs.append((a.grad, b.grad))
        right = all(a is not None and b is not None and same(a, b) for a, b in pairs)
        ready = [e for e in read_journals(session().folder) if e["event"] == "ready"]
        mine_only = [e for e in ready if e["rank"] == here.rank and e["step"] == self.compiled.name]
        name, count = self.compiled.name, len(mine_only)
        found.append({"step": name, "what": what, "right": right, "variants": count})
        if not keep:
            eager.zero_grad()
            mine.zero_grad()


def both(change: Callable[[Net], Any]) -> None:
    for model in (eager, mine):
        change(model)


def add_hook(model: Net, gain: float) -> Any:
    return model.second.register_forward_hook(lambda _m, _args, out: out * gain)


def main() -> None:
    global FACTOR
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(here.rank))
    step = Pair(train_step)
    step.call("new: first", x)
    step.call("same: again", x, keep=True)
    step.call("new: with .grad", x)
    step.call("same: without .grad", x)
    step.call("twin: another seed", x)
    both(lambda m: m.eval())
    step.call("new: eval", x)
    both(lambda m: m.train())
    step.call("same: train", x)
    both(lambda m: m.first.weight.requires_grad_(False))
    step.call("new: frozen", x)
    both(lambda m: m.first.weight.requires_grad_(True))
    step.call("same: thawed", x)
    with torch.autocast("cpu", torch.bfloat16):
        step.call("new: autocast", x)
    step.call("same: no autocast", x)
    step.call("new: other shape", x[:3])
    step.call("same: first shape", x)
    step.call("new: other strides", x.T.contiguous().T)
    step.call("same: first strides", x)
    step.call("new: other power", x, 3)
    step.call("new: power by keyword", x, power=3)
    step.call("same: first power", x)
    step.call("new: a float is given", x, 2, 0.5)
    step.call("same: another float", x, 2, 0.25)
    both(lambda m: setattr(m, "scale", 2.0))
    step.call("new: scale 2", x)
    both(lambda m: setattr(m, "scale", 1.0))
    step.call("same: scale 1", x)
    both(lambda m: setattr(m, "residual", True))
    step.call("new: residual", x)
    both(lambda m: setattr(m, "residual", False))
    step.call("same: no residual", x)
    both(lambda m: setattr(m, "act", torch.sin))
    step.call("new: other activation", x)
    both(lambda m: setattr(m, "act", torch.tanh))
    step.call("same: first activation", x)
    both(lambda m: m.powers.append(3))
    step.call("new: list grown", x)
    both(lambda m: m.powers.pop())
    step.call("same: list shrunk", x)
    FACTOR = 3.0
    step.call("new: other global", x)
    FACTOR = 1.0
    step.call("same: first global", x)
    hooks = [add_hook(model, 2.0) for model in (eager, mine)]
    step.call("new: a hook", x)
    for hook in hooks:
        hook.remove()
    step.call("same: no hook", x)
    hooks = [add_hook(model, 3.0) for model in (eager, mine)]
    step.call("new: another hook", x)
    for hook in hooks:
        hook.remove()
    hooks = [m.second.weight.register_hook(lambda grad: grad * 2) for m in (eager, mine)]
    step.call("new: a hook of a parameter", x)
    for hook in hooks:
        hook.remove()
    step.call("same: none", x)
    replaced = torch.randn(4, 8, generator=torch.Generator().manual_seed(5))
    both(lambda m: setattr(m.second, "weight", nn.Parameter(replaced.clone())))
    step.call("same: a parameter replaced", x)

    look = Pair(logits)
    both(lambda m: m.eval())
    look.call("new: logits", x)
    with torch.no_grad():
        look.call("new: no_grad", x)
    with torch.inference_mode():
        look.call("new: inference_mode", x)
    with torch.no_grad():
        look.call("same: no_grad", x)
    both(lambda m: m.train())
    step.call("same: train once more", x)
    here.result(found)


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
