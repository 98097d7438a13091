"""Fully-sharded data parallelism: each rank keeps its shard of every parameter, computes in bf16.

Run it with `torchrun --nproc-per-node 2 examples/fully_sharded.py`, check its gradients with
`lockstep check examples/fully_sharded.py`.
"""

import torch
import torch.distributed as dist
import tyro

import lockstep as ls
from lockstep import parallel
from lockstep.models import llama, llama_plan

mesh = ls.mesh(fsdp=-1)


def main(
    steps: int = 20,
    layers: int = 4,
    batch: int = 8,
    length: int = 64,
    lr: float = 1e-3,
    backend: str = "inductor",
) -> None:
    config = llama.config("debug", layers=layers)
    torch.manual_seed(0)  # the same model on every rank: the plan cuts it
    plan = llama_plan.Plan(regather=True, dtype=torch.bfloat16)
    model = llama_plan.parallelize(llama.Llama(config), mesh, plan)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)  # of the shards, in f32

    @ls.compile(mesh=mesh, data=parallel.layout(model).data, backend=backend)
    def train_step(model, optimizer, tokens, labels):
        loss = parallel.forward_backward(model, tokens, labels, micro_batches=2)
        parallel.reduce_grads(model)  # nothing here: of an axis dp it would be the sum over it
        norm = parallel.clip_grad_norm(model, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss, norm

    torch.manual_seed(dist.get_rank())  # from here on each rank has its own data
    for step in range(steps):
        text = torch.randint(4, (batch, length + 1)).cumsum(-1) % 256
        loss, norm = train_step(model, optimizer, text[:, :-1], text[:, 1:])
        if dist.get_rank() == 0:
            print(f"step {step}: loss {loss.item():.3f}, gradient norm {norm.item():.3f}")
    if dist.get_rank() == 0:
        for name, placed in list(parallel.placements(model).items())[:3]:
            print(name, list(placed.shape), dict(placed.types))


if __name__ == "__main__":
    tyro.cli(main)
    dist.destroy_process_group()
