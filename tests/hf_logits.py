"""Logits of models that transformers has written, and of what it reads of ours: equal to its own.

    python -m tests.hf_logits

Needs the packages of `pip install -e '.[bars]'`.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from lockstep.models import hf, llama, mixtral

CLOSE = 1e-5  # of logits of the size of one, in f32
SIZES: dict[str, Any] = dict(
    vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=64,
)  # fmt: skip
ROPE = dict(
    rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
    original_max_position_embeddings=16, rope_theta=1e4,
)  # fmt: skip
TOKENS = torch.randint(96, (3, 40), generator=torch.Generator().manual_seed(1))


def theirs(kind: str) -> Any:
    """A tiny random model of transformers'."""
    import transformers as hub

    torch.manual_seed(0)
    if kind == "mixtral":
        config = hub.MixtralConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2)
        return hub.MixtralForCausalLM(config)
    tied = kind == "llama, tied"
    rope = {"rope_parameters": ROPE} if kind == "llama 3" else {}
    return hub.LlamaForCausalLM(hub.LlamaConfig(**SIZES, **rope, tie_word_embeddings=tied))


def main() -> int:
    """Print a line a model; exit code 1 where logits differ."""
    import transformers as hub

    held = []
    for kind in ("llama", "llama, tied", "llama 3", "mixtral"):
        with tempfile.TemporaryDirectory() as name, torch.no_grad():
            model = theirs(kind).eval()
            for weight in model.parameters():
                weight.mul_(4 if weight.dim() > 1 else 1)  # logits of some size
            model.save_pretrained(Path(name) / "theirs")
            wanted = model(TOKENS).logits
            own = hf.load(Path(name) / "theirs")
            assert isinstance(own, mixtral.Mixtral if kind == "mixtral" else llama.Llama)
            hf.save(own, Path(name) / "ours")
            again = hub.AutoModelForCausalLM.from_pretrained(Path(name) / "ours").eval()
            scale = wanted.abs().max()
            gaps = [((logits - wanted).abs().max() / scale).item()
                    for logits in (own(TOKENS), again(TOKENS).logits)]  # fmt: skip
        held.append(max(gaps) <= CLOSE)
        print(f"{kind:<12} read {gaps[0]:.1e}, written and read by transformers {gaps[1]:.1e}")
    print(f"{sum(held)} of {len(held)} models: logits as transformers' own within {CLOSE:.0e}")
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
