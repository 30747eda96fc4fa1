"""Steering vectors: what is added, that nothing else changes, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from stamm.base.errors import ConfigError, DataError
from stamm.models.attention_mask import attention_inputs
from stamm.models.config import DecoderConfig, GatedFFN, LowRank, PlainFFN, Recompute, SavePre
from stamm.models.decode_step import DecodeStep, run_prompts
from stamm.models.decoder import Decoder, build_decoder
from stamm.models.generate import greedy
from stamm.models.steering import (
    SteeringHeader,
    SteeringVector,
    parameters_sha256,
    read_vector,
    steered,
    write_vector,
)

FFNS: dict[str, PlainFFN | GatedFFN] = {
    "plain": PlainFFN(width=24, activation="xielu", memory=Recompute()),
    "gated": GatedFFN(width=24, activation="swiglu", memory=SavePre()),
    "low rank": PlainFFN(width=24, activation="relu2", linear=LowRank(rank=4)),
}
TOKENS = torch.randint(64, (2, 9), generator=torch.Generator().manual_seed(1))


def decoder_of(form: str = "plain") -> Decoder:
    config = DecoderConfig(
        vocab_size=64, d_model=16, num_layers=3, num_heads=2, ffn=FFNS[form], max_context=32, init_std=0.2,
    )  # fmt: skip
    return build_decoder(config, seed=4)


def vector_of(decoder: Decoder, layers: Sequence[int] = (1,)) -> SteeringVector:
    drawn = torch.Generator().manual_seed(2)
    return SteeringVector(
        layers={layer: torch.randn(16, generator=drawn) for layer in layers},
        header=SteeringHeader(
            model_sha256=parameters_sha256(decoder), method="means", strength=0.5
        ),
    )


def by_hand(decoder: Decoder, vector: SteeringVector, strength: float) -> Tensor:
    """Logits with plain hooks of torch."""

    def hook(added: Tensor) -> Any:
        return lambda _module, _inputs, out: out + strength * added

    handles = [
        decoder.model.layers[n].register_forward_hook(hook(d)) for n, d in vector.layers.items()
    ]
    logits: Tensor = decoder(TOKENS)
    for handle in handles:
        handle.remove()
    return logits


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("form", FFNS)
def test_steering_adds_the_vector_behind_its_layers(form: str, recompute: bool) -> None:
    """Would catch another place or sign, a policy under which it is lost, and what is left behind."""
    decoder = decoder_of(form)
    layers: list[Any] = list(decoder.model.layers)
    for layer in layers:
        layer.recompute = recompute
    vector = vector_of(decoder, (0, 2))
    before = {name: tensor.clone() for name, tensor in decoder.state_dict().items()}
    plain, expected = decoder(TOKENS), by_hand(decoder, vector, -1.5)
    with steered(decoder, vector, -1.5):
        found = decoder(TOKENS)
        found.sum().backward()
    assert torch.equal(found, expected) and not torch.equal(found, plain)
    gradients = [p.grad.clone() for p in decoder.parameters() if p.grad is not None]
    decoder.zero_grad(set_to_none=True)
    by_hand(decoder, vector, -1.5).sum().backward()  # type: ignore[no-untyped-call]
    again = [p.grad for p in decoder.parameters() if p.grad is not None]
    assert all(torch.equal(one, other) for one, other in zip(gradients, again, strict=True))
    assert torch.equal(decoder(TOKENS), plain)
    assert [layer.mlp.memory for layer in layers] == [FFNS[form].memory] * 3
    for name, tensor in decoder.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_strength_zero_changes_no_bit_and_an_error_clears_the_vector() -> None:
    decoder = decoder_of()
    vector, plain = vector_of(decoder), decoder(TOKENS)
    with steered(decoder, vector, 0.0):
        assert torch.equal(decoder(TOKENS), plain)
    with pytest.raises(RuntimeError, match="stop"), steered(decoder, vector):
        raise RuntimeError("stop")
    assert torch.equal(decoder(TOKENS), plain)


def test_contexts_add_up() -> None:
    decoder = decoder_of()
    vector, plain = vector_of(decoder), decoder(TOKENS)
    with steered(decoder, vector, 1.0), steered(decoder, vector, 0.5):
        nested = decoder(TOKENS)
    torch.testing.assert_close(nested, by_hand(decoder, vector, 1.5), rtol=1e-5, atol=1e-6)
    assert torch.equal(decoder(TOKENS), plain)


def test_decoding_is_steered_like_a_forward_pass() -> None:
    """Would catch a KV cache, or the step that adds a token, without the vector."""
    decoder = decoder_of()
    decoder.eval()
    vector, prompt = vector_of(decoder, (1, 2)), TOKENS[:1]
    plain = greedy(decoder, prompt.tolist(), 6)
    with steered(decoder, vector, 2.0):
        whole = decoder(prompt)[:, -1]
        step = DecodeStep(decoder, 1)
        step.fill(0, run_prompts(decoder, [prompt[0, :-1].tolist()]), 0)
        torch.testing.assert_close(step(prompt[:, -1]), whole, rtol=1e-5, atol=1e-5)
        tokens = greedy(decoder, prompt.tolist(), 6)[0]
    ids = prompt
    for expected in tokens:
        assert int(by_hand_of(decoder, vector, ids).argmax()) == expected
        ids = torch.cat((ids, torch.tensor([[expected]])), dim=1)
    assert tokens != plain[0]
    assert greedy(decoder, prompt.tolist(), 6) == plain


def by_hand_of(decoder: Decoder, vector: SteeringVector, ids: Tensor) -> Tensor:
    x = decoder.model.embed_tokens(ids)
    rotation_and_mask = _inputs(decoder, ids.shape[1])
    for number, layer in enumerate(decoder.model.layers):
        x = layer(x, *rotation_and_mask)
        if number in vector.layers:
            x = x + 2.0 * vector.layers[number]
    logits: Tensor = decoder.lm_head(decoder.model.norm(x))[0, -1]
    return logits


def _inputs(decoder: Decoder, length: int) -> tuple[Any, Any]:
    inputs = attention_inputs(decoder.model, length, None, torch.float32)
    return inputs.rotation, inputs.mask


def test_a_file_has_the_vector_and_its_bytes_repeat(tmp_path: Path) -> None:
    vector = vector_of(decoder_of(), (2, 1))
    write_vector(tmp_path / "a.safetensors", vector)
    write_vector(tmp_path / "b.safetensors", vector)
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()
    found = read_vector(tmp_path / "a.safetensors")
    assert found.header == vector.header
    assert sorted(found.layers) == [1, 2]
    assert all(torch.equal(found.layers[n], vector.layers[n]) for n in (1, 2))
    with steered(decoder_of(), tmp_path / "a.safetensors") as decoder:
        assert decoder(TOKENS).isfinite().all()


def test_the_hash_is_of_the_parameters() -> None:
    decoder, same = decoder_of(), decoder_of()
    assert parameters_sha256(decoder) == parameters_sha256(same)
    with torch.no_grad():
        same.model.norm.weight[3] += 1e-7
    assert parameters_sha256(decoder) != parameters_sha256(same)


def test_a_vector_of_another_model_is_refused_unless_told() -> None:
    decoder = decoder_of()
    other = replace(vector_of(decoder), header=SteeringHeader(model_sha256="0" * 64, method="means", strength=1.0))  # fmt: skip
    with (
        pytest.raises(ConfigError, match=r"fitted to weights '000000000000'.*any_model=true"),
        steered(decoder, other),
    ):
        pass
    with steered(decoder, other, any_model=True):
        assert torch.equal(decoder(TOKENS), by_hand(decoder_of(), other, 1.0))


@pytest.mark.parametrize(
    ("layers", "strength", "why"),
    [
        ({3: 16}, 1.0, "the vector has a layer 3, and the model has layers 0 to 2"),
        ({1: 8}, 1.0, r"layer 1 of the vector has shape \(8,\), and the model is 16 wide"),
        ({1: 16}, float("inf"), "strength = inf is not finite"),
        ({1: 16}, float("nan"), "strength = nan is not finite"),
        ({1: 16}, 10**400, "strength = inf is not finite"),
        (
            {1: 16},
            1e39,
            "strength 1e\\+39 times layer 1 of the vector is not finite in torch.float32",
        ),
        ({-1: 16}, 1.0, "the vector has a layer -1, and the model has layers 0 to 2"),
    ],
)
def test_what_does_not_fit_is_refused(layers: dict[int, int], strength: float, why: str) -> None:
    decoder = decoder_of()
    header = vector_of(decoder).header
    vector = SteeringVector(layers={n: torch.ones(w) for n, w in layers.items()}, header=header)
    with pytest.raises(ConfigError, match=why), steered(decoder, vector, strength):
        pass


def test_a_model_of_another_library_is_refused() -> None:
    vector, model = vector_of(decoder_of()), nn.Linear(2, 2)
    with pytest.raises(ConfigError, match="a Linear cannot be steered"), steered(model, vector):  # type: ignore[arg-type]
        pass


HEADER = '{"model_sha256":"00","tap":"layers.N","method":"means","strength":1.0}'


@pytest.mark.parametrize(
    ("tensors", "header", "why"),
    [
        ({"layer.1": torch.ones(3)}, "", "its header lacks 'steering'"),
        ({"layer.1": torch.ones(3)}, "{}", "model_sha256"),
        (
            {"layer.1": torch.ones(3)},
            HEADER.replace("layers.N", "mlp"),
            "a tap that is not layers.N",
        ),
        ({"direction": torch.ones(3)}, HEADER, "a tensor that is not layer.N: 'direction'"),
        ({"layer.1": torch.ones(3, 1)}, HEADER, "layer.1 is not a vector of finite numbers"),
        ({"layer.1": torch.tensor([float("nan")])}, HEADER, "layer.1 is not a vector of finite"),
        ({"layer.1": torch.ones(3).to(torch.float8_e4m3fn)}, HEADER, "is not a vector of finite"),
        ({"layer.1": torch.full((3,), 1e300, dtype=torch.float64)}, HEADER, "not a vector of fin"),
        ({f"layer.{'9' * 5000}": torch.ones(3)}, HEADER, "a tensor that is not layer.N"),
        ({"layer.01": torch.ones(3)}, HEADER, "a tensor that is not layer.N: 'layer.01'"),
    ],
)
def test_files_that_are_no_vector_are_refused(
    tmp_path: Path, tensors: dict[str, Tensor], header: str, why: str
) -> None:
    path = tmp_path / "v.safetensors"
    save_file(tensors, path, {"steering": header} if header else None)
    with pytest.raises(DataError, match=why):
        read_vector(path)


def test_missing_and_damaged_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "v.safetensors"
    with pytest.raises(DataError, match="cannot read"):
        read_vector(path)
    path.write_bytes(b"damaged")
    with pytest.raises(DataError, match="is not a safetensors file"):
        read_vector(path)
