"""Shape parameters of the activation for every neuron of a feed-forward block."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from stamm.adapt.config import swapped_config
from stamm.base.errors import ConfigError, ExportError
from stamm.export.registry import load_support
from stamm.models.config import DecoderConfig, GatedFFN, PlainFFN
from stamm.models.decode_step import DecodeStep, run_prompts
from stamm.models.decoder import Decoder, build_decoder
from stamm.models.flops import count_parameters
from stamm.models.hf_architecture import hub_class
from stamm.models.parameter_shapes import parameter_shapes
from stamm.models.serialization import load_decoder, save_decoder
from stamm.pretrain.sequence_objective import shapes

BLOCKS = {
    "plain": PlainFFN(width=24, shapes="neuron"),
    "gated": GatedFFN(width=24, activation="xswiglu", shapes="neuron"),
}


def config(ffn: PlainFFN | GatedFFN) -> DecoderConfig:
    return DecoderConfig(
        vocab_size=61, d_model=32, num_layers=2, max_context=64, init_std=0.3, ffn=ffn
    )


def decoder(ffn: PlainFFN | GatedFFN, *, spread: float = 0.0) -> Decoder:
    """A float64 decoder; each shape parameter is moved by up to `spread`."""
    model = build_decoder(config(ffn), seed=5)
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if ".act_fn." in name:
                tensor.add_(spread * (2 * torch.rand(tensor.shape, generator=random) - 1))
    return model.double()


def tokens(count: int) -> torch.Tensor:
    return torch.randint(61, (2, count), generator=torch.Generator().manual_seed(count))


def activation_gradients(model: Decoder) -> dict[str, torch.Tensor]:
    model(tokens(9)).square().mean().backward()
    return {
        n: p.grad for n, p in model.named_parameters() if ".act_fn." in n and p.grad is not None
    }


@pytest.mark.parametrize("kind", BLOCKS)
def test_a_layer_of_equal_neurons_is_a_layer_with_one_shape(kind: str) -> None:
    """Same logits, and the gradients over the neurons add up to that of the one shape."""
    ffn = BLOCKS[kind]
    neuron = decoder(ffn)
    layer = decoder(type(ffn)(width=ffn.width, activation=ffn.activation))
    layer.load_state_dict(
        {n: t[:1] if ".act_fn." in n else t for n, t in neuron.state_dict().items()}
    )
    torch.testing.assert_close(neuron(tokens(9)), layer(tokens(9)))
    whole = activation_gradients(layer)
    each = activation_gradients(neuron)
    assert len(whole) == len(each) > 0
    for name, gradient in each.items():
        assert gradient.shape == (24,)
        assert len(set(gradient.tolist())) > 12  # 0 where no input has the sign
        torch.testing.assert_close(gradient.sum().reshape(1), whole[name])


@pytest.mark.parametrize("kind", BLOCKS)
def test_counts_and_names(kind: str) -> None:
    model = decoder(BLOCKS[kind])
    found = count_parameters(model.config)
    assert found.total == sum(p.numel() for p in model.parameters())
    assert found.activation == 2 * 24 * len(BLOCKS[kind].spec.trainable)
    assert parameter_shapes(model.config) == {
        name: tuple(p.shape) for name, p in model.named_parameters()
    }


@pytest.mark.parametrize("kind", BLOCKS)
def test_decoding_step_by_step(kind: str) -> None:
    model = decoder(BLOCKS[kind], spread=0.5)
    sequence = tokens(7)[0].tolist()
    step = DecodeStep(model, 1)
    step.fill(0, run_prompts(model, [sequence[:3]]), 0)
    for place in range(3, 7):
        logits = step(torch.tensor([sequence[place]]))
        torch.testing.assert_close(logits[0], model(torch.tensor([sequence[: place + 1]]))[0, -1])


def test_stored_and_loaded(tmp_path: Path) -> None:
    model = decoder(BLOCKS["plain"], spread=0.5).float()
    save_decoder(model, tmp_path)
    loaded = load_decoder(tmp_path)
    assert loaded.config == model.config
    assert torch.equal(loaded(tokens(9)), model(tokens(9)))


def test_metrics_are_means() -> None:
    model = decoder(BLOCKS["plain"], spread=0.5)
    values = model.model.layers[1].get_submodule("mlp.act_fn").effective_tensors()  # type: ignore[operator]
    found = shapes(model)
    assert found["shape/layers.1.alpha_p"] == pytest.approx(
        float(values[0].detach().mean()), rel=1e-12
    )
    assert found["shape/layers.1.beta"] == 0.5


@pytest.mark.parametrize("target", ["transformers", "gguf", "onnx"])
def test_no_export_takes_them(target: str) -> None:
    problems = tuple(load_support(target).check(config(BLOCKS["plain"]).merged()))
    assert len(problems) == 1
    assert "one set of parameters of 'xielu' per layer, not per neuron" in problems[0]
    with pytest.raises(ExportError, match="per neuron"):
        hub_class(config(BLOCKS["plain"]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"activation": "relu2"}, "changes nothing: relu2 has no trained parameters"),
        ({"compat": "eps"}, "has one shape per layer"),
    ],
)
def test_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PlainFFN(shapes="neuron", **options)  # type: ignore[arg-type]


def test_a_fitted_activation_has_one_shape() -> None:
    assert swapped_config(config(BLOCKS["plain"]), "xssslupr").ffn.shapes == "layer"
