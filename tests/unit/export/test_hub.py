"""A decoder and what transformers makes of it: the same names, the same logits, both ways."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from stamm.base.errors import DataError, ExportError
from stamm.base.files import read_json, write_json
from stamm.models.config import DecoderConfig, GatedFFN, Llama3Rope, PlainFFN
from stamm.models.decoder import Decoder, build_decoder
from stamm.models.hf_architecture import hub_class
from stamm.models.hf_files import unused_keys
from stamm.models.hub import HubModel, HubSpecialIds, hub_config, hub_state, xielu_constants
from stamm.models.hub_folder import load_hub

SPECIAL = HubSpecialIds(begin=1, end=2, pad=3)
XIELU = PlainFFN(width=48, activation="xielu")


def config(**changes: Any) -> DecoderConfig:
    base: dict[str, Any] = {
        "vocab_size": 97,
        "d_model": 32,
        "num_layers": 2,
        "ffn": XIELU,
        "max_context": 64,
        "init_std": 0.2,
    }
    return DecoderConfig(**{**base, **changes})


@pytest.fixture
def tokenizer(inputs: dict[str, Path]) -> bytes:
    return (inputs["tokenizer"] / "tokenizer.json").read_bytes()


def spread(decoder: Decoder, seed: int = 4) -> Decoder:
    """Moves norms and shapes off their initial values, which would hide a swapped tensor."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in decoder.parameters():
            if parameter.dim() < 2:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return decoder


def written(decoder: Decoder, folder: Path, tokenizer: bytes = b"") -> Path:
    folder.mkdir(exist_ok=True)
    write_json(folder / "config.json", hub_config(decoder.config, SPECIAL))
    save_file(hub_state(decoder), folder / "model.safetensors", metadata={"format": "pt"})
    if tokenizer:
        (folder / "tokenizer.json").write_bytes(tokenizer)
        write_json(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"})
    return folder


CASES = {
    "ApertusForCausalLM": {"rope": Llama3Rope(original_context=16), "head_dim": 12},
    "Qwen3ForCausalLM": {"ffn": GatedFFN(width=40), "tied_embeddings": True},
    "LlamaForCausalLM": {"ffn": GatedFFN(width=40, activation="geglu"), "qk_norm": False},
    "Qwen2ForCausalLM": {"ffn": GatedFFN(width=40), "qk_norm": False, "qkv_bias": True},
    "ArceeForCausalLM": {"ffn": PlainFFN(width=40, activation="relu2"), "qk_norm": False},
}


@pytest.mark.parametrize("architecture", CASES)
def test_logits_equal_those_of_transformers(
    architecture: str, tmp_path: Path, tokenizer: bytes
) -> None:
    decoder = spread(build_decoder(config(**CASES[architecture]), seed=3))
    assert hub_class(decoder.config).architecture == architecture
    model = HubModel(written(decoder, tmp_path / "hub", tokenizer))
    assert type(model._model).__name__ == architecture
    tokens = torch.randint(97, (3, 60), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        ours = decoder(tokens)
    theirs = model.logits(tokens)
    assert theirs.dtype == torch.float32
    assert float((ours - theirs).abs().max() / ours.abs().max()) <= 1e-5
    again = load_hub(tmp_path / "hub")
    for name, tensor in decoder.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name
    assert hub_config(again.config, SPECIAL) == hub_config(decoder.config, SPECIAL)
    unknown, sentences = unused_keys(tmp_path / "hub")
    assert (unknown.counts(), sentences) == ({}, [])


@pytest.mark.parametrize("activation", ["xielu", "relu2", "relu", "gelu", "silu"])
def test_plain_activations_compute_the_same_function(
    activation: str, tmp_path: Path, tokenizer: bytes
) -> None:
    ffn = PlainFFN(width=48, activation=activation)
    decoder = spread(build_decoder(config(ffn=ffn, num_layers=1), seed=3))
    theirs = HubModel(written(decoder, tmp_path / "hub", tokenizer))
    x = torch.cat((torch.linspace(-12, 12, 2001), torch.tensor([0.0, -0.0, 1e-5, -1e-5])))
    act = decoder.model.layers[0].get_submodule("mlp.act_fn")
    other = theirs._model.model.layers[0].mlp.act_fn
    with torch.no_grad():
        torch.testing.assert_close(act(x), other(x), rtol=2e-6, atol=2e-6)


def test_names_and_shapes_are_those_of_apertus() -> None:
    decoder = build_decoder(config(), seed=1)
    state = hub_state(decoder)
    own = decoder.state_dict()
    added = {f"model.layers.{i}.mlp.act_fn.{n}" for i in (0, 1) for n in ("beta", "eps")}
    assert set(state) == set(own) | added
    for name, tensor in own.items():
        assert state[name].shape == tensor.shape
    raw = state["model.layers.0.mlp.act_fn.alpha_p"]
    assert raw.shape == (1,)
    assert float(raw) == pytest.approx(0.2033823208, abs=1e-7)  # softplus^-1(0.8): stored raw
    assert float(state["model.layers.0.mlp.act_fn.alpha_n"]) == pytest.approx(-1.0502256, abs=1e-6)
    assert xielu_constants() == {"beta": 0.5, "eps": -1e-6}


def test_llama_names_replace_ours() -> None:
    state = hub_state(build_decoder(config(ffn=GatedFFN(width=40), qk_norm=False), seed=1))
    assert "model.layers.1.input_layernorm.weight" in state
    assert "model.layers.1.post_attention_layernorm.weight" in state
    assert not [name for name in state if "attention_layernorm" in name and "post_" not in name]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"qkv_bias": True},
            r"biases of queries, keys and values only in Qwen2.*model\.qkv_bias = True",
        ),
        ({"qk_norm": False}, r"'xielu' in float32 only inside Apertus.*model\.qk_norm=true"),
        (
            {"ffn": GatedFFN(width=48), "qk_norm": False, "num_heads": 3, "num_kv_heads": 3}
            | {"head_dim": 8},
            r"d_model = 32 does not divide by num_heads = 3",
        ),
    ],
)
def test_what_no_class_holds_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ExportError, match=message):
        hub_config(config(**changes), SPECIAL)


def test_effective_values_are_loaded_when_said_so(tmp_path: Path) -> None:
    decoder = spread(build_decoder(config(), seed=1))
    folder = written(decoder, tmp_path / "hub")
    state = load_file(folder / "model.safetensors")
    for layer in decoder.model.layers:
        effective = layer.get_submodule("mlp.act_fn").effective()  # type: ignore[operator]
        index = list(decoder.model.layers).index(layer)
        for name in ("alpha_p", "alpha_n"):
            state[f"model.layers.{index}.mlp.act_fn.{name}"] = torch.tensor([effective[name]])
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    again = load_hub(folder, stored="effective")
    tokens = torch.arange(60)[None]
    with torch.no_grad():
        torch.testing.assert_close(again(tokens), decoder(tokens), rtol=1e-5, atol=1e-5)
        assert float((load_hub(folder)(tokens) - decoder(tokens)).abs().max()) > 1e-2
    state["model.layers.1.mlp.act_fn.alpha_n"] = torch.tensor([0.1])
    save_file(state, folder / "model.safetensors")
    with pytest.raises(DataError, match=r'layer 1 .*alpha_n = 0\.1.*stored="raw"'):
        load_hub(folder, stored="effective")


def test_compat_eps_is_transformers_bit_for_bit(tmp_path: Path, tokenizer: bytes) -> None:
    decoder = spread(build_decoder(config(), seed=1))
    folder = written(decoder, tmp_path / "hub", tokenizer)
    act = load_hub(folder, compat="eps").model.layers[0].get_submodule("mlp.act_fn")
    x = torch.linspace(-5, 5, 1001)
    with torch.no_grad():
        assert torch.equal(act(x), HubModel(folder)._model.model.layers[0].mlp.act_fn(x))


def test_sixteen_bit_shards_are_read_and_stay_in_their_folder(tmp_path: Path) -> None:
    decoder = spread(build_decoder(config(), seed=1))
    folder = written(decoder, tmp_path / "hub")
    state = {name: t.bfloat16() for name, t in load_file(folder / "model.safetensors").items()}
    (folder / "model.safetensors").unlink()
    shards: list[dict[str, torch.Tensor]] = [{}, {}]
    for place, (name, tensor) in enumerate(sorted(state.items())):
        shards[place % 2][name] = tensor
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    for name, shard in zip(names, shards, strict=True):
        save_file(shard, folder / name)
    weight_map = {key: name for name, shard in zip(names, shards, strict=True) for key in shard}
    write_json(folder / "model.safetensors.index.json", {"weight_map": weight_map})
    again = load_hub(folder)
    assert {tensor.dtype for tensor in again.state_dict().values()} == {torch.float32}
    wanted = decoder.model.embed_tokens.weight.bfloat16().float()
    assert torch.equal(again.model.embed_tokens.weight, wanted)
    weight_map["lm_head.weight"] = "../secret.safetensors"
    write_json(folder / "model.safetensors.index.json", {"weight_map": weight_map})
    with pytest.raises(DataError, match=r"points outside its folder: '\.\./secret"):
        load_hub(folder)


@pytest.mark.parametrize("index", [{}, [], {"weight_map": None}, {"weight_map": {"a": 3}}])
def test_an_index_that_names_no_files(tmp_path: Path, index: object) -> None:
    folder = written(build_decoder(config(), seed=1), tmp_path / "hub")
    (folder / "model.safetensors").unlink()
    write_json(folder / "model.safetensors.index.json", index)
    with pytest.raises(DataError, match=r"index\.json has no weight_map"):
        load_hub(folder)


def test_older_rope_keys_are_read(tmp_path: Path) -> None:
    folder = written(build_decoder(config(rope=Llama3Rope(theta=1e4)), seed=1), tmp_path / "hub")
    plain = read_json(folder / "config.json")
    scaling = plain.pop("rope_parameters")
    plain["rope_theta"] = scaling.pop("rope_theta")
    plain["rope_scaling"] = scaling
    write_json(folder / "config.json", plain)
    assert load_hub(folder).config.rope == Llama3Rope(theta=1e4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gpt2"}, r"model_type = 'gpt2' is not supported.*Known: apertus, arcee"),
        ({"hidden_act": "mish"}, r"hidden_act = 'mish' is not supported.*Known: gelu, relu"),
        (
            {"attention_bias": True},
            r"attention_bias = True adds biases.*not supported in config\.json of apertus",
        ),
        ({"sliding_window": 0}, r"sliding_window = 0 .*Write the window"),
        ({"rope_parameters": {"rope_type": "yarn"}, "rope_scaling": None}, r"rope_type = 'yarn'"),
        (
            {"rope_parameters": {"rope_type": "yarn"}, "rope_scaling": {"type": "llama3"}},
            r"rope_type has two values, 'yarn' and 'llama3'.*Remove the wrong one",
        ),
        ({"rope_theta": 2.0}, r"rope_theta has two values, [\d.]+ and 2\.0"),
        (
            {"rope_parameters": None, "rope_theta": 1e4, "rope_scaling": {"type": "linear"}},
            r"rope_type = 'linear' is not supported",
        ),
        (
            {"rope_parameters": {"partial_rotary_factor": 0.5}},
            r"partial_rotary_factor = 0\.5 is not supported",
        ),
        ({"partial_rotary_factor": 0.25}, r"partial_rotary_factor = 0\.25 is not supported"),
        ({"rope_parameters": None, "rope_scaling": None}, r"has no rope_parameters"),
        (
            {"hidden_size": None},
            r"does not describe a decoder: d_model = None is not a whole number",
        ),
        (
            {"rope_parameters": {"rope_type": "default", "rope_theta": "a"}, "rope_theta": "a"}
            | {"rope_scaling": None},
            r"rope\.theta = 'a' is not a number",
        ),
        ({"num_key_value_heads": 3}, r"does not describe a decoder.*does not divide"),
        (
            {"intermediate_size": 44},
            r"do not fit config\.json: .*mlp.up_proj.weight has the shape \(48, 32\), and not \(44, 32\)",
        ),
    ],
)
def test_folders_that_are_no_stamm_decoder(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    folder = written(build_decoder(config(), seed=1), tmp_path / "hub")
    write_json(folder / "config.json", {**read_json(folder / "config.json"), **changes})
    with pytest.raises(DataError, match=message):
        load_hub(folder)


def test_damaged_folders_are_named(tmp_path: Path) -> None:
    decoder = build_decoder(config(), seed=1)
    folder = written(decoder, tmp_path / "hub")
    state = load_file(folder / "model.safetensors")
    state["model.layers.0.mlp.act_fn.beta"] = torch.tensor(0.7)
    save_file(state, folder / "model.safetensors")
    with pytest.raises(DataError, match=r"beta = 0\.69\d+ in the checkpoint"):
        load_hub(folder)
    (folder / "model.safetensors").write_bytes(b"not weights at all")
    with pytest.raises(DataError, match=r"model\.safetensors cannot be read"):
        load_hub(folder)
    plain = read_json(folder / "config.json")
    del plain["hidden_size"]
    write_json(folder / "config.json", plain)
    with pytest.raises(DataError, match="has no 'hidden_size'"):
        load_hub(folder)


def test_transformers_may_not_fill_in_missing_tensors(tmp_path: Path, tokenizer: bytes) -> None:
    folder = written(build_decoder(config(), seed=1), tmp_path / "hub", tokenizer)
    state = load_file(folder / "model.safetensors")
    del state["model.norm.weight"]
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ExportError, match=r"does not load .* unchanged.*model\.norm\.weight"):
        HubModel(folder)


def test_transformers_may_not_lower_the_precision(tmp_path: Path, tokenizer: bytes) -> None:
    folder = written(build_decoder(config(), seed=1), tmp_path / "hub", tokenizer)
    write_json(folder / "config.json", {**read_json(folder / "config.json"), "dtype": "bfloat16"})
    with pytest.raises(ExportError, match=r"not float32"):
        HubModel(folder)


def test_an_empty_folder_cannot_be_loaded(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"transformers cannot load .*empty"):
        HubModel(tmp_path / "empty")


def test_missing_transformers_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ExportError, match=r"cannot be imported.*pip install 'stamm\[align\]'"):
        HubModel(tmp_path)
