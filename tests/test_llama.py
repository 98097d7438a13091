"""The Llama model against computations of its parts that share no code with it."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from lockstep.errors import UsageError
from lockstep.models import llama

PUBLISHED = {"1b": 1_235_814_400, "8b": 8_030_261_248, "70b": 70_553_706_496}


def small(**changes) -> llama.Llama:
    torch.manual_seed(0)
    return llama.Llama(llama.config("debug", **{"layers": 2, "dim": 32, "ffn": 48, **changes}))


def tokens(batch: int = 2, length: int = 16) -> torch.Tensor:
    return torch.randint(256, (batch, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_sizes_have_the_published_number_of_parameters(name):
    with torch.device("meta"):
        model = llama.Llama(llama.config(name))
    assert sum(weight.numel() for weight in model.parameters()) == PUBLISHED[name]


def test_the_count_would_notice_an_untied_embedding():
    with torch.device("meta"):
        model = llama.Llama(llama.config("1b", tied=False))
    assert sum(weight.numel() for weight in model.parameters()) != PUBLISHED["1b"]


def test_rotation_is_a_complex_product():
    x = torch.randn(2, 5, 3, 8, generator=torch.Generator().manual_seed(0))
    angles = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))
    turned = llama.rotate(x, angles.cos(), angles.sin())
    pairs = torch.view_as_complex(x.reshape(2, 5, 3, 4, 2).contiguous())
    turn = torch.polar(torch.ones(5, 4), angles)[None, :, None]
    torch.testing.assert_close(turned, torch.view_as_real(pairs * turn).reshape(x.shape))
    assert not torch.allclose(turned, x)


def scaled_as_published(config: llama.Config) -> list[float]:
    """Llama 3.1's frequency scaling, pair by pair, with the branches of its published code."""
    frequencies = []
    for i in range(config.head_dim // 2):
        frequency = config.rope_theta ** (-2 * i / config.head_dim)
        wavelength = 2 * math.pi / frequency
        if wavelength > config.rope_context / config.rope_low:
            frequency /= config.rope_factor
        elif wavelength > config.rope_context / config.rope_high:
            smooth = (config.rope_context / wavelength - config.rope_low) / (
                config.rope_high - config.rope_low
            )
            frequency = (1 - smooth) * frequency / config.rope_factor + smooth * frequency
        frequencies.append(frequency)
    return frequencies


@pytest.mark.parametrize("name", ["debug", "1b", "8b"])
def test_frequencies_are_scaled_as_published(name):
    config = llama.config(name)
    want = torch.tensor(scaled_as_published(config))
    torch.testing.assert_close(llama.rope_frequencies(config), want, rtol=2e-5, atol=0)


def test_the_8b_has_frequencies_of_all_three_kinds():
    config = llama.config("8b")
    plain = llama.rope_frequencies(llama.config("8b", rope_factor=1.0))
    ratio = llama.rope_frequencies(config) / plain
    assert (ratio > 0.9999).any()
    assert (ratio < 0.1251).any()
    assert ((ratio > 0.13) & (ratio < 0.99)).any()


def test_a_half_precision_model_keeps_exact_angles():
    model = small()
    wide, narrow = model(tokens()), model.bfloat16()(tokens())
    assert narrow.dtype == torch.bfloat16
    torch.testing.assert_close(narrow.float(), wide, atol=0.05, rtol=0.1)
    assert [name for name, _ in model.named_buffers()] == []


def test_future_tokens_change_nothing():
    model = small()
    now = tokens()
    later = now.clone()
    later[:, 10:] = (later[:, 10:] + 1) % 256
    torch.testing.assert_close(model(now)[:, :10], model(later)[:, :10])
    assert not torch.allclose(model(now)[:, 10:], model(later)[:, 10:])


def test_only_distances_between_tokens_matter_to_attention():
    config = llama.config("debug")
    q, k = torch.randn(2, 1, 1, 1, 32, generator=torch.Generator().manual_seed(0))

    def score(at_q: int, at_k: int) -> torch.Tensor:
        angle_q, angle_k = (at * llama.rope_frequencies(config)[None] for at in (at_q, at_k))
        turned_q = llama.rotate(q, angle_q.cos(), angle_q.sin())
        return (turned_q * llama.rotate(k, angle_k.cos(), angle_k.sin())).sum()

    torch.testing.assert_close(score(9, 4), score(105, 100), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(score(9, 4), score(9, 5))


def reference_logits(model: llama.Llama, seen: torch.Tensor) -> torch.Tensor:
    """The whole model again, with complex rotation, an explicit mask and repeated heads."""
    config, weights = model.config, dict(model.named_parameters())
    length, head = seen.shape[1], config.head_dim
    angles = torch.outer(torch.arange(length), torch.tensor(scaled_as_published(config)))
    turn = torch.polar(torch.ones_like(angles), angles)[:, None]
    mask = torch.full((length, length), -torch.inf).triu(1)

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return F.rms_norm(x, (config.dim,), weights[name], config.norm_eps)

    def turned(x: torch.Tensor) -> torch.Tensor:
        pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(pairs * turn).flatten(-2)

    x = weights["tok_embeddings.weight"][seen]
    for i in range(config.layers):
        at = f"layers.{i}."
        y = norm(x, at + "attention_norm.weight")
        q, k, v = (
            (y @ weights[f"{at}attention.{name}.weight"].T).unflatten(-1, (-1, head))
            for name in ("wq", "wk", "wv")
        )
        q, k = turned(q), turned(k)
        k, v = (z.repeat_interleave(config.heads // config.kv_heads, dim=2) for z in (k, v))
        scores = torch.einsum("bqhk,bshk->bhqs", q, k) / math.sqrt(head) + mask
        read = torch.einsum("bhqs,bshk->bqhk", scores.softmax(-1), v).flatten(-2)
        x = x + read @ weights[at + "attention.wo.weight"].T
        y = norm(x, at + "ffn_norm.weight")
        w1, w2, w3 = (weights[f"{at}feed_forward.w{j}.weight"] for j in (1, 2, 3))
        gate = y @ w1.T
        x = x + (gate * gate.sigmoid() * (y @ w3.T)) @ w2.T
    head_name = "tok_embeddings.weight" if config.tied else "output.weight"
    return norm(x, "norm.weight") @ weights[head_name].T


@pytest.mark.parametrize("tied", [False, True])
def test_the_whole_model_agrees_with_a_second_writing_of_it(tied):
    model = small(tied=tied, init_std=0.2)
    torch.testing.assert_close(
        model(tokens()), reference_logits(model, tokens()), rtol=1e-4, atol=1e-4
    )


def test_the_comparison_would_notice_a_wrong_norm():
    model = small(init_std=0.2)
    want = reference_logits(model, tokens())
    model.layers[1].ffn_norm.weight.data *= 1.01
    assert not torch.allclose(model(tokens()), want, rtol=1e-4, atol=1e-4)


def test_labels_give_the_mean_cross_entropy():
    model, seen = small(), tokens()
    labels = seen.roll(-1, 1)
    labels[:, -1] = -100
    logs = model(seen).log_softmax(-1)[:, :-1]
    want = -logs.gather(-1, labels[:, :-1, None]).mean()
    torch.testing.assert_close(model(seen, labels), want)
    assert abs(want.item() - math.log(256)) < 0.1


def test_initial_weights_have_the_stated_spread():
    torch.manual_seed(0)
    model = llama.Llama(llama.config("debug", init_std=0.02))
    narrow = 0.02 / math.sqrt(2 * model.config.layers)
    for name, weight in model.named_parameters():
        if weight.dim() == 1:
            assert bool((weight == 1).all()), name
            continue
        std = narrow if name.endswith(("wo.weight", "w2.weight")) else 0.02
        assert abs(weight.std().item() / std - 0.987) < 0.02, name  # cut at 3 deviations: 0.987
        assert weight.abs().max().item() <= 3 * std + 1e-7, name
        assert abs(weight.mean().item()) < std / 20, name


def test_initial_weights_follow_the_seed():
    first, again = small(), small()
    for name, weight in first.named_parameters():
        assert torch.equal(weight, again.get_parameter(name)), name
    torch.manual_seed(1)
    again.init_weights()
    assert not torch.equal(first.output.weight, again.output.weight)


def test_tied_weights_are_one_parameter_with_both_gradients():
    model, seen = small(tied=True), tokens()
    assert model.output.weight is model.tok_embeddings.weight
    assert "output.weight" not in dict(model.named_parameters())
    model(seen, seen).backward()
    untied = small()
    untied.load_state_dict(model.state_dict())
    untied(seen, seen).backward()
    both = untied.output.weight.grad + untied.tok_embeddings.weight.grad
    torch.testing.assert_close(model.output.weight.grad, both)


def test_dropout_acts_only_while_training():
    model, seen = small(dropout=0.5), tokens()
    torch.manual_seed(3)
    first, second = model(seen), model(seen)
    assert not torch.equal(first, second)
    model.eval()
    assert torch.equal(model(seen), model(seen))


def test_unknown_names_are_told():
    with pytest.raises(UsageError, match=r"no Llama config '9b'\n  want one of debug, 1b, 8b, 70b"):
        llama.config("9b")
    with pytest.raises(UsageError, match=r"a Llama config has no width\n  want dim, layers"):
        llama.config("8b", width=1)
    with pytest.raises(UsageError, match="heads do not divide\n  got  dim 128, heads 3"):
        llama.config("debug", heads=3)
