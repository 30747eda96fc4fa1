"""Hugging Face folders: the logits of transformers, or one line that names the key and its value."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from stamm.base.errors import DataError
from stamm.base.files import read_json, write_json
from stamm.models.hf_files import unused_keys
from stamm.models.hub_folder import load_hub
from tests.unit.models.conftest import TYPES

TOKENS = torch.arange(90)[None] % 64
State = dict[str, torch.Tensor]
PHI3_CODE = {
    "AutoConfig": "configuration_phi3.Phi3Config",
    "AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM",
}


def copied(
    source: Path,
    folder: Path,
    keys: dict[str, Any] | None = None,
    change: Callable[[State], object] | None = None,
) -> Path:
    """A copy with other keys (... removes one) and tensors."""
    folder.mkdir()
    config = {**read_json(source / "config.json"), **(keys or {})}
    write_json(folder / "config.json", {k: v for k, v in config.items() if v is not ...})
    state = load_file(source / "model.safetensors")
    if change is not None:
        change(state)
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@torch.no_grad()
def theirs(folder: Path) -> torch.Tensor:
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, local_files_only=True
    )
    logits: torch.Tensor = model.eval()(TOKENS, use_cache=False).logits
    return logits


@torch.no_grad()
def distance(folder: Path) -> float:
    """The largest difference of logits from those of transformers, over the largest logit, in the context."""
    decoder = load_hub(folder)
    tokens = TOKENS[:, : decoder.config.max_context]
    expected = theirs(folder)[:, : tokens.shape[1]]
    return float((decoder(tokens) - expected).abs().max() / expected.abs().max())


def without_prefix(state: State) -> None:
    for name in list(state):
        state[name.removeprefix("model.")] = state.pop(name)


def with_frequencies(scale: float) -> Callable[[State], None]:
    def change(state: State) -> None:
        values = scale * 10_000.0 ** (-torch.arange(0, 8, 2) / 8)
        for layer in range(2):
            state[f"model.layers.{layer}.self_attn.rotary_emb.inv_freq"] = values.clone()

    return change


def cast(dtype: torch.dtype, suffix: str = "") -> Callable[[State], None]:
    def change(state: State) -> None:
        for name in [name for name in state if name.endswith(suffix)]:
            state[name] = state[name].to(dtype)

    return change


def embedding_as_output(state: State) -> None:
    state["lm_head.weight"] = state.pop("model.embed_tokens.weight")


LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
OLD_ROPE: dict[str, Any] = {"rope_parameters": ..., "rope_theta": 500_000.0}
READ: dict[str, tuple[str, dict[str, Any], Callable[[State], object] | None]] = {
    **{name: (name, {}, None) for name in TYPES},
    "bfloat16": ("llama", {"dtype": "bfloat16"}, cast(torch.bfloat16)),
    "float16, old key": ("llama", {"dtype": ..., "torch_dtype": "float16"}, cast(torch.float16)),
    "float64": ("llama", {}, cast(torch.float64, "proj.weight")),
    "alphas in bfloat16": ("apertus", {}, cast(torch.bfloat16, "alpha_p")),
    "keys with defaults": (
        "llama",
        {"rms_norm_eps": ..., "initializer_range": ..., "hidden_act": ..., "rope_parameters": ...},
        None,
    ),
    "a key of eps with Apertus' default": ("apertus", {"rms_norm_eps": ...}, None),
    "no prefix": ("llama", {}, without_prefix),
    "rotary frequencies": ("llama", {}, with_frequencies(1)),
    "tied, both stored and different": ("llama", {"tie_word_embeddings": True}, None),
    "tied, the embedding alone": (
        "llama", {"tie_word_embeddings": True}, lambda s: s.pop("lm_head.weight"),
    ),
    "tied, the output matrix alone": ("llama", {"tie_word_embeddings": True}, embedding_as_output),
    "old rope keys": ("llama", OLD_ROPE | {"rope_scaling": None}, None),
    "old rope keys of Llama 3": ("llama", OLD_ROPE | {"rope_scaling": LLAMA3}, None),
    "old rope keys, the type named twice": (
        "apertus", OLD_ROPE | {"rope_scaling": LLAMA3 | {"type": "llama3"}}, None,
    ),
    "published Apertus": ("apertus", {"qk_norm": True, "post_norm": False, "mlp_bias": False}, None),
    "published Phi-3-mini-4k": (
        "phi3",
        {
            "auto_map": PHI3_CODE, "attention_bias": False, "embd_pdrop": 0.0, "resid_pdrop": 0.0,
            "original_max_position_embeddings": 96, "sliding_window": 90,
        },
        None,
    ),
    "pretraining_tp": ("llama", {"pretraining_tp": 2}, None),
    "a window of the whole context": ("mistral", {"sliding_window": 96}, None),
    "a window that is off, of Qwen2": (
        "qwen2", {"sliding_window": 16, "use_sliding_window": False, "layer_types": ...}, None,
    ),
    "a window that is off": ("qwen3", {"sliding_window": 16, "max_window_layers": 1}, None),
    "a window of no layer": (
        "qwen3",
        {"sliding_window": 16, "use_sliding_window": True, "max_window_layers": 2, "layer_types": ...},
        None,
    ),
    "labels": ("llama", {"id2label": {"0": "A"}, "label2id": {"A": 0}, "problem_type": "x"}, None),
}  # fmt: skip


@pytest.mark.parametrize("case", READ)
def test_logits_are_those_of_transformers(
    case: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    source, keys, change = READ[case]
    assert distance(copied(folders[source], tmp_path / "hub", keys, change)) <= 1e-5


def set_nan(state: State) -> None:
    state["model.norm.weight"][3] = torch.nan


def with_bias(state: State) -> None:
    for layer in range(2):
        for name in "qkv":
            size = len(state[f"model.layers.{layer}.self_attn.{name}_proj.weight"])
            state[f"model.layers.{layer}.self_attn.{name}_proj.bias"] = torch.ones(size)


def as_integers(state: State) -> None:
    state["model.layers.1.mlp.up_proj.weight"] = torch.ones(48, 32, dtype=torch.int8)


REFUSED: dict[str, tuple[str, dict[str, Any], Callable[[State], object] | None, str]] = {
    "biases": ("llama", {}, with_bias, r"does not have model\.layers\.0\.self_attn\.k_proj\.bias, .* and 3 more"),
    "another beta": ("apertus", {}, lambda s: s["model.layers.0.mlp.act_fn.beta"].fill_(0.7), r"act_fn\.beta = 0\.69\d* in the checkpoint"),
    "float8": ("llama", {}, cast(torch.float8_e4m3fn, "up_proj.weight"), r"up_proj\.weight in .* has the type F8_E4M3: quantized weights are not read"),
    "integers": ("llama", {}, as_integers, r"layers\.1\.mlp\.up_proj\.weight in .* has the type I8"),
    "nan": ("llama", {}, set_nan, r"model\.norm\.weight of the model contains NaN"),
    "other frequencies": ("llama", {}, with_frequencies(0.25), r"inv_freq is not that of rope_theta = 10000"),
    "untied without an output matrix": ("llama", {}, lambda s: s.pop("lm_head.weight"), r"they lack lm_head\.weight"),
    "a norm is missing": ("llama", {}, lambda s: s.pop("model.layers.1.input_layernorm.weight"), r"they lack model\.layers\.1\.input_layernorm\.weight"),
    "another vocabulary": ("llama", {"vocab_size": 70}, None, r"embed_tokens\.weight has the shape \(64, 32\), and not \(70, 32\)"),
    "a billion layers": ("llama", {"num_hidden_layers": 1_000_000_000}, None, r"num_layers = 1000000000 must lie in \[1, 10000\]"),
    "a wide head": ("llama", {"head_dim": 1 << 40}, None, r"q_proj\.weight has the shape \(32, 32\), and not"),
    "another act": ("llama", {"hidden_act": "gelu_new"}, None, r"hidden_act = 'gelu_new' is not supported"),
    "linear rope": ("llama", OLD_ROPE | {"rope_scaling": {"type": "linear", "factor": 4.0}}, None, r"rope_type = 'linear'"),
    "dynamic rope": ("llama", OLD_ROPE | {"rope_scaling": {"type": "dynamic", "factor": 4.0}}, None, r"rope_type = 'dynamic'"),
    "a factor without a type": ("llama", OLD_ROPE | {"rope_scaling": {"factor": 4.0}}, None, r"factor = 4\.0 is not used with rope_type = 'default'"),
    "a factor of attention": ("llama", OLD_ROPE | {"rope_scaling": LLAMA3 | {"attention_factor": 1.5}}, None, r"attention_factor = 1\.5 is not used"),
    "a classifier": ("llama", {"architectures": ["LlamaForSequenceClassification"]}, None, r"architectures = 'LlamaForSequenceClassification'"),
    "own code": ("llama", {"auto_map": {"AutoModelForCausalLM": "x.Y"}}, None, r"auto_map = .*is not executed"),
    "quantized": ("llama", {"quantization_config": {"quant_method": "fp8"}}, None, r"quantization_config = .*describes quantized weights"),
    "layers with a window": ("qwen3", {"layer_types": ["full_attention", "sliding_attention"]}, None, r"sliding_attention, and sliding_window = None"),
    "biases of attention": ("qwen3", {"attention_bias": True}, None, r"attention_bias = True adds biases"),
    "other code of Phi-3": ("phi3", {"auto_map": PHI3_CODE | {"AutoModelForCausalLM": "mine.Phi3ForCausalLM"}}, None, r"auto_map = .*is not executed"),
    "code of Phi-3 for Llama": ("llama", {"auto_map": PHI3_CODE}, None, r"auto_map = .*is not executed"),
    "another model": ("llama", {"model_type": "falcon"}, None, r"model_type = 'falcon' is not supported.*Known: apertus, arcee, llama, mistral, phi3, qwen2, qwen3"),
    "another block": ("llama", {"model_type": "gemma2"}, None, r"model_type = 'gemma2' .*It normalises after each block"),
    "matrices of another size stored as one": ("phi3", {"num_key_value_heads": 4}, None, r"qkv_proj\.weight has the shape"),
    "long positions": ("phi3", {"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}}, None, r"rope_type = 'longrope'"),
    "rope by layer type": ("llama", {"rope_parameters": {"full_attention": {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4}}}, None, r"full_attention = .* is unknown in rope_parameters"),
    "an unknown key of rope": ("llama", {"rope_parameters": {"rope_theta": 1e4, "spiral": 2}}, None, r"spiral = 2 is unknown in rope_parameters"),
    "another class": ("llama", {"architectures": ["LlamaBidirectionalModel"]}, None, r"architectures = 'LlamaBidirectionalModel' .*Known: LlamaForCausalLM, LlamaModel"),
    "the class of another type": ("llama", {"architectures": ["MistralForCausalLM"]}, None, r"architectures = 'MistralForCausalLM'"),
    "later tokens": ("llama", {"is_causal": False}, None, r"is_causal = False shows later tokens"),
    "capped logits": ("llama", {"logit_softcapping": 30.0}, None, r"logit_softcapping = 30\.0 caps"),
    "capped logits by another name": ("llama", {"logits_soft_cap": 30.0}, None, r"logits_soft_cap = 30\.0 caps"),
    "capped scores": ("llama", {"attn_logit_softcap": 50.0}, None, r"attn_logit_softcap = 50\.0 caps"),
    "alibi": ("llama", {"position_embedding_type": "alibi"}, None, r"position_embedding_type = 'alibi' replaces"),
    "another name of the act": ("llama", {"hidden_activation": "gelu"}, None, r"hidden_activation = 'gelu' replaces hidden_act"),
    "a part of the dimensions": ("llama", {"rotary_pct": 0.25}, None, r"rotary_pct = 0\.25"),
    "scaled logits": ("llama", {"lm_head_multiplier": 0.5}, None, r"lm_head_multiplier = 0\.5 scales"),
    "an unknown scale": ("qwen3", {"value_head_scale": 0.5}, None, r"value_head_scale = 0\.5 is unknown in config\.json of qwen3, and may change"),
    "an unknown norm": ("mistral", {"useSandwichNorm": True}, None, r"useSandwichNorm = True is unknown"),
    "no default of sizes": ("llama", {"num_attention_heads": ...}, None, r"config\.json has no 'num_attention_heads'"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_read_is_one_line(case: str, folders: dict[str, Path], tmp_path: Path) -> None:
    source, keys, change, message = REFUSED[case]
    with pytest.raises(DataError, match=message) as raised:
        load_hub(copied(folders[source], tmp_path / "hub", keys, change))
    assert "\n" not in str(raised.value)
    assert "state_dict" not in str(raised.value)


WINDOWS: dict[str, tuple[str, dict[str, Any]]] = {
    "of every layer": ("mistral", {"sliding_window": 16}),
    "of Phi-3": ("phi3", {"sliding_window": 16}),
    "of some layers": (
        "qwen3",
        {
            "sliding_window": 16,
            "use_sliding_window": True,
            "max_window_layers": 1,
            "layer_types": ...,
        },
    ),
    "of layers by name": (
        "qwen2",
        {
            "sliding_window": 16,
            "use_sliding_window": True,
            "layer_types": ["full_attention", "sliding_attention"],
        },
    ),
}


@pytest.mark.parametrize("case", WINDOWS)
def test_a_window_limits_the_context(case: str, folders: dict[str, Path], tmp_path: Path) -> None:
    """Up to the window nothing is hidden; one token more is, so that the limit is not too long."""
    source, keys = WINDOWS[case]
    folder = copied(folders[source], tmp_path / "hub", keys)
    decoder = load_hub(folder)
    assert decoder.config.max_context == 16
    with torch.no_grad():
        apart = (decoder(TOKENS) - theirs(folder)).abs().amax(dim=(0, 2))
    assert apart[:16].max() < 1e-4
    assert apart[16] > 1e-3
    assert any("contexts of up to 16 tokens" in sentence for sentence in unused_keys(folder)[1])


def test_the_usual_window_of_mistral(folders: dict[str, Path], tmp_path: Path) -> None:
    keys = {"sliding_window": ..., "max_position_embeddings": 8192}
    assert load_hub(copied(folders["mistral"], tmp_path / "a", keys)).config.max_context == 4096
    keys["sliding_window"] = None
    assert load_hub(copied(folders["mistral"], tmp_path / "b", keys)).config.max_context == 8192


def test_constants_of_xielu_may_be_missing(folders: dict[str, Path], tmp_path: Path) -> None:
    def drop(state: State) -> None:
        for name in [name for name in state if name.endswith((".beta", ".eps"))]:
            del state[name]

    whole = load_hub(folders["apertus"])
    again = load_hub(copied(folders["apertus"], tmp_path / "hub", change=drop))
    with torch.no_grad():
        assert torch.equal(again(TOKENS), whole(TOKENS))


def sharded(source: Path, folder: Path) -> list[Path]:
    """A copy with two files of weights."""
    copied(source, folder).joinpath("model.safetensors").unlink()
    state = load_file(source / "model.safetensors")
    files = [folder / f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    table = {}
    for number, file in enumerate(files):
        part = sorted(state)[number::2]
        save_file({name: state[name] for name in part}, file, metadata={"format": "pt"})
        table.update(dict.fromkeys(part, file.name))
    write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": table})
    return files


def test_files_of_a_model_belong_together(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "hub"
    first, second = sharded(folders["llama"], folder)
    assert distance(folder) <= 1e-5
    tensors = load_file(second)
    save_file(tensors | {"lm_head.weight": torch.zeros(64, 32)}, second)
    with pytest.raises(
        DataError, match=r"lm_head\.weight is stored twice, in .*00001.* and .*00002"
    ):
        load_hub(folder)
    save_file(tensors, second)
    index = folder / "model.safetensors.index.json"
    table = read_json(index)
    named = {**table["weight_map"], "model.layers.2.mlp.up_proj.weight": first.name}
    write_json(index, {**table, "weight_map": named})
    with pytest.raises(
        DataError, match=r"index\.json names model\.layers\.2.*and none of its files"
    ):
        load_hub(folder)
    write_json(index, table)
    write_json(folder / "adapter_config.json", {"peft_type": "LORA"})
    with pytest.raises(DataError, match=r"has adapter_config\.json beside its weights.*Merge it"):
        load_hub(folder)
    (folder / "adapter_config.json").unlink()
    second.rename(tmp_path / "moved")
    with pytest.raises(DataError, match=r"has no model-00002-of-00002\.safetensors, which .*index"):
        load_hub(folder)
    (tmp_path / "moved").rename(second)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(DataError, match=r"one of them is stale\. Remove"):
        load_hub(folder)
    for path in (
        first,
        second,
        folder / "model.safetensors",
        folder / "model.safetensors.index.json",
    ):
        path.unlink()
    torch.save({}, folder / "pytorch_model.bin")
    with pytest.raises(DataError, match=r"has no model\.safetensors, but pytorch_model\.bin"):
        load_hub(folder)


def test_a_configuration_that_is_no_object(tmp_path: Path) -> None:
    for stored in ([], "x", None):
        (tmp_path / "config.json").write_text(json.dumps(stored))
        with pytest.raises(DataError, match=r"config\.json is not a JSON object"):
            load_hub(tmp_path)
