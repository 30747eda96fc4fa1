"""Whole models in float64 against the same formulas in plain numpy, written from their sources alone.

Nothing of the package computes on the right-hand side: no rotation, norm, mask, activation or loss.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from stamm.models.attention_mask import attention_inputs
from stamm.models.config import DecoderConfig, GatedFFN, Llama3Rope, PlainFFN, PlainRope
from stamm.models.decoder import Decoder, DecoderStack, build_decoder
from stamm.models.norm import RMSNorm
from stamm.models.rope import rotate

Array = NDArray[np.float64]
LENGTH = 23
XIELU = DecoderConfig(
    vocab_size=31,
    d_model=24,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    ffn=PlainFFN(width=20),
    rope=Llama3Rope(original_context=32, theta=50.0),
    norm_eps=0.03,  # large, so that its place shows
    init_std=0.4,
)
CASES = {
    "Apertus": XIELU,
    "ungrouped": replace(XIELU, num_kv_heads=4, rope=PlainRope(theta=100.0)),
    "SwiGLU, tied": replace(XIELU, ffn=GatedFFN(width=20), qk_norm=False, tied_embeddings=True),
}
DOCUMENT = np.array([5] * 9 + [2] * 1 + [7] * 13)


def moved(config: DecoderConfig) -> Decoder:
    """In float64, norms and shapes of activations off their start."""
    decoder = build_decoder(config, seed=3).double()
    draw = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in decoder.parameters():
            if parameter.dim() < 2:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=draw).double())
    return decoder


def normed(x: Array, weight: Array, eps: float) -> Array:
    """By its definition."""
    y: Array = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * weight
    return y


def frequencies(config: DecoderConfig) -> list[float]:
    """Llama 3's three cases, one pair at a time."""
    found, rope, width = [], config.rope, config.head_width
    for pair in range(width // 2):
        frequency = rope.theta ** (-2 * pair / width)
        if isinstance(rope, Llama3Rope):
            wavelength = 2 * math.pi / frequency
            if wavelength > rope.original_context / rope.low_frequency_factor:
                frequency /= rope.factor
            elif wavelength >= rope.original_context / rope.high_frequency_factor:
                low, high = rope.low_frequency_factor, rope.high_frequency_factor
                share = (rope.original_context / wavelength - low) / (high - low)
                frequency *= (1 - share) / rope.factor + share
        found.append(frequency)
    return found


def turned(x: Array, config: DecoderConfig) -> Array:
    """Heads (T, E), each pair (i, i + E/2) as one complex number times e^(i angle)."""
    half = x.shape[1] // 2
    angle = np.outer(np.arange(len(x)), frequencies(config))
    z = (x[:, :half] + 1j * x[:, half:]) * np.exp(1j * angle)
    return np.concatenate((z.real, z.imag), axis=1)


def softplus(raw: Array) -> float:
    """log(1 + e^raw)."""
    return math.log1p(math.exp(float(raw[0])))


def fed(x: Array, state: dict[str, Array], here: str, config: DecoderConfig) -> Array:
    """xIELU as Apertus states it, or SwiGLU."""
    up = x @ state[f"{here}.up_proj.weight"].T
    if isinstance(config.ffn, GatedFFN):
        gate = x @ state[f"{here}.gate_proj.weight"].T
        y = gate / (1 + np.exp(-gate)) * up
    else:
        positive = softplus(state[f"{here}.act_fn.alpha_p"])
        negative = 0.5 + softplus(state[f"{here}.act_fn.alpha_n"])
        above = positive * up * up + 0.5 * up
        y = np.where(up > 0, above, negative * (np.expm1(np.minimum(up, 0)) - up) + 0.5 * up)
    down: Array = y @ state[f"{here}.down_proj.weight"].T
    return down


def attended(x: Array, state: dict[str, Array], here: str, config: DecoderConfig) -> Array:
    """Query by query: the softmax of the keys of its document that are not behind it."""
    e, group = config.head_width, config.num_heads // config.num_kv_heads
    q, k, v = (x @ state[f"{here}.{n}_proj.weight"].T for n in "qkv")
    out = np.zeros((len(x), config.num_heads * e))
    for head in range(config.num_heads):
        other = head // group
        qs, ks = q[:, head * e :][:, :e], k[:, other * e :][:, :e]
        if config.qk_norm:
            qs = normed(qs, state[f"{here}.q_norm.weight"], config.norm_eps)
            ks = normed(ks, state[f"{here}.k_norm.weight"], config.norm_eps)
        qs, ks = turned(qs, config), turned(ks, config)
        for t in range(len(x)):
            seen = [s for s in range(t + 1) if DOCUMENT[s] == DOCUMENT[t]]
            scores = np.exp(ks[seen] @ qs[t] / math.sqrt(e))
            out[t, head * e :][:e] = scores / scores.sum() @ v[seen, other * e :][:, :e]
    return out @ state[f"{here}.o_proj.weight"].T


def logits(tokens: NDArray[np.int64], state: dict[str, Array], config: DecoderConfig) -> Array:
    """Of one sequence."""
    x = state["model.embed_tokens.weight"][tokens]
    for layer in range(config.num_layers):
        here = f"model.layers.{layer}"
        first, second = (
            state[f"{here}.{name}_layernorm.weight"] for name in ("attention", "feedforward")
        )
        x = x + attended(normed(x, first, config.norm_eps), state, f"{here}.self_attn", config)
        x = x + fed(normed(x, second, config.norm_eps), state, f"{here}.mlp", config)
    return normed(x, state["model.norm.weight"], config.norm_eps) @ state["lm_head.weight"].T


@pytest.mark.parametrize("name", CASES)
def test_a_decoder_and_its_loss_are_the_formulas(name: str) -> None:
    """Frequencies and angles' cosines are float32 in the model, and its only error: 1e-6."""
    config = CASES[name]
    decoder = moved(config)
    state = {n: t.detach().numpy() for n, t in decoder.state_dict().items()}
    tokens = np.random.RandomState(0).randint(0, config.vocab_size, LENGTH + 1)
    expected = logits(tokens[:-1], state, config)
    inputs, document = torch.tensor(tokens[None, :-1]), torch.tensor(DOCUMENT[None])
    with torch.no_grad():
        found = decoder(inputs, document)[0].numpy()
    assert np.abs(expected).max() > 1
    assert np.abs(found - expected).max() < 2e-6 * np.abs(expected).max()
    keep = np.arange(LENGTH) % 3 > 0
    log_z = np.log(np.exp(expected).sum(axis=1))
    nats = (log_z - expected[np.arange(LENGTH), tokens[1:]])[keep].sum() / 11.0
    z = 0.01 * (log_z[keep] ** 2).sum() / 11.0
    targets = torch.tensor(tokens[None, 1:]), torch.tensor(keep[None])
    losses = decoder.losses(inputs, *targets, 11.0, document, z_loss=0.01)
    assert losses.nll.item() == pytest.approx(nats, rel=2e-6)
    assert losses.z.item() == pytest.approx(z, rel=2e-6)
    assert losses.loss.item() == pytest.approx(nats + z, rel=2e-6)


def test_a_norm_of_float64_is_not_rounded_on_the_way() -> None:
    norm = RMSNorm(40, 1e-3).double()
    draw = np.random.RandomState(1)
    x, weight = draw.randn(7, 40), draw.randn(40)
    with torch.no_grad():
        norm.weight.copy_(torch.tensor(weight))
        found = norm(torch.tensor(x))
    np.testing.assert_allclose(found.numpy(), normed(x, weight, 1e-3), rtol=1e-14)
    y = torch.tensor(x, requires_grad=True)
    assert torch.autograd.gradcheck(norm, (y,))


def test_a_norm_of_16_bits_is_taken_in_32() -> None:
    """Squares of 300 leave float16; with the weight it is multiplied in 16 bits."""
    x = torch.tensor([[300.0, -300.0, 300.0, 300.0]], dtype=torch.float16)
    norm = RMSNorm(4, 1e-5)
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([1.0, 1.0 + 2.0**-12, 3.0, 0.5]))
    found = norm(x)
    assert found.dtype == torch.float16
    assert found.tolist() == [[1.0, -1.0, 3.0, 0.5]]


def test_a_rotation_turns_by_position_times_frequency() -> None:
    x = np.random.RandomState(2).randn(LENGTH, 8)
    model = DecoderStack(XIELU)
    assert model.frequencies.tolist() == pytest.approx(frequencies(XIELU), rel=1e-6)
    turn = attention_inputs(model, LENGTH, None, torch.float64).rotation
    found = rotate(torch.tensor(x)[None, None], *turn)[0, 0]
    np.testing.assert_allclose(found.numpy(), turned(x, XIELU), rtol=0, atol=3e-6)
