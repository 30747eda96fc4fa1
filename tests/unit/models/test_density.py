"""The density loss of feed-forward units: its value and gradient, under every memory policy."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from stamm.losses.config import Density
from stamm.losses.language_model import LossOutput
from stamm.models.config import (
    DecoderConfig,
    GatedFFN,
    MemoryPolicy,
    PlainFFN,
    Recompute,
    SavePost,
    SavePre,
)
from stamm.models.decoder import Decoder, build_decoder
from stamm.models.ffn_checkpointing import unit_density

BLOCKS: dict[str, PlainFFN | GatedFFN] = {
    "plain": PlainFFN(width=24, activation="xielu"),
    "rectified": PlainFFN(width=24, activation="relu2"),
    "gated": GatedFFN(width=20, activation="swiglu"),
}
DENSITY = Density(weight=3.0, epsilon=0.01)
KEPT = 15.0


def decoder_of(ffn: PlainFFN | GatedFFN) -> Decoder:
    config = DecoderConfig(
        vocab_size=50, d_model=16, num_layers=2, num_heads=2, num_kv_heads=1, ffn=ffn, max_context=16
    )  # fmt: skip
    return build_decoder(config, seed=3)


def losses(decoder: Decoder, density: Density | None) -> LossOutput:
    random = torch.Generator().manual_seed(4)
    tokens_BT = torch.randint(50, (2, 10), generator=random)
    keep_BT = torch.ones(2, 9)
    keep_BT[1, 6:] = 0
    return decoder.losses(tokens_BT[:, :-1], tokens_BT[:, 1:], keep_BT, KEPT, density=density)


def gradients(decoder: Decoder, density: Density | None) -> tuple[LossOutput, list[Tensor]]:
    decoder.zero_grad()
    output = losses(decoder, density)
    output.loss.backward()
    return output, [p.grad.clone() for p in decoder.parameters() if p.grad is not None]


def test_the_units_have_the_gradient_of_finite_differences() -> None:
    random = torch.Generator().manual_seed(1)
    h_NC = torch.randn(5, 7, generator=random, dtype=torch.float64)
    h_NC[0, :3] = 0
    expected = (h_NC.square() / (h_NC.square() + 0.3)).mean(1)
    torch.testing.assert_close(unit_density(h_NC, 0.3), expected, rtol=1e-14, atol=0)
    h_NC.requires_grad_()
    assert torch.autograd.gradcheck(lambda h: unit_density(h, 0.3), (h_NC,))
    assert torch.autograd.gradgradcheck(lambda h: unit_density(h, 0.3), (h_NC,))
    small = torch.tensor([[0.0, 1e30, -1e30, 1e-30]], requires_grad=True)
    value = unit_density(small, 1.0)
    value.sum().backward()
    assert (
        float(value.detach()) == 0.5
        and small.grad is not None
        and bool(small.grad.isfinite().all())
    )


@pytest.mark.parametrize("name", ["plain", "gated"])
def test_the_whole_loss_has_the_gradient_of_finite_differences(name: str) -> None:
    """Float64, of the weighted term alone: the difference of the losses with and without it."""
    decoder = decoder_of(BLOCKS[name]).double()

    def term() -> Tensor:
        return losses(decoder, DENSITY).loss - losses(decoder, None).loss

    term().backward()
    random = torch.Generator().manual_seed(5)
    for parameter in (decoder.model.embed_tokens.weight, *decoder.model.layers[1].mlp.parameters()):
        direction = torch.randn(parameter.shape, generator=random, dtype=torch.float64)
        ends = []
        for step in (1e-6, -1e-6):
            with torch.no_grad():
                parameter += step * direction
                ends.append(float(term()))
                parameter -= step * direction
        slope = 0.0 if parameter.grad is None else float((parameter.grad * direction).sum())
        assert slope == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-5, abs=1e-9)


def test_the_mean_is_of_the_inputs_of_kept_targets() -> None:
    decoder = decoder_of(BLOCKS["gated"])
    kept: list[Tensor] = []
    for layer in decoder.model.layers:
        layer.get_submodule("mlp.act_fn").register_forward_hook(
            lambda *given: kept.append(given[2])
        )
    output = losses(decoder, DENSITY)
    mine = torch.stack([(h.square() / (h.square() + 0.01)).mean(-1) for h in kept]).mean(0)
    expected = (mine[0].sum() + mine[1, :6].sum()) / KEPT
    assert output.density is not None
    assert float(output.density) == pytest.approx(float(expected), rel=1e-6)
    assert float(output.loss) == pytest.approx(float(output.nll + 3.0 * expected), rel=1e-6)


@pytest.mark.parametrize("name", BLOCKS)
def test_weight_zero_has_the_bits_of_no_term(name: str) -> None:
    decoder = decoder_of(BLOCKS[name])
    without, expected = gradients(decoder, None)
    output, found = gradients(decoder, replace(DENSITY, weight=0.0))
    assert without.density is None and output.density is not None and float(output.density) > 0
    assert torch.equal(output.loss, without.loss)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    weighted = gradients(decoder, DENSITY)[1]
    assert not all(torch.equal(a, b) for a, b in zip(weighted, expected, strict=True))


@pytest.mark.parametrize("memory", [SavePre(), Recompute(), None])
@pytest.mark.parametrize("name", BLOCKS)
def test_memory_policies_have_equal_bits(name: str, memory: MemoryPolicy | None) -> None:
    """None: the whole layer is recomputed."""
    decoder = decoder_of(BLOCKS[name])
    expected, wanted = gradients(decoder, DENSITY)
    for layer in decoder.model.layers:
        layer.mlp.memory, layer.recompute = memory or SavePost(), memory is None  # type: ignore[union-attr]
    output, found = gradients(decoder, DENSITY)
    assert torch.equal(output.loss, expected.loss)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
