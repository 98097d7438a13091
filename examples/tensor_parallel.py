"""Tensor and sequence parallelism: a Llama cut over `tp`, its stream a shard of the tokens.

Run it with `torchrun --nproc-per-node 2 examples/tensor_parallel.py`, check its gradients with
`lockstep check examples/tensor_parallel.py`.
"""

import torch
import torch.distributed as dist
import tyro

import lockstep as ls
from lockstep import parallel
from lockstep.models import llama, llama_plan

mesh = ls.mesh(dp=1, tp=-1)  # `tp` takes all ranks; of dp=2 each half trains on its own batches


def main(
    steps: int = 20,
    layers: int = 4,
    batch: int = 4,
    length: int = 64,
    lr: float = 1e-3,
    backend: str = "inductor",
) -> None:
    config = llama.config("debug", layers=layers)
    torch.manual_seed(0)  # the same model on every rank: the plan cuts it
    plan = llama_plan.Plan(sequence=True)
    model = llama_plan.parallelize(llama.Llama(config), mesh, plan)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)

    @ls.compile(mesh=mesh, data=parallel.layout(model).data, backend=backend)
    def train_step(model, optimizer, tokens, labels):
        loss = parallel.forward_backward(model, tokens, labels)
        parallel.reduce_grads(model)
        norm = parallel.clip_grad_norm(model, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss, norm

    torch.manual_seed(mesh.get_local_rank("dp"))  # ranks of one tp group share their batch
    for step in range(steps):
        text = torch.randint(4, (batch, length + 1)).cumsum(-1) % 256
        loss, norm = train_step(model, optimizer, text[:, :-1], text[:, 1:])
        if dist.get_rank() == 0:
            print(f"step {step}: loss {loss.item():.3f}, gradient norm {norm.item():.3f}")


if __name__ == "__main__":
    tyro.cli(main)
    dist.destroy_process_group()
