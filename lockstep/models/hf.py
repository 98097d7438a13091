"""Weights in and out of Hugging Face's folders: `config.json` and safetensors.

Hugging Face's rotary embedding pairs the two halves of a head, this one neighbours, as Meta's: the
rows of query and key projections are reordered on the way, and nothing else is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lockstep.errors import UsageError
from lockstep.models import llama, mixtral

_OUTER = {"tok_embeddings": "model.embed_tokens", "norm": "model.norm", "output": "lm_head"}
_BLOCK = {
    "attention.wq": "self_attn.q_proj",
    "attention.wk": "self_attn.k_proj",
    "attention.wv": "self_attn.v_proj",
    "attention.wo": "self_attn.o_proj",
    "attention_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
_DENSE = {
    "feed_forward.w1": "mlp.gate_proj",
    "feed_forward.w2": "mlp.down_proj",
    "feed_forward.w3": "mlp.up_proj",
}
_SIZES = {
    "dim": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "ffn": "intermediate_size",
    "vocab": "vocab_size",
    "tied": "tie_word_embeddings",
    "norm_eps": "rms_norm_eps",
    "rope_theta": "rope_theta",
    "init_std": "initializer_range",
}
_ROPE = {
    "rope_factor": "factor",
    "rope_low": "low_freq_factor",
    "rope_high": "high_freq_factor",
    "rope_context": "original_max_position_embeddings",
}
_DEFAULTS = {"tie_word_embeddings": False, "rope_theta": 10_000.0, "initializer_range": 0.02}
_EXPERTS = {"experts": "num_local_experts", "top": "num_experts_per_tok"}


def load(folder: str | Path, dtype: torch.dtype = torch.float32) -> llama.Llama:
    """Make a model from a folder of Hugging Face's.

    Args:
        folder: with `config.json` of a Llama or a Mixtral, and one or more `*.safetensors`.
        dtype: of the parameters.

    Returns:
        A new model on the CPU: a `Llama`, or a `Mixtral`, which is one too.

    Raises:
        UsageError: a file or a tensor is missing or of another shape, the kind of model is another,
            or the package safetensors is not installed.
    """
    folder = Path(folder)
    config = config_of(_json(folder / "config.json"), str(folder))
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise UsageError("no *.safetensors", where=str(folder), want="a folder with weights")
    found: dict[str, Tensor] = {}
    for file in files:
        found |= _safetensors().load_file(file)
    state = from_hf(found, config)
    with torch.device("meta"):
        kind = mixtral.Mixtral if isinstance(config, mixtral.Config) else llama.Llama
        model = kind(config)  # type: ignore[arg-type]
    model.to(dtype).to_empty(device="cpu")
    if config.tied:
        model.output.weight = model.tok_embeddings.weight
    for name, buffer in model.named_buffers():
        state.setdefault(name, torch.zeros_like(buffer))
        buffer.zero_()
    wanted = {name: tensor.shape for name, tensor in model.state_dict().items()}
    for name, shape in wanted.items():
        if name not in state or state[name].shape != shape:
            got = list(state[name].shape) if name in state else "nothing"
            raise UsageError(f"{name} does not fit", where=str(folder), got=f"{got}",
                             want=f"a tensor of shape {list(shape)}")  # fmt: skip
    model.load_state_dict({name: state[name] for name in wanted})
    return model


def save(model: llama.Llama, folder: str | Path) -> None:
    """Write a whole model as Hugging Face's own library reads it.

    Args:
        model: on one rank, not laid out over a mesh.
        folder: made where it is missing; its `config.json` and `model.safetensors` are replaced.

    Raises:
        UsageError: what the format has no place for, or safetensors is not installed.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {n: t.contiguous() for n, t in to_hf(model.state_dict(), model.config).items()}
    _safetensors().save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    text = json.dumps(config_to_hf(model.config), indent=2, sort_keys=True)
    (folder / "config.json").write_text(text + "\n")


def from_hf(state: Mapping[str, Tensor], config: llama.Config) -> dict[str, Tensor]:
    """Return a state dict of this package's from one of Hugging Face's, on the whole model."""
    made = {}
    for own, other in _names(config):
        if other[0] in state:
            parts = [_turned(own, state[name], config, into=False) for name in other if name]
            made[own] = torch.stack(parts) if len(other) > 1 else parts[0]
    return made


def to_hf(state: Mapping[str, Tensor], config: llama.Config) -> dict[str, Tensor]:
    """Return a state dict as Hugging Face names it, from one of the whole model."""
    if isinstance(config, mixtral.Config) and config.shared:
        raise UsageError("Hugging Face's Mixtral has no shared expert", got=f"{config.shared}")
    made = {}
    for own, other in _names(config):
        if own == "output.weight" and config.tied:
            continue
        parts = state[own].unbind() if len(other) > 1 else [state[own]]
        for name, part in zip(other, parts, strict=True):
            made[name] = _turned(own, part, config, into=True)
    return made


def _names(config: llama.Config) -> Iterator[tuple[str, list[str]]]:
    """Own name of a tensor, and the others' names: several where they keep its slices apart."""
    mixture = isinstance(config, mixtral.Config)
    for own, other in _OUTER.items():
        tied = own == "output" and config.tied
        yield f"{own}.weight", [f"{_OUTER['tok_embeddings'] if tied else other}.weight"]
    for i in range(config.layers):
        own_block, other_block = f"layers.{i}", f"model.layers.{i}"
        for own, other in {**_BLOCK, **({} if mixture else _DENSE)}.items():
            yield f"{own_block}.{own}.weight", [f"{other_block}.{other}.weight"]
        if isinstance(config, mixtral.Config):
            there, here = f"{other_block}.block_sparse_moe", f"{own_block}.feed_forward"
            yield f"{here}.router.weight", [f"{there}.gate.weight"]
            for w in ("w1", "w2", "w3"):
                experts = range(config.experts)
                yield f"{here}.experts.{w}", [f"{there}.experts.{e}.{w}.weight" for e in experts]


def _turned(name: str, weight: Tensor, config: llama.Config, into: bool) -> Tensor:
    """A weight with the rows of each head's pairs in the other's order."""
    if not name.endswith(("wq.weight", "wk.weight")):
        return weight
    shape = (config.head_dim // 2, 2) if into else (2, config.head_dim // 2)
    return weight.unflatten(0, (-1, *shape)).transpose(1, 2).flatten(0, 2)


def config_of(data: Mapping[str, Any], where: str = "config.json") -> llama.Config:
    """Return the config that a `config.json` of Hugging Face's says.

    Raises:
        UsageError: another kind of model, or one that differs from it in what is named.
    """
    kind = data.get("model_type")
    if kind not in ("llama", "mixtral"):
        raise UsageError(f"a model of type {kind}", where=where, want="llama or mixtral")
    rope = data.get("rope_parameters") or data.get("rope_scaling") or {}
    data = {**_DEFAULTS, **data}
    data |= {"rope_theta": rope["rope_theta"]} if "rope_theta" in rope else {}
    fields = {own: data[other] for own, other in _SIZES.items()}
    scaled = rope.get("rope_type", rope.get("type", "default"))
    if scaled not in ("default", "llama3"):
        raise UsageError(f"rotary embeddings of type {scaled}", where=where, want="llama3")
    fields |= {own: rope[other] for own, other in _ROPE.items()} if scaled == "llama3" else {
        "rope_factor": 1.0
    }  # fmt: skip
    width = data.get("head_dim") or fields["dim"] // fields["heads"]
    if width * fields["heads"] != fields["dim"]:
        raise UsageError(f"heads of width {width}", where=where, want="hidden_size / heads")
    if kind == "llama":
        return llama.Config(**fields)
    return mixtral.Config(**fields, **{own: data[other] for own, other in _EXPERTS.items()})


def config_to_hf(config: llama.Config) -> dict[str, Any]:
    """Return a `config.json` for Hugging Face's library."""
    data: dict[str, Any] = {other: getattr(config, own) for own, other in _SIZES.items()}
    mixture = isinstance(config, mixtral.Config)
    data["model_type"] = "mixtral" if mixture else "llama"
    data["architectures"] = ["MixtralForCausalLM" if mixture else "LlamaForCausalLM"]
    data |= {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False}
    if mixture:
        data |= {other: getattr(config, own) for own, other in _EXPERTS.items()}
    if config.rope_factor != 1:
        rope = {other: getattr(config, own) for own, other in _ROPE.items()}
        data["rope_scaling"] = {"rope_type": "llama3", **rope}
    data["max_position_embeddings"] = int(config.rope_context * config.rope_factor)
    return data


def _json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} can't be read", got=str(error)) from error


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError as error:
        raise UsageError(
            "weights of Hugging Face's need the package safetensors",
            fix="pip install 'torch-lockstep[hf]'",
        ) from error
    return safetensors.torch
