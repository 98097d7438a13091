"""Train a small Llama on English text, data-parallel: an ordinary loop under plain torchrun.

Run it with `torchrun --nproc-per-node 2 examples/train_llama.py`; run it again to see it load.
"""

import pydoc_data.topics
from collections.abc import Iterator

import torch
import torch.distributed as dist
import tyro
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import lockstep as ls
from lockstep.models import llama

mesh = ls.mesh(dp=-1)


@ls.compile(mesh=mesh, data="dp")
def train_step(model: llama.Llama, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    loss = ls.loss(model(tokens, labels), dp="mean")
    loss.backward()
    ls.reduce_grads(model, dp="mean")
    return loss


def bigram_loss(text: torch.Tensor) -> float:
    """The loss of the best table of next bytes given one byte, in nats, on its own text."""
    counts = torch.bincount(text[:-1] * 256 + text[1:], minlength=256 * 256).view(256, 256).double()
    chances = counts / counts.sum(1, keepdim=True).clamp(min=1)
    return -torch.xlogy(counts, chances).sum().item() / counts.sum().item()


def batches(shard: torch.Tensor, batch: int, length: int, seed: int) -> Iterator[torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    while True:
        starts = torch.randint(len(shard) - length, (batch, 1), generator=draw)
        yield shard[starts + torch.arange(length + 1)]


def main(steps: int = 200, batch: int = 8, length: int = 128, lr: float = 3e-3) -> None:
    rank, world, device = dist.get_rank(), dist.get_world_size(), torch.device(mesh.device_type)
    topics = pydoc_data.topics.topics
    text = torch.tensor(list("".join(topics[name] for name in sorted(topics)).encode()))
    torch.manual_seed(0)  # the same model on every rank
    model = llama.Llama(llama.config("debug")).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=steps)

    losses = []
    with Progress(disable=rank != 0) as progress:
        bar = progress.add_task("starting", total=steps)
        shards = batches(text.chunk(world)[rank].to(device), batch, length, seed=rank)
        for _, window in zip(range(steps), shards, strict=False):
            loss = train_step(model, window[:, :-1], window[:, 1:])
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            ls.record(len(losses), loss=losses[-1])
            progress.update(bar, advance=1, description=f"loss {losses[-1]:.3f}")

    ends = torch.tensor([losses[0], sum(losses[-20:]) / len(losses[-20:])], dtype=torch.float64)
    dist.all_reduce(ends)  # each rank has seen its own shard
    start, end = (ends / world).tolist()
    ls.summary()
    if rank == 0:
        table = Table("loss in nats a byte", "", title=f"{world} ranks, {steps} steps")
        table.add_row("at the start", f"{start:.4f}")
        table.add_row("at the end, mean of the last 20 steps", f"{end:.4f}")
        table.add_row("of a bigram table of this text", f"{bigram_loss(text):.4f}")
        Console().print(table)


if __name__ == "__main__":
    tyro.cli(main)
    dist.destroy_process_group()
