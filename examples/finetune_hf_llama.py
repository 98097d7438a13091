"""A Llama of `transformers`, fine-tuned as it comes, data-parallel and in one artifact.

Run it with `torchrun --nproc-per-node 2 examples/finetune_hf_llama.py`; it needs transformers. The
tiny model has random weights: put `LlamaForCausalLM.from_pretrained(...)` in its place.
"""

import pydoc_data.topics  # English text that comes with Python

import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

import lockstep as ls

TINY = LlamaConfig(
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=256,
    use_cache=False,
)
BATCH, TOKENS = 8, 64
mesh = ls.mesh(dp=-1)


@ls.compile(mesh=mesh, data="dp")
def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, ids: Tensor) -> Tensor:
    loss = ls.loss(model(input_ids=ids, labels=ids, use_cache=False).loss, dp="mean")
    loss.backward()
    ls.reduce_grads(model, dp="mean")
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return loss


def main(steps: int = 40) -> None:
    device = torch.device(mesh.device_type)
    torch.manual_seed(0)  # the same model on every rank
    model = LlamaForCausalLM(TINY).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    text = "\n".join(pydoc_data.topics.topics.values()).encode("ascii", "ignore")
    tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()

    draw = torch.Generator().manual_seed(1 + dist.get_rank())  # each rank has rows of its own
    for step in range(steps):
        starts = torch.randint(len(tokens) - TOKENS, (BATCH,), generator=draw).tolist()
        ids = torch.stack([tokens[start : start + TOKENS] for start in starts]).to(device)
        loss = train_step(model, optimizer, ids)
        if dist.get_rank() == 0 and step in (0, steps - 1):
            print(f"step {step}: loss {loss.item():.2f}", flush=True)
    if dist.get_rank() == 0:
        ls.summary()


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
