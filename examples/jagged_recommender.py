"""A recommender whose samples have other numbers of items at every step: one artifact for all.

Run it with `torchrun --nproc-per-node 2 examples/jagged_recommender.py`.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn

import lockstep as ls

ITEMS, SAMPLES, MOST = 1000, 32, 32 * 30

mesh = ls.mesh(dp=-1)


class Recommender(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.items = nn.EmbeddingBag(ITEMS, 16, mode="mean")
        self.tower = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, items: Tensor, offsets: Tensor) -> Tensor:
        return self.tower(self.items(items, offsets)).squeeze(1)


# How many items there are differs by rank and step, within these bounds.
@ls.compile(mesh=mesh, data="dp", dynamic={"items": {0: (2, MOST)}})
def train_step(model: Recommender, items: Tensor, offsets: Tensor, clicked: Tensor) -> Tensor:
    scores = model(items, offsets)
    loss = nn.functional.binary_cross_entropy_with_logits(scores, clicked)
    loss = ls.loss(loss, dp="mean")
    loss.backward()
    ls.reduce_grads(model, dp="mean")
    return loss


def batch(liked: Tensor, draw: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Up to 30 items a sample, where each sample's items begin, and whether it was clicked."""
    lengths = torch.randint(1, 31, (SAMPLES,), generator=draw)
    items = torch.randint(ITEMS, (int(lengths.sum()),), generator=draw)
    samples = torch.repeat_interleave(torch.arange(SAMPLES), lengths)
    shares = torch.zeros(SAMPLES).index_add_(0, samples, liked[items].float()) / lengths
    return items, lengths.cumsum(0) - lengths, (shares > 0.5).float()


def main(steps: int = 200) -> None:
    rank, device = dist.get_rank(), torch.device(mesh.device_type)
    torch.manual_seed(0)
    model = Recommender().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    liked = torch.randperm(ITEMS, generator=torch.Generator().manual_seed(7)) < ITEMS // 2
    draw = torch.Generator().manual_seed(rank)
    losses = []
    for _ in range(steps):
        items, offsets, clicked = (t.to(device) for t in batch(liked, draw))
        losses.append(train_step(model, items, offsets, clicked).item())
        optimizer.step()
        optimizer.zero_grad()
    if rank == 0:
        print(f"loss {sum(losses[:10]) / 10:.2f} -> {sum(losses[-10:]) / 10:.2f}")
        ls.summary()


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
