"""The last matrix of a block, refit to another activation."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from stamm.activations.catalog.registry import spec_of
from stamm.activations.fit import ActivationFit
from stamm.adapt.blocks import weighted
from stamm.adapt.refit import RIDGE, copy_weights, fit_layers, refit_layers
from stamm.adapt.sample import sample_layers
from stamm.models.config import DecoderConfig, GatedFFN, PlainFFN, Recompute
from stamm.models.decoder import Decoder, build_decoder

TEXT = [[(7 * n + 3 * i) % 60 + 1 for i in range(4 + n % 20)] for n in range(40)]


def _decoder(ffn: PlainFFN | GatedFFN) -> Decoder:
    config = DecoderConfig(
        vocab_size=64, d_model=16, num_layers=2, num_heads=2, ffn=ffn, init_std=0.3, max_context=32
    )
    return build_decoder(config, seed=5).eval()


def _fit(raw: dict[str, float], scale: float = 1.0, behind: float = 1.0) -> ActivationFit:
    return ActivationFit(
        raw=raw, input_scale=scale, output_scale=behind, error=0.0, initial_error=0.0
    )


def _features(decoder: Decoder, layer: int) -> list[torch.Tensor]:
    """Inputs of the activation of a layer on every text, one after another."""
    block: Any = decoder.model.layers[layer].mlp
    kept: list[tuple[torch.Tensor, ...]] = []
    handle = block.act_fn.register_forward_hook(lambda _m, inputs, _o: kept.append(inputs))
    with torch.no_grad():
        for one in TEXT:
            decoder.model(torch.tensor([one[:-1]]))
    handle.remove()
    return [torch.cat([part.flatten(0, -2) for part in parts]) for parts in zip(*kept, strict=True)]


@pytest.mark.parametrize("ffn", [PlainFFN(width=24), GatedFFN(width=16, activation="swiglu")])
def test_the_same_activation_leaves_the_matrix(ffn: PlainFFN | GatedFFN) -> None:
    decoder = _decoder(ffn)
    spec = ffn.spec
    raw = spec.raw_values({p.name: p.initial for p in spec.trainable})
    for layer, found in enumerate(refit_layers(decoder, spec, [_fit(raw)] * 2, TEXT, 64)):
        block: Any = decoder.model.layers[layer].mlp
        assert torch.allclose(found.weight, block.down_proj.weight, atol=1e-5)
        assert abs(found.error) < 1e-9 and abs(found.scaled) < 1e-9


@pytest.mark.parametrize(
    ("ffn", "after"),
    [
        (PlainFFN(width=24, activation="silu"), "relu"),
        (GatedFFN(width=16, activation="swiglu"), "reglu"),
    ],
)
def test_the_matrix_is_that_of_a_ridge_regression(ffn: PlainFFN | GatedFFN, after: str) -> None:
    decoder = _decoder(ffn)
    (_, found) = refit_layers(decoder, spec_of(after), [_fit({}, 0.5, 1.5)] * 2, TEXT, 64)
    inputs = [each.double() for each in _features(decoder, 1)]
    block: Any = decoder.model.layers[1].mlp
    weight = block.down_proj.weight.detach().double()
    up = inputs[1] if len(inputs) > 1 else 1.0
    old, new = torch.nn.functional.silu(inputs[0]) * up, torch.relu(0.5 * inputs[0]) * up
    ridge = RIDGE * float(new.square().sum(0).mean())
    rows = torch.cat([new, ridge**0.5 * torch.eye(new.shape[1], dtype=torch.float64)])
    wanted = torch.cat([old @ weight.T, ridge**0.5 * 1.5 * weight.T])
    solved = torch.linalg.lstsq(rows, wanted).solution.T
    assert torch.allclose(found.weight.double(), solved, atol=1e-4)
    whole = (old @ weight.T).square().sum()
    missed = (old @ weight.T - new @ found.weight.double().T).square().sum() / whole
    assert found.error == pytest.approx(float(missed), rel=1e-3)
    scaled = (old @ weight.T - 1.5 * new @ weight.T).square().sum() / whole
    assert found.scaled == pytest.approx(float(scaled), rel=1e-3)
    assert found.error < found.scaled


def test_a_sample_has_the_weight_of_an_error_in_the_output() -> None:
    decoder = _decoder(GatedFFN(width=16, activation="swiglu"))
    sample = sample_layers(decoder, spec_of("reglu"), TEXT, 64)[0]
    gate, up = (each.double() for each in _features(decoder, 0))
    block: Any = decoder.model.layers[0].mlp
    column = block.down_proj.weight.detach().double().square().sum(0)
    # All of a small text is kept, in batches of texts of similar length.
    assert sample.x.sort().values.tolist() == pytest.approx(
        gate.flatten().sort().values.tolist(), abs=1e-5
    )
    assert float(sample.weight.sum()) == pytest.approx(
        float((up.square() * column).sum()), rel=1e-5
    )
    assert sample.f.tolist() == pytest.approx(torch.nn.functional.silu(sample.x).tolist())


def test_units_are_turned_where_a_function_of_up_asks_for_it() -> None:
    """The decoder's function stays the same to the last bit, and half of a random model's units change signs."""
    decoder = _decoder(GatedFFN(width=16, activation="swiglu"))
    ids = torch.tensor([TEXT[-1]])
    with torch.no_grad():
        before = decoder(ids)
    first: Any = decoder.model.layers[0].mlp
    old_up = first.up_proj.weight.detach().clone()
    fits = fit_layers(decoder, spec_of("drelu"), TEXT, 64)
    with torch.no_grad():
        assert torch.equal(decoder(ids), before)
    turned = (first.up_proj.weight == -old_up).all(1)
    assert 0 < int(turned.sum()) < 16
    gate, up = (each.double() for each in _features(decoder, 0))
    for unit in range(16):
        h = torch.nn.functional.silu(gate[:, unit]) * up[:, unit]
        relu_gate, column = torch.relu(gate[:, unit]), up[:, unit]
        kept = (h - relu_gate * torch.relu(column)).square().sum()
        other = (h + relu_gate * torch.relu(-column)).square().sum()
        assert kept <= other * (1 + 1e-5)
    # The stored model computes c g(s x) h(t u) with the refit matrix.
    new = _decoder(GatedFFN(width=16, activation="drelu"))
    copy_weights(decoder, new, fits)
    fit, matrix = fits[0]
    wanted = torch.relu(fit.input_scale * gate) * torch.relu(fit.up_scale * up)
    block: Any = new.model.layers[0].mlp
    new_gate, new_up = (each.double() for each in _features(new, 0))
    assert torch.allclose(torch.relu(new_gate) * torch.relu(new_up), wanted, atol=1e-5)
    weight = first.down_proj.weight.detach().double()
    old = (torch.nn.functional.silu(gate) * up) @ weight.T
    missed = (old - wanted @ block.down_proj.weight.detach().double().T).square().sum()
    assert matrix.error == pytest.approx(float(missed / old.square().sum()), rel=1e-3)


@pytest.mark.parametrize("call", ["sample", "refit", "blocks"])
def test_what_is_observed_keeps_its_memory_policy(call: str) -> None:
    """Would catch a model that trains on with another policy, frozen, or with a hook left in it."""
    decoder = _decoder(PlainFFN(width=24, activation="relu", memory=Recompute()))
    layers: Any = decoder.model.layers
    if call == "sample":
        sample_layers(decoder, spec_of("relu"), TEXT, 200)
    elif call == "refit":
        refit_layers(decoder, spec_of("relu"), [_fit({}), _fit({})], TEXT, 200)
    else:
        with weighted(decoder, [torch.zeros_like] * 2), torch.no_grad():
            x_BTD = decoder.model.embed_tokens(torch.tensor([TEXT[3]]))
            assert not layers[0].mlp(x_BTD).any()
    assert [layer.mlp.memory for layer in layers] == [Recompute()] * 2
    assert all(parameter.requires_grad for parameter in decoder.parameters())
    assert not any(
        module._forward_hooks or module._forward_pre_hooks for module in decoder.modules()
    )
