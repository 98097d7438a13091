"""One rank of a start: run a step twice and write what the first call cost. Started by startup.py.

The clock of the first call runs while Lockstep is imported, the mesh made, and the step decorated
and called; it stands still while torch is imported, the ranks meet and the model is made, since
every way to run the step needs these alike.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import tyro


def main(out: Path, backend: str, own_caches: bool = False, layers: int = 4) -> None:
    """Measure this rank's start.

    Args:
        out: an existing folder; this rank writes `rank<N>.json` there.
        backend: for `ls.compile`; or "torch", which is plain `torch.compile`.
        own_caches: give this rank an Inductor cache directory of its own.
        layers: of the debug Llama.
    """
    rank = int(os.environ["RANK"])
    if own_caches:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] += f"/rank{rank}"
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    cpu, start = time.process_time(), time.perf_counter()
    import lockstep as ls

    mesh = ls.mesh("cpu", dp=-1)
    import_s, import_cpu_s = time.perf_counter() - start, time.process_time() - cpu
    from lockstep.models import llama

    torch.manual_seed(0)
    model = llama.Llama(llama.config("debug", layers=layers))
    tokens = torch.randint(256, (4, 65), generator=torch.Generator().manual_seed(rank))
    from bench.measure import age_seconds, cpu_seconds

    dist.barrier()  # so that no rank's clock runs while another still imports torch
    cpu, start = cpu_seconds(), time.perf_counter()

    if backend == "torch":
        compiled = torch.compile  # with nothing of Lockstep's around it
    else:
        compiled = ls.compile(mesh=mesh, data="dp", backend=backend)

    @compiled
    def train_step(model: llama.Llama, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        loss = ls.loss(model(tokens, labels), dp="mean")
        loss.backward()
        ls.reduce_grads(model, dp="mean")
        return loss

    loss = train_step(model, tokens[:, :-1], tokens[:, 1:]).item()
    first_s, wall_s = time.perf_counter() - start, age_seconds()
    cpu_s = cpu_seconds() - cpu
    seen = {
        "rank": rank,
        "loss": loss,
        "start_s": import_s + first_s,
        "cpu_s": import_cpu_s + cpu_s,
        "wall_s": wall_s,
    }
    dist.barrier()
    (out / f"rank{rank}.json").write_text(json.dumps(seen))
    dist.destroy_process_group()


if __name__ == "__main__":
    tyro.cli(main)
