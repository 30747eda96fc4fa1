"""A seeded small decoder against the classes of transformers, in three number formats.

What is exact: names and shapes of all tensors, the frequencies, and, given transformers' own cosines,
every bit of the logits where the activation is computed in its order ("eps" for xIELU; ReLU² as it is).
What differs on purpose: our angles are float64 inside, our xIELU and SwiGLU round once. Then both are
judged by their distance to float64.

In float64 ours is float64 throughout. transformers keeps three things in float32: the norms, the angles
with their cosines, and the softmax of its eager attention. With these three in float64 both agree to
rounding.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from stamm.models.attention_mask import AttentionInputs
from stamm.models.config import DecoderConfig, GatedFFN, Llama3Rope, PlainFFN, PlainRope
from stamm.models.decoder import Decoder, build_decoder
from stamm.models.hub import HubSpecialIds, hub_config, hub_state, quiet_transformers
from stamm.models.rope import inverse_frequencies, rotate, rotation

SPECIAL = HubSpecialIds(begin=1, end=2, pad=3)
ROPE = Llama3Rope(original_context=32)  # all three kinds of wavelength occur
XIELU, SWIGLU = PlainFFN(width=80), GatedFFN(width=80)
BASE = DecoderConfig(
    vocab_size=97,
    d_model=64,
    num_layers=3,
    num_heads=4,
    num_kv_heads=2,
    ffn=XIELU,
    rope=ROPE,
    max_context=256,
    init_std=0.2,
)
CASES: dict[str, dict[str, Any]] = {
    "Apertus": {},
    "Apertus, tied, heads of another width": {"tied_embeddings": True, "head_dim": 24},
    "Apertus, one key head": {"num_kv_heads": 1},
    "Apertus, a key head each": {"num_kv_heads": 4},
    "Apertus, its order": {"ffn": replace(XIELU, compat="eps")},
    "Apertus, its order, tied": {"ffn": replace(XIELU, compat="eps"), "tied_embeddings": True},
    "Llama": {"ffn": SWIGLU, "qk_norm": False},
    "Llama, tied": {"ffn": SWIGLU, "qk_norm": False, "tied_embeddings": True},
    "Qwen3": {"ffn": SWIGLU, "rope": PlainRope(theta=1e6)},
    "Qwen3, tied": {"ffn": SWIGLU, "tied_embeddings": True},
    "Arcee": {"ffn": PlainFFN(width=80, activation="relu2"), "qk_norm": False},
}
EXACT = ["Apertus, its order", "Apertus, its order, tied", "Arcee"]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
TOKENS = torch.randint(97, (3, 200), generator=torch.Generator().manual_seed(0))


def both(name: str, dtype: torch.dtype, attention: str = "sdpa") -> tuple[Decoder, Any]:
    """The decoder, its norms and shapes moved off their start, and transformers' model of its tensors."""
    decoder = build_decoder(replace(BASE, **CASES[name]), seed=3)
    draw = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in decoder.parameters():
            if parameter.dim() < 2:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=draw))
    plain = hub_config(decoder.config, SPECIAL)
    architecture, kind = plain.pop("architectures")[0], plain.pop("model_type")
    plain["dtype"] = str(dtype).removeprefix("torch.")
    with quiet_transformers() as transformers:
        config = transformers.AutoConfig.for_model(kind, **plain)
        model = transformers.AutoModelForCausalLM.from_config(
            config, dtype=dtype, attn_implementation=attention
        ).eval()
    assert type(model).__name__ == architecture == f"{name.split(',')[0]}ForCausalLM"
    state = hub_state(decoder)
    # Tied matrices of Apertus are written twice: vLLM and llama.cpp read both.
    left_out = decoder.config.tied_embeddings and not architecture.startswith("Apertus")
    tied = {"lm_head.weight"} if left_out else set()
    theirs = {n: tuple(t.shape) for n, t in model.state_dict().items() if n not in tied}
    assert {n: tuple(t.shape) for n, t in state.items()} == theirs
    model.load_state_dict(state, strict=not tied)
    return decoder.to(dtype), model


@torch.no_grad()
def logits(decoder: Decoder, turn: tuple[Tensor, Tensor] | None = None) -> Tensor:
    """Of TOKENS, with these cosines and sines or its own."""
    seen = None if turn is None else AttentionInputs(turn, None)
    found: Tensor = decoder.lm_head(decoder.model(TOKENS, attention=seen))
    return found


@torch.no_grad()
def logits_of(model: Any) -> Tensor:
    with quiet_transformers():
        found: Tensor = model(TOKENS, use_cache=False).logits
    return found


@torch.no_grad()
def turn_of(model: Any, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    at = torch.arange(TOKENS.shape[1])[None]
    cosine, sine = model.model.rotary_emb(torch.zeros(1, dtype=dtype), at)
    return cosine[0], sine[0]


@torch.no_grad()
def truth(decoder: Decoder) -> Tensor:
    """The same function of the same stored numbers in float64, angles and all."""
    frequencies = decoder.model.frequencies
    angle = torch.outer(torch.arange(TOKENS.shape[1]).double(), frequencies.double()).repeat(1, 2)
    config = decoder.config
    if isinstance(config.ffn, PlainFFN):  # "eps" clamps, which is no part of the formula
        config = replace(config, ffn=replace(config.ffn, compat="exact"))
    exact = Decoder(config).double()
    state = {n: t.double() for n, t in decoder.state_dict().items()}
    exact.load_state_dict({n: state[n] for n in exact.state_dict()})
    return logits(exact, (angle.cos(), angle.sin()))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", EXACT)
def test_with_their_cosines_and_order_every_bit_is_theirs(name: str, dtype: torch.dtype) -> None:
    decoder, model = both(name, dtype)
    ours, theirs = logits(decoder, turn_of(model, dtype)), logits_of(model)
    assert ours.dtype == theirs.dtype == dtype
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", CASES)
def test_logits_are_theirs_and_no_farther_from_float64(
    name: str, attention: str, dtype: torch.dtype
) -> None:
    """In units of the dtype's eps times the largest logit: at most 64 apart in float32 (measured: 21),
    16 in 16 bits (measured: 8.4); root mean square distance to float64 at most 1.1 times theirs.
    """
    decoder, model = both(name, dtype, attention)
    ours, theirs, true = logits(decoder).double(), logits_of(model).double(), truth(decoder)
    unit = torch.finfo(dtype).eps * true.abs().max()
    apart = 64 if dtype == torch.float32 else 16
    assert (ours - theirs).abs().max() <= apart * unit
    own, other = ((x - true).square().mean().sqrt().item() for x in (ours, theirs))
    assert own <= 1.1 * other


def _norm_in_float64(self: Any, x: Tensor) -> Tensor:
    scaled: Tensor = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
    return self.weight * scaled


def _turn_in_float64(self: Any, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
    angle = (position_ids[..., None].double() * self.inv_freq.double()).repeat(1, 1, 2)
    return angle.cos(), angle.sin()


def _softmax_in_float64(scores: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    return torch.softmax(scores, dim)


def _keep_float64(patch: pytest.MonkeyPatch, model: Any, *, but: str = "") -> None:
    """Compute in float64 what transformers computes in float32, all three parts of it `but` one."""
    patches: dict[str, tuple[Any, str, Any]] = {
        "norms": (type(model.model.norm), "forward", _norm_in_float64),
        "angles": (type(model.model.rotary_emb), "forward", _turn_in_float64),
        "softmax": (torch.nn.functional, "softmax", _softmax_in_float64),
    }
    for part, (owner, name, function) in patches.items():
        if part != but:
            patch.setattr(owner, name, function)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", CASES)
def test_in_float64_only_what_theirs_keeps_in_float32_differs(
    name: str, attention: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measured: 9e-8 to 2e-6 of the largest logit as it stands, 5.3e-15 with the three parts mended."""
    decoder, model = both(name, torch.float64, attention)
    ours, theirs = logits(decoder), logits_of(model)
    largest = theirs.abs().max()
    assert ours.dtype == theirs.dtype == torch.float64
    assert (ours - theirs).abs().max() > 1e-9 * largest
    _keep_float64(monkeypatch, model)
    assert (ours - logits_of(model)).abs().max() <= 1e-13 * largest


@pytest.mark.parametrize("part", ["norms", "angles", "softmax"])
@pytest.mark.parametrize("name", ["Apertus", "Qwen3", "Llama", "Arcee"])
def test_each_of_the_three_parts_is_a_cause(
    name: str, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder, model = both(name, torch.float64, "eager")
    _keep_float64(monkeypatch, model, but=part)
    theirs = logits_of(model)
    assert (logits(decoder) - theirs).abs().max() > 1e-9 * theirs.abs().max()


@pytest.mark.parametrize("name", ["Apertus", "Qwen3", "Llama"])
def test_frequencies_are_theirs(name: str) -> None:
    decoder, model = both(name, torch.bfloat16)
    theirs = model.model.rotary_emb.inv_freq
    assert theirs.dtype == torch.float32
    assert torch.equal(decoder.model.frequencies, theirs)


@pytest.mark.parametrize(
    "changes",
    [
        {"rope": PlainRope()},
        {"rope": replace(ROPE, factor=4.0)},
        {"rope": replace(ROPE, original_context=64)},
        {"norm_eps": 1e-2},
    ],
    ids=["no scaling", "another factor", "another length", "another eps"],
)
def test_another_decoder_would_be_noticed(changes: dict[str, Any]) -> None:
    decoder, model = both("Apertus", torch.float32)
    other = Decoder(replace(decoder.config, **changes))
    other.load_state_dict(decoder.state_dict())
    theirs = logits_of(model)
    assert (logits(other) - theirs).abs().max() > 1000 * 64 * 2.0**-23 * theirs.abs().max()


def test_queries_are_normalised_before_they_are_turned() -> None:
    """With weights that differ within a turned pair the order shows."""
    decoder, model = both("Apertus", torch.float32)
    theirs = logits_of(model)
    for layer in decoder.model.layers:
        attention = layer.self_attn
        for norm in (attention.q_norm, attention.k_norm):
            norm.forward = _after_turning(norm.forward)
    assert (logits(decoder) - theirs).abs().max() > 1e-2 * theirs.abs().max()


def _after_turning(norm: Any) -> Any:
    cosine, sine = rotation(inverse_frequencies(ROPE, 16), torch.arange(TOKENS.shape[1]))

    def turned_first(x: Tensor) -> Tensor:
        # What comes after turns again: turned back here, so that the norm's weight is all that moves.
        return rotate(norm(rotate(x, cosine, sine)), cosine, -sine)

    return turned_first
