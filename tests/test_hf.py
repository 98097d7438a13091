"""Weights in Hugging Face's form, there and back; their own library reads them in a command."""

from __future__ import annotations

import json

import pytest
import torch

from lockstep.errors import UsageError
from lockstep.models import hf, llama, mixtral
from tests.parallel.layouts import NARROW

TOKENS = torch.arange(8).view(2, 4)


@pytest.mark.parametrize("tied", [False, True])
def test_a_llama_comes_back_as_it_was(tmp_path, tied):
    torch.manual_seed(0)
    model = llama.Llama(llama.config("debug", **NARROW, tied=tied))
    hf.save(model, tmp_path)
    again = hf.load(tmp_path)
    assert again.config == model.config
    assert torch.equal(again(TOKENS), model(TOKENS))
    assert (again.output.weight is again.tok_embeddings.weight) == tied


def test_a_mixtral_comes_back_as_it_was(tmp_path):
    torch.manual_seed(0)
    changes = {**NARROW, "shared": 0, "balance": 0.0}
    model = mixtral.Mixtral(mixtral.config("debug", **changes))
    hf.save(model, tmp_path)
    again = hf.load(tmp_path)
    assert again.config == model.config and torch.equal(again(TOKENS), model(TOKENS))


def test_neighbours_become_halves():
    config = llama.config("debug", dim=8, heads=2, kv_heads=1, ffn=4, vocab=8, layers=1)
    state = llama.Llama(config).state_dict()
    state["layers.0.attention.wk.weight"] = torch.arange(4.0)[:, None].expand(4, 8)
    other = hf.to_hf(state, config)
    turned = other["model.layers.0.self_attn.k_proj.weight"][:, 0]
    assert turned.tolist() == [0, 2, 1, 3]
    back = hf.from_hf(other, config)["layers.0.attention.wk.weight"]
    assert torch.equal(back, state["layers.0.attention.wk.weight"])


def test_what_does_not_fit_is_named(tmp_path):
    model = llama.Llama(llama.config("debug", **NARROW))
    hf.save(model, tmp_path)
    path = tmp_path / "config.json"
    data = json.loads(path.read_text())

    def told(**changes: object) -> str:
        path.write_text(json.dumps({**data, **changes}))
        with pytest.raises(UsageError) as raised:
            hf.load(tmp_path)
        return str(raised.value)

    assert "tok_embeddings.weight does not fit" in told(vocab_size=33)
    assert "a model of type gpt2" in told(model_type="gpt2")
    assert "rotary embeddings of type yarn" in told(rope_scaling={"rope_type": "yarn"})
    assert "layers.2.attention.wq.weight does not fit" in told(num_hidden_layers=3)
    (tmp_path / "model.safetensors").unlink()
    assert "no *.safetensors" in told()


def test_a_shared_expert_has_no_place():
    config = mixtral.config("debug")
    with pytest.raises(UsageError, match="no shared expert"):
        hf.to_hf({}, config)
