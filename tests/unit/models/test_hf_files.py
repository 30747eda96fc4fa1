"""Keys of Hugging Face configurations: every key that transformers writes is known, and has its effect."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import transformers

from stamm.base.errors import DataError
from stamm.base.files import write_json
from stamm.models.hf_files import DEFAULTS, GENERATION_KEYS, config_keys, end_ids, unused_keys
from stamm.models.hub_folder import load_hub, load_hub_config
from tests.unit.models.conftest import TYPES
from tests.unit.models.test_hub_folder import copied, distance

# Keys that transformers 4.57 writes, or reads from older files, and 5.23 does not.
OLDER = (
    "add_cross_attention", "bad_words_ids", "begin_suppress_tokens", "cross_attention_hidden_size",
    "decoder_start_token_id", "diversity_penalty", "do_sample", "early_stopping",
    "encoder_no_repeat_ngram_size", "exponential_decay_length_penalty", "finetuning_task",
    "forced_bos_token_id", "forced_eos_token_id", "is_decoder", "length_penalty", "max_length",
    "min_length", "no_repeat_ngram_size", "num_beam_groups", "num_beams", "num_labels",
    "num_return_sequences", "output_scores", "prefix", "pruned_heads", "remove_invalid_values",
    "repetition_penalty", "return_dict_in_generate", "rope_scaling", "rope_theta", "sep_token_id",
    "suppress_tokens", "task_specific_params", "temperature", "tf_legacy_loss", "tie_encoder_decoder",
    "tokenizer_class", "top_k", "top_p", "torch_dtype", "torchscript", "typical_p", "use_bfloat16",
    "quantization_config", "partial_rotary_factor", "auto_map",
)  # fmt: skip
# Another value of each key than its default, where the value changes what some class computes.
CHANGED: dict[str, Any] = {
    "attention_bias": True, "mlp_bias": True, "head_dim": 16, "hidden_act": "gelu",
    "layer_types": ["sliding_attention", "sliding_attention"], "max_window_layers": 0,
    "num_attention_heads": 2, "num_key_value_heads": 1, "pretraining_tp": 2, "rms_norm_eps": 0.1,
    "rope_parameters": {"rope_type": "default", "rope_theta": 50.0}, "rope_theta": 50.0,
    "rope_scaling": {"rope_type": "linear", "factor": 4.0}, "sliding_window": 8,
    "use_sliding_window": True, "tie_word_embeddings": True, "is_decoder": True,
    "is_encoder_decoder": True, "add_cross_attention": True, "tie_encoder_decoder": True,
    "cross_attention_hidden_size": 8, "pruned_heads": {"0": [1]}, "partial_rotary_factor": 0.5,
    "quantization_config": {"quant_method": "awq"}, "auto_map": {"AutoConfig": "x.Y"},
    "vocab_size": 65, "hidden_size": 64, "intermediate_size": 24, "num_hidden_layers": 1,
    "attention_dropout": 0.5, "initializer_range": 0.5, "max_position_embeddings": 128,
    "architectures": ["LlamaForTokenClassification"], "chunk_size_feed_forward": 2,
    "problem_type": "regression", "num_labels": 5, "use_cache": False, "temperature": 3.0,
}  # fmt: skip
# What the refusal names instead: sizes are refused where the tensors have others.
SAYS = {
    "layer_types": ("layer_types", "sliding_window"),
    "rope_scaling": ("rope_type",),
    "max_window_layers": ("sliding_window",),
}
BY_TENSORS = dict.fromkeys(
    ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "head_dim", "hidden_act",
     "num_attention_heads", "num_key_value_heads"),
    ("do not fit config.json", "does not describe a decoder"),
)  # fmt: skip


@pytest.mark.parametrize("name", TYPES)
def test_every_key_of_a_class_is_known(name: str) -> None:
    config = transformers.AutoConfig.for_model(name)
    fields = {field.name for field in dataclasses.fields(config) if not field.name.startswith("_")}
    written = dict.fromkeys([*config.to_dict(), *fields, *OLDER], 1)
    assert config_keys(name).unknown(written) == []
    assert config_keys(name).unknown({**written, "sequence_mixer": 1}) == ["sequence_mixer"]


@pytest.mark.parametrize("name", TYPES)
def test_defaults_are_those_of_the_class(name: str) -> None:
    config = transformers.AutoConfig.for_model(name)
    for key, value in DEFAULTS[name].items():
        expected = config.hidden_size // config.num_attention_heads if key == "head_dim" else None
        assert value == (expected or getattr(config, key)), key


@pytest.mark.parametrize("key", CHANGED)
@pytest.mark.parametrize("name", TYPES)
def test_a_key_has_its_effect_or_is_refused(
    name: str,
    key: str,
    folders: dict[str, Path],
    tmp_path: Path,
) -> None:
    folder = copied(folders[name], tmp_path / "hub", {key: CHANGED[key]})
    try:
        load_hub(folder)
    except DataError as error:
        names = BY_TENSORS.get(key, SAYS.get(key, (key,)))
        assert any(name in error.what for name in names), error.what
    else:
        assert distance(folder) <= 1e-5


# config.json of published models, as far as it has more than the sizes of a class.
_COMMON = {
    "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": [2, 3],
    "initializer_range": 0.02, "use_cache": True, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "transformers_version": "4.51.0", "rms_norm_eps": 1e-5,
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 99, "max_position_embeddings": 131072,
}  # fmt: skip
_LLAMA3 = {
    "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192, "rope_type": "llama3",
}  # fmt: skip
PUBLISHED: dict[str, dict[str, Any]] = {
    "Llama 3.1": {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "mlp_bias": False,
        "pretraining_tp": 1, "rope_scaling": _LLAMA3, "rope_theta": 500000.0, "hidden_act": "silu",
    },
    "Llama 1": {
        "model_type": "llama", "architectures": ["LLaMAForCausalLM"], "max_sequence_length": 2048,
        "pad_token_id": -1, "hidden_act": "silu",
    },
    "Apertus 8B": {
        "model_type": "apertus", "architectures": ["ApertusForCausalLM"], "hidden_dropout": 0.0,
        "mlp_bias": False, "post_norm": False, "qk_norm": True, "hidden_act": "xielu",
        "rope_scaling": {**_LLAMA3, "type": "llama3"}, "rope_theta": 12000000,
    },
    "Arcee": {
        "model_type": "arcee", "architectures": ["ArceeForCausalLM"], "mlp_bias": False,
        "head_dim": 16, "hidden_act": "relu2", "rope_scaling": None, "rope_theta": 10000.0,
    },
    "Qwen3": {
        "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "head_dim": 16,
        "max_window_layers": 36, "rope_scaling": None, "rope_theta": 1000000, "sliding_window": None,
        "use_sliding_window": False, "hidden_act": "silu",
    },
    "Mistral": {
        "model_type": "mistral", "architectures": ["MistralForCausalLM"], "head_dim": None,
        "rope_theta": 1000000.0, "sliding_window": None, "hidden_act": "silu",
    },
}  # fmt: skip


@pytest.mark.parametrize("model", PUBLISHED)
def test_published_configurations_are_read(model: str, tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", {**_COMMON, **PUBLISHED[model]})
    assert load_hub_config(tmp_path).d_model == 64


def test_every_key_of_generation_is_known() -> None:
    written = transformers.GenerationConfig().to_dict()
    assert GENERATION_KEYS.unknown(dict.fromkeys(written, 1)) == []


def test_the_ids_that_end_a_text_are_an_id_or_a_list(tmp_path: Path) -> None:
    assert end_ids(tmp_path) == ()
    for value, expected in ((7, (7,)), ([9, 7, 9, -1], (7, 9)), (None, ()), ([], ())):
        write_json(tmp_path / "generation_config.json", {"eos_token_id": value})
        assert end_ids(tmp_path) == expected
    for value in ("</s>", [1, "2"], True, 2.0):
        write_json(tmp_path / "generation_config.json", {"eos_token_id": value})
        with pytest.raises(DataError, match="neither an id nor a list of ids"):
            end_ids(tmp_path)


def test_unused_keys_are_named(folders: dict[str, Path], tmp_path: Path) -> None:
    added = {"sequence_mixer": 3, "rope_parameters": {"rope_theta": 1e4, "spiral": False}}
    folder = copied(folders["llama"], tmp_path / "hub", added)
    write_json(
        folder / "generation_config.json",
        {
            "eos_token_id": [1, 2],
            "temperature": 1.0,
            "top_k": 20,
            "suppress_tokens": [5],
            "novel": 1,
        },
    )
    unknown, sentences = unused_keys(folder)
    assert unknown.counts() == {"novel": 1, "rope_parameters.spiral": 1, "sequence_mixer": 1}
    assert sentences == [
        "generation_config.json is not used, texts are sampled as configured here:"
        " suppress_tokens = [5], top_k = 20."
    ]
    assert unused_keys(folders["apertus"])[0].counts() == {}
