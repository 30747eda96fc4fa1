"""The tap contract: what each tap gives, for every block and memory policy, and what a context puts back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from stamm.base.console import NoProgress
from stamm.base.errors import ConfigError
from stamm.models.config import (
    DecoderConfig,
    GatedFFN,
    LowRank,
    MemoryPolicy,
    PlainFFN,
    Recompute,
    SavePost,
    SavePre,
)
from stamm.models.decoder import Decoder, build_decoder
from stamm.observe.config import ObserveConfig
from stamm.observe.model import ObservedText, observe_layers
from stamm.observe.taps import tapped

FFNS: dict[str, PlainFFN | GatedFFN] = {
    "plain": PlainFFN(width=24, activation="xielu"),
    "gated": GatedFFN(width=24, activation="swiglu"),
    "neurons": PlainFFN(width=24, activation="xielu", shapes="neuron"),
    "low rank": GatedFFN(width=24, activation="reglu", linear=LowRank(rank=4)),
}
POLICIES: tuple[MemoryPolicy, ...] = (SavePost(), SavePre(), Recompute())
TOKENS = torch.randint(64, (2, 9), generator=torch.Generator().manual_seed(1))


def decoder_of(ffn: PlainFFN | GatedFFN, memory: MemoryPolicy, recompute: bool = False) -> Decoder:
    """A decoder in an uncommon state: some weights are frozen, and one module is in evaluation mode."""
    config = DecoderConfig(
        vocab_size=64, d_model=16, num_layers=2, num_heads=2, ffn=replace(ffn, memory=memory),
        max_context=16, init_std=0.2,
    )  # fmt: skip
    decoder = build_decoder(config, seed=4).train()
    decoder.model.norm.requires_grad_(requires_grad=False)
    layers: Any = decoder.model.layers
    layers[1].self_attn.eval()
    for layer in layers:
        layer.recompute = recompute
    return decoder


def state(decoder: Decoder) -> list[Any]:
    """All that a context may change."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")
    layers: Any = decoder.model.layers
    return [
        [(name, t.requires_grad) for name, t in decoder.named_parameters()],
        [
            (name, module.training, *(len(getattr(module, kind)) for kind in hooks))
            for name, module in decoder.named_modules()
        ],
        [(layer.mlp.memory, layer.recompute) for layer in layers],
    ]


def seen_in(decoder: Decoder, names: list[str]) -> tuple[dict[str, list[Any]], Tensor]:
    """Inputs and output of each call of the taps in a forward and a backward pass, and the logits."""
    seen: dict[str, list[Any]] = {name: [] for name in names}
    hooks: dict[str, Any] = {
        name: lambda inputs, output, calls=calls: calls.append((inputs, output))
        for name, calls in seen.items()
    }
    with tapped(decoder, hooks):
        assert not decoder.training
        embedding = decoder.model.embed_tokens
        handle = embedding.register_forward_hook(lambda _m, _i, out: out.requires_grad_())
        logits = decoder(TOKENS)
        logits.sum().backward()
        handle.remove()
    return seen, logits


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
@pytest.mark.parametrize("form", FFNS)
def test_taps_of_every_block_and_policy(form: str, policy: MemoryPolicy, recompute: bool) -> None:
    """Would catch a tap that is called twice or never, that holds another tensor, or changes a bit."""
    decoder = decoder_of(FFNS[form], policy, recompute)
    before, weights = state(decoder), {n: t.clone() for n, t in decoder.state_dict().items()}
    plain = decoder(TOKENS)
    names = [f"layers.1{tap}" for tap in ("", ".self_attn", ".mlp.act_fn", ".mlp")]
    seen, logits = seen_in(decoder, names)
    assert [len(calls) for calls in seen.values()] == [1, 1, 1, 1]
    ((x, *_), y), (_, attended), (pre, post), ((inner,), added) = (seen[name][0] for name in names)
    layer: Any = decoder.model.layers[1]
    block = layer.mlp
    middle = x + attended
    normal = middle.double() / (middle.double().square().mean(-1, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(inner, normal.float(), rtol=1e-4, atol=1e-5)
    assert torch.equal(y, middle + added)
    projections = (
        [block.gate_proj, block.up_proj] if form in ("gated", "low rank") else [block.up_proj]
    )
    assert len(pre) == len(projections)
    for given, projection in zip(pre, projections, strict=True):
        torch.testing.assert_close(given, projection(normal.float()), rtol=1e-4, atol=1e-5)
    if form == "gated":
        gate, up = (t.double() for t in pre)
        expected = gate / (1 + (-gate).exp()) * up
        torch.testing.assert_close(post.double(), expected, rtol=1e-5, atol=1e-6)
    if form == "low rank":
        assert torch.equal(post, pre[0].relu() * pre[1])
    assert torch.equal(y, middle + block.down_proj(post))
    assert torch.equal(decoder.lm_head(decoder.model.norm(y)), logits)
    assert torch.equal(logits, plain)
    assert torch.equal(decoder(TOKENS), plain)
    assert state(decoder) == before
    for name, tensor in decoder.state_dict().items():
        assert torch.equal(tensor, weights[name])
    assert all(parameter.grad is None for parameter in decoder.parameters())


def test_a_context_that_raises_puts_everything_back() -> None:
    """Would catch what is restored only on the normal way out, in nested contexts too."""
    decoder = decoder_of(FFNS["plain"], Recompute(), recompute=True)
    before, plain = state(decoder), decoder(TOKENS)

    def fail(inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        raise RuntimeError("in a hook")

    with (
        pytest.raises(RuntimeError, match="in a hook"),
        tapped(decoder, {"layers.0": lambda _, out: out + 1}),
        tapped(decoder, {"layers.1.mlp.act_fn": fail}),
    ):
        decoder(TOKENS)
    assert state(decoder) == before
    assert torch.equal(decoder(TOKENS), plain)


def test_an_observed_decoder_can_be_trained_as_before() -> None:
    """Would catch an observation that leaves weights frozen or a policy changed."""
    decoder = decoder_of(FFNS["plain"], SavePre(), recompute=True)
    before, plain = state(decoder), decoder(TOKENS)
    text = ObservedText(name="t", sequences=tuple(TOKENS.tolist()), documents=2)
    observe_layers(ObserveConfig(), decoder, text, NoProgress())
    assert state(decoder) == before
    assert torch.equal(decoder(TOKENS), plain)


def test_what_a_hook_returns_replaces_the_output() -> None:
    """Attention replaced by 0 leaves the feed-forward block of the layer alone."""
    decoder = decoder_of(FFNS["gated"], SavePost())
    seen: list[Tensor] = []
    hooks: dict[str, Any] = {
        "layers.0.self_attn": lambda _, out: torch.zeros_like(out),
        "layers.0": lambda inputs, out: seen.extend([inputs[0], out]),
    }
    with tapped(decoder, hooks):
        decoder(TOKENS)
    layer: Any = decoder.model.layers[0]
    x, y = seen
    assert torch.equal(y, x + layer.mlp(layer.feedforward_layernorm(x)))


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("layers.2", "layer 2 does not exist: the model has 2 layers. Choose from 0 to 1"),
        ("layers.0.ffn", "layers.0.ffn is not a tap. Taps of layer 0: layers.0.mlp.act_fn"),
        ("layers.-1", "layers.-1 is not a tap"),
        ("norm", "norm is not a tap"),
    ],
)
def test_a_name_that_is_no_tap_is_refused(name: str, why: str) -> None:
    decoder = decoder_of(FFNS["plain"], SavePre())
    before = state(decoder)
    with pytest.raises(ConfigError) as raised, tapped(decoder, {name: lambda _i, _o: None}):
        pass
    assert why in str(raised.value)
    assert state(decoder) == before
