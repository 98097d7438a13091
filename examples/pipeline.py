"""A Llama in two stages: each rank along `pp` has its layers alone, and runs a program of its own.

Run it with `torchrun --nproc-per-node 2 examples/pipeline.py`; on 4 ranks each stage is
data-parallel, too. With `ls.mesh("cpu", pp=2, tp=2)` or `fsdp=2` in its place each stage is cut
along that axis.
"""

import torch
import torch.distributed as dist
import tyro

import lockstep as ls
from lockstep import parallel
from lockstep.models import llama, llama_stages

mesh = ls.mesh("cpu", pp=2, dp=-1)


def main(
    steps: int = 20,
    layers: int = 4,
    chunks: int = 1,
    batch: int = 8,
    length: int = 64,
    lr: float = 1e-3,
    backend: str = "inductor",
) -> None:
    torch.manual_seed(0)  # the same model on every rank: each stage keeps its part of it
    whole = llama.Llama(llama.config("debug", layers=layers))
    stage = llama_stages.cut(whole, mesh, chunks=chunks)
    optimizer = torch.optim.AdamW(stage.parameters(), lr=lr)

    @ls.compile(mesh=mesh, data="dp", roles="pp", backend=backend)
    def train_step(stage, optimizer, tokens, labels):
        loss = parallel.pipeline_step(stage, tokens, labels, micro_batches=2)
        parallel.reduce_grads(stage)  # of each stage over dp
        norm = parallel.clip_grad_norm(stage, 1.0)  # of all stages together
        optimizer.step()
        optimizer.zero_grad()
        return loss, norm

    torch.manual_seed(mesh.get_local_rank("dp"))  # all stages are given the same batch
    for step in range(steps):
        text = torch.randint(4, (batch, length + 1)).cumsum(-1) % 256
        loss, norm = train_step(stage, optimizer, text[:, :-1], text[:, 1:])
        if dist.get_rank() == 0:
            print(f"step {step}: loss {loss.item():.3f}, gradient norm {norm.item():.3f}")


if __name__ == "__main__":
    tyro.cli(main)
    dist.destroy_process_group()
