"""The script of one rank: programs as a job runs them, each call against eager.

    torchrun --nproc-per-node 2 -m clients.rank MODULE [--check] NAME...

`--check`: rank 0 then checks their gradients, on simulated ranks. A refusal ends the job; what was
found before is left behind.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

import lockstep as ls
from clients.program import Program
from clients.programs import named
from lockstep.errors import LockstepError

CALLS = 2  # with other batches: what one of them left in the graph shows at the next
Tensors = dict[str, torch.Tensor]


def run(program: Program, mesh: Any, step: Callable[..., Any]) -> list[Tensors]:
    """Each call's loss, gradients and buffers, of a model that is made anew."""
    model = made(program, mesh)
    found = []
    for call in range(CALLS):
        args = program.batch(mesh, call)
        torch.manual_seed(100 * call + program.own(mesh))  # of dropout
        loss = step(model, *args)
        grads = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
        kept = {"loss": loss, **grads, **{f"buffer {n}": b for n, b in model.named_buffers()}}
        found.append({name: _plain(tensor) for name, tensor in kept.items()})
        model.zero_grad()
    return found


def made(program: Program, mesh: Any) -> torch.nn.Module:
    """A program's model, from the same draws each time."""
    torch.manual_seed(0)
    return program.model(mesh).train()


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local.detach().clone()


def against(got: Tensors, eager: Tensors, again: Tensors) -> dict[str, Any]:
    """How one call compares with eager, and eager with its own second run."""
    odd, noise = differing(got, eager), differing(eager, again)
    return {
        "equal": not odd,
        "repeats": not noise,
        "close": got.keys() == eager.keys() and largest(got, eager) <= 4 * largest(eager, again),
        "off": apart(got, eager),
        "told": f"unlike eager: {', '.join(odd[:4])} ({len(odd)} of {len(eager)})" if odd else "",
    }


def differing(one: Tensors, other: Tensors) -> list[str]:
    """The names of what is not equal to the bit, or only on one side."""
    names = {**one, **other}
    both = one.keys() & other.keys()
    return [n for n in names if n not in both or not torch.equal(one[n], other[n])]


def largest(one: Tensors, other: Tensors) -> float:
    """The largest difference of a value."""
    pairs = [(one[n], other[n]) for n in one.keys() & other.keys() if one[n].numel()]
    return max(float((a.double() - b.double()).abs().max()) for a, b in pairs)


def apart(one: Tensors, other: Tensors) -> float:
    """How large all differences are together, beside what they are differences of."""
    pairs = [(one[n].double(), other[n].double()) for n in one.keys() & other.keys()]
    far = sum(float((a - b).square().sum()) for a, b in pairs)
    return float((far / (sum(float(b.square().sum()) for _, b in pairs) or 1.0)) ** 0.5)


def compared(program: Program) -> dict[str, Any]:
    """A program's step as compiled, then as it is, twice; or how it was refused."""
    begin, mesh = time.monotonic(), ls.mesh("cpu", **program.mesh)
    words: dict[str, Any] = dict(mesh=mesh, data=program.data or None, backend="graph")
    words |= dict(eager_check="on", dynamic=program.dynamic)
    compiled: Any = ls.compile(**words)(program.step)
    try:
        got = run(program, mesh, compiled)
    except LockstepError as error:
        told = {"code": error.code, "what": error.what, "where": error.where or ""}
        return {"refused": {**told, "fixes": error.fixes}}
    eager, again = (run(program, mesh, program.step) for _ in range(2))
    calls = [against(*call) for call in zip(got, eager, again, strict=True)]
    return {"step": compiled.name, "calls": calls, "seconds": time.monotonic() - begin}


def report_of(program: Program) -> Any:
    """The report of `ls.check`, its mesh simulated."""

    def make(mesh: Any) -> tuple[Any, ...]:
        model, batch = made(program, mesh), program.batch(mesh, 0)
        torch.manual_seed(program.own(mesh))
        return model, *batch

    return ls.check(program.step, make, mesh=program.mesh, data=program.data, repair_s=0)


def checked(program: Program) -> dict[str, Any]:
    """What all witnesses of a check say of a program."""
    report = report_of(program)
    return {"findings": list(map(str, report.findings)), "undecided": list(report.undecided)}


def main(home: str, *words: str) -> int:
    """Run programs of a module; leave what became of each."""
    warnings.filterwarnings("ignore")  # the packages' own, about kernels and devices
    programs = [named(home, word) for word in words if word != "--check"]
    found: dict[str, Any] = {}
    leave = leaving()
    for program in programs:
        found[program.name] = compared(program)
        leave(found)
        if "refused" in found[program.name]:
            return 1
    rank = dist.get_rank()
    dist.destroy_process_group()
    for program in programs if "--check" in words and rank == 0 else ():
        found[program.name]["check"] = checked(program)
        leave(found)
    return 0


def leaving() -> Callable[[Any], None]:
    """What takes the results: the launch, else the screen."""
    if "LAUNCH_FOLDER" not in os.environ:
        return print
    from tests.ranks.launch import Here

    return Here().result


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
