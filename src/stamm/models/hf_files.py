"""Files of a Hugging Face folder: its weights, and the keys of config.json and generation_config.json.

Each key is read, known to change nothing, or refused by name. Neither torch nor transformers is loaded.

Source   transformers 5.23 and 4.57: configuration_utils.py (PreTrainedConfig), generation/configuration_utils.py,
         and the configuration classes of Llama, Mistral, Qwen3, Arcee and Apertus
Checked  tests/unit/models/test_hf_files.py, against those classes
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stamm.base.errors import DataError, visible
from stamm.base.files import read_json, sha256_file, sha256_value
from stamm.base.known_keys import ANY_KEY, KnownKeys, RefusedKey, UnknownKeys

CONFIG = "config.json"
GENERATION = "generation_config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
ADAPTER = "adapter_config.json"
TOKENIZER = "tokenizer.json"
ACTIVATION_KEY = "stamm_activation"
DEFAULTS: dict[str, dict[str, Any]] = {
    "apertus": {"hidden_act": "xielu", "rms_norm_eps": 1e-5, "max_position_embeddings": 65536},
    "arcee": {"hidden_act": "relu2", "rms_norm_eps": 1e-5, "max_position_embeddings": 4096},
    "llama": {"hidden_act": "silu", "rms_norm_eps": 1e-6, "max_position_embeddings": 2048},
    "mistral": {
        "hidden_act": "silu", "rms_norm_eps": 1e-6, "max_position_embeddings": 131072,
        "num_key_value_heads": 8, "sliding_window": 4096,
    },
    "phi3": {
        "hidden_act": "silu", "rms_norm_eps": 1e-5, "max_position_embeddings": 4096,
    },
    "qwen2": {
        "hidden_act": "silu", "rms_norm_eps": 1e-6, "max_position_embeddings": 32768,
        "num_key_value_heads": 32,
    },
    "qwen3": {
        "hidden_act": "silu", "rms_norm_eps": 1e-6, "max_position_embeddings": 32768,
        "num_key_value_heads": 32, "head_dim": 128,
    },
}  # fmt: skip
"""What the class of a model type takes for a key that config.json does not have."""

_BIAS = RefusedKey(
    meaning="adds biases, which a stamm decoder does not have", neutral=(False, "none")
)
_SCALE = RefusedKey(meaning="scales hidden states or logits", neutral=(0, 0.0, 1, 1.0))
_CAP = RefusedKey(meaning="caps scores or logits", neutral=(0, 0.0, False))
_CROSS = RefusedKey(meaning="describes a model with an encoder", neutral=(False,))
_ROUTED = RefusedKey(meaning="routes tokens to experts", neutral=(0,))
_REFUSED = {
    "quantization_config": RefusedKey(
        meaning="describes quantized weights", neutral=({},), fix="Use the unquantized model"
    ),
    "compression_config": RefusedKey(
        meaning="describes compressed weights", neutral=({},), fix="Use the uncompressed model"
    ),
    "pruned_heads": RefusedKey(meaning="removes heads from layers", neutral=({},)),
    "is_encoder_decoder": _CROSS,
    "add_cross_attention": _CROSS,
    "tie_encoder_decoder": _CROSS,
    "cross_attention_hidden_size": _CROSS,
    "use_bidirectional_attention": RefusedKey(meaning="shows later tokens", neutral=(False,)),
    "is_causal": RefusedKey(meaning="shows later tokens", neutral=(True,)),
    "position_embedding_type": RefusedKey(
        meaning="replaces rotary positions", neutral=("rope", "rotary")
    ),
    "hidden_activation": RefusedKey(meaning="replaces hidden_act", fix="Write it as hidden_act"),
    "rotary_pct": RefusedKey(meaning="rotates a part of the dimensions", neutral=(1, 1.0)),
    "attention_out_bias": _BIAS,
    "qkv_bias": _BIAS,
    "use_bias": _BIAS,
    "lm_head_bias": _BIAS,
    "attn_logit_softcapping": _CAP,
    "attn_logit_softcap": _CAP,
    "final_logit_softcapping": _CAP,
    "logit_softcapping": _CAP,
    "logits_soft_cap": _CAP,
    "clip_qkv": _CAP,
    "attention_multiplier": RefusedKey(meaning="replaces the scale of attention scores"),
    "query_pre_attn_scalar": RefusedKey(meaning="replaces the scale of attention scores"),
    "embedding_multiplier": _SCALE,
    "residual_multiplier": _SCALE,
    "lm_head_multiplier": _SCALE,
    "logits_scaling": _SCALE,
    "logit_scale": _SCALE,
    "scale_emb": _SCALE,
    "scale_depth": RefusedKey(meaning="scales the output of each layer"),
    "dim_model_base": RefusedKey(meaning="scales hidden states before the output matrix"),
    "attn_temperature_tuning": RefusedKey(meaning="scales queries by position", neutral=(False, 0)),
    "attention_chunk_size": RefusedKey(meaning="cuts attention into chunks"),
    "no_rope_layers": RefusedKey(meaning="names layers without positions", neutral=([],)),
    "no_rope_layer_interval": RefusedKey(meaning="names layers without positions", neutral=(0,)),
    "use_qk_norm": RefusedKey(meaning="normalises queries and keys", neutral=(False,)),
    "rope_interleaved": RefusedKey(meaning="rotates neighbouring dimensions", neutral=(False,)),
    "num_experts": _ROUTED,
    "num_local_experts": _ROUTED,
    "num_nextn_predict_layers": RefusedKey(
        meaning="adds layers that predict later tokens", neutral=(0,)
    ),
    "original_max_position_embeddings": RefusedKey(
        meaning="replaces the value in rope_parameters", fix="Write it into rope_parameters"
    ),
}
_READ = frozenset(
    {
        "model_type", "architectures", "auto_map", ACTIVATION_KEY, "vocab_size", "hidden_size",
        "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
        "head_dim", "hidden_act", "max_position_embeddings", "initializer_range", "rms_norm_eps",
        "tie_word_embeddings", "rope_parameters", "rope_theta", "rope_scaling",
        "partial_rotary_factor", "sliding_window", "use_sliding_window", "max_window_layers",
        "layer_types",
    }
)  # fmt: skip
_HARMLESS = frozenset(
    {
        # of loading and of training, and labels of heads that a decoder does not have
        "transformers_version", "_name_or_path", "name_or_path", "_commit_hash", "dtype", "torch_dtype",
        "use_cache", "attention_dropout", "hidden_dropout", "pretraining_tp", "is_decoder", "id2label",
        "label2id", "num_labels", "problem_type", "finetuning_task", "task_specific_params",
        "classifier_dropout", "chunk_size_feed_forward", "output_attentions", "output_hidden_states",
        "return_dict", "use_return_dict", "torchscript", "use_bfloat16", "tf_legacy_loss",
        "gradient_checkpointing", "_attn_implementation", "_attn_implementation_autoset",
        "attn_implementation", "_attn_implementation_internal", "_flash_attn_2_enabled",
        "use_flash_attention", "use_flash_attention_2", "use_flash_attn", "unsloth_version",
        "embedding_dropout", "embd_pdrop", "attn_pdrop", "attn_dropout", "activation_dropout",
        "attention_probs_dropout_prob",
        "unsloth_fixed", "model_name", "transformers.js_config", "original_context_length",
        # of tokens: the tokenizer's own files are read
        "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "unk_token_id",
        "decoder_start_token_id", "tokenizer_class", "prefix",
        # of generation, before it had a file of its own: stamm's sampling has its own options
        "max_length", "min_length", "do_sample", "early_stopping", "num_beams", "num_beam_groups",
        "diversity_penalty", "temperature", "top_k", "top_p", "typical_p", "repetition_penalty",
        "length_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "bad_words_ids",
        "num_return_sequences", "output_scores", "return_dict_in_generate", "forced_bos_token_id",
        "forced_eos_token_id", "remove_invalid_values", "exponential_decay_length_penalty",
        "suppress_tokens", "begin_suppress_tokens",
    }
)  # fmt: skip
_OF_TYPE: dict[str, dict[str, RefusedKey]] = {
    "apertus": {
        "qk_norm": RefusedKey(meaning="leaves queries and keys as they are", neutral=(True,)),
        "post_norm": RefusedKey(meaning="normalises after a block", neutral=(False,)),
    },
    "qwen3": {
        "qk_norm": RefusedKey(meaning="leaves queries and keys as they are", neutral=(True,))
    },
}
_HARMLESS_OF_TYPE = {
    # the context of longrope, which is refused by its type
    "phi3": frozenset({"original_max_position_embeddings", "resid_pdrop"})
}
OTHER_BLOCKS = {
    "gemma": "scales its embedding and has a GELU by tanh",
    "gemma2": "normalises after each block and caps scores and logits",
    "gemma3": "normalises after each block, and has two bases of positions",
    "gemma3_text": "normalises after each block, and has two bases of positions",
    "gpt_oss": "routes tokens to experts",
    "mixtral": "routes tokens to experts",
    "olmo2": "normalises after each block instead of before",
    "phi": "computes attention and feed-forward block beside one another",
    "qwen3_5": "has layers of linear attention",
    "qwen3_5_text": "has layers of linear attention",
    "qwen3_moe": "routes tokens to experts",
    "qwen3_next": "has layers of linear attention",
    "smollm3": "has layers without positions",
}
"""Why the block of other model types is not that of a stamm decoder."""
# Words in the name of a key that changes what is computed: "logit_scale_up", "ropeScaling".
_SUSPECT = re.compile(
    r"(?:(?<![a-zA-Z])|(?=[A-Z]))(?i:"
    r"scal(?:e|es|ed|ing)|multipliers?|soft(?:cap|caps|capping|max)|cap|caps|capping|clip|clamp|"
    r"rope|rotary|alibi|positions?|positional|theta|attn|attention|causal|bidirectional|window|"
    r"sliding|mask|bias|biases|norm|norms|layernorm|rmsnorm|normali[sz]ation|act|activations?|"
    r"emb|embd|embeddings?|logits?|residual|experts?|moe"
    r")(?![a-z])"
)
_ROPE_KNOWN = ("rope_type", "type", "rope_theta", "partial_rotary_factor")
_ROPE_LLAMA3 = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
_ROPE_OTHERS = (
    "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "short_factor",
    "long_factor", "short_mscale", "long_mscale", "mrope_section", "mrope_interleaved", "alpha",
)  # fmt: skip


def config_keys(model_type: str) -> KnownKeys:
    """The keys of config.json of a model type."""
    own = {"attention_bias": _BIAS, "mlp_bias": _BIAS, **_OF_TYPE.get(model_type, {})}
    harmless = _HARMLESS_OF_TYPE.get(model_type, frozenset())
    return KnownKeys(
        reader=f"{CONFIG} of {model_type}",
        read=_READ,
        harmless=_HARMLESS | harmless,
        refused={k: v for k, v in {**_REFUSED, **own}.items() if k not in harmless},
        suspect=_SUSPECT,
    )


def attention_window(config: Mapping[str, Any]) -> int | None:
    """The sliding window of a config.json: number of tokens that a layer attends to; None: all.

    Raises   DataError for a window or layers that are not understood.
    """
    model_type = str(config.get("model_type"))
    plain = {**DEFAULTS.get(model_type, {}), **config}
    window, kinds = plain.get("sliding_window"), plain.get("layer_types")
    for kind in kinds or ():
        if kind not in ("full_attention", "sliding_attention"):
            raise DataError(
                f"layer_types = {visible(repr(kind), 60)} is not supported by a stamm decoder",
                fix="Known: full_attention, sliding_attention",
            )
    if model_type in ("qwen2", "qwen3"):
        first, layers = plain.get("max_window_layers", 28), plain.get("num_hidden_layers", 0)
        none = isinstance(first, int) and isinstance(layers, int) and first >= layers
        if not plain.get("use_sliding_window", False) or (none and not kinds):
            window = None
    elif not plain.get("use_sliding_window", True):
        window = None
    sliding = "sliding_attention" in kinds if kinds else window is not None
    if not sliding:
        return None
    if type(window) is not int or window < 1:
        raise DataError(
            f"layer_types has sliding_attention, and sliding_window = {visible(repr(window), 60)}",
            fix="Write the window that the model was trained with",
        )
    return window


def longest_context(config: Mapping[str, Any]) -> int | None:
    """The longest context of a config.json in which no layer's window hides a token; None: not stated."""
    default = DEFAULTS.get(str(config.get("model_type")), {}).get("max_position_embeddings")
    longest = config.get("max_position_embeddings", default)
    if type(longest) is not int:
        return None
    window = attention_window(config)
    return longest if window is None else min(longest, window)


def rope_keys(rope_type: str) -> KnownKeys:
    """The keys of rope_parameters, or of rope_scaling, of a type."""
    used = (*_ROPE_KNOWN, *(_ROPE_LLAMA3 if rope_type == "llama3" else ()))
    unused = RefusedKey(meaning=f"is not used with rope_type = {rope_type!r}", neutral=(1, 1.0))
    return KnownKeys(
        reader="rope_parameters",
        read=frozenset(used),
        harmless=frozenset({"finetuned", "truncate"}),
        refused={key: unused for key in (*_ROPE_LLAMA3, *_ROPE_OTHERS) if key not in used},
        suspect=ANY_KEY,
    )


# What changes the text that transformers' generate() writes, and the values that change nothing.
# Sampling is configured by stamm's own options, so these are reported, not refused.
_GENERATION: dict[str, tuple[object, ...]] = {
    "do_sample": (False,), "temperature": (1, 1.0), "top_k": (0, 50), "top_p": (1, 1.0),
    "min_p": (0, 0.0), "top_h": (), "typical_p": (1, 1.0), "epsilon_cutoff": (0, 0.0),
    "eta_cutoff": (0, 0.0), "repetition_penalty": (1, 1.0), "encoder_repetition_penalty": (1, 1.0),
    "length_penalty": (1, 1.0), "no_repeat_ngram_size": (0,), "encoder_no_repeat_ngram_size": (0,),
    "bad_words_ids": ([],), "force_words_ids": ([],), "constraints": ([],), "sequence_bias": ({},),
    "num_beams": (1,), "num_beam_groups": (1,), "diversity_penalty": (0, 0.0), "early_stopping": (False,),
    "penalty_alpha": (0, 0.0), "guidance_scale": (1, 1.0), "dola_layers": (), "token_healing": (False,),
    "forced_bos_token_id": (), "forced_eos_token_id": (), "suppress_tokens": ([],),
    "begin_suppress_tokens": ([],), "exponential_decay_length_penalty": (), "stop_strings": ([],),
    "watermarking_config": ({},), "min_length": (0,), "min_new_tokens": (0,), "max_length": (20,),
    "max_new_tokens": (), "max_time": (), "remove_invalid_values": (False,),
    "renormalize_logits": (False,), "num_return_sequences": (1,),
}  # fmt: skip
GENERATION_KEYS = KnownKeys(
    reader=GENERATION,
    read=frozenset({*_GENERATION, "eos_token_id"}),
    harmless=frozenset(
        {
            # tokens: those of the tokenizer and of the chat format are used
            "bos_token_id", "pad_token_id", "decoder_start_token_id",
            # the way to the same text, and what is returned beside it
            "_from_model_config", "transformers_version", "use_cache", "cache_config",
            "cache_implementation", "compile_config", "continuous_batching_config", "disable_compile",
            "low_memory", "max_cache_len", "prefill_chunk_size", "return_legacy_cache",
            "output_attentions", "output_hidden_states", "output_logits", "output_scores",
            "return_dict_in_generate", "assistant_confidence_threshold", "assistant_early_exit",
            "assistant_ensemble_weight", "assistant_lookbehind", "is_assistant",
            "max_matching_ngram_size", "num_assistant_tokens", "num_assistant_tokens_schedule",
            "prompt_lookup_num_tokens", "speculation_type", "target_lookbehind", "use_mtp",
        }
    ),
)  # fmt: skip


def is_hub_folder(folder: Path) -> bool:
    """Whether a folder is in the layout of transformers: config.json names a model_type."""
    if not (folder / CONFIG).is_file():
        return False
    stored = read_json(folder / CONFIG)
    return isinstance(stored, dict) and "model_type" in stored


def weight_files(folder: Path) -> list[str]:
    """Names of the safetensors files of a folder.

    Raises   DataError without one, or when the folder has two sets of weights and neither is preferred.
    """
    whole, index = folder / WEIGHTS, folder / INDEX
    if (folder / ADAPTER).exists() and is_hub_folder(folder):
        raise DataError(
            f"{folder} has {ADAPTER} beside its weights, and transformers would add the adapter to them",
            fix=f"Merge it, or remove {ADAPTER} where the weights have it already",
        )
    if not index.exists():
        others = [] if whole.exists() else sorted(path.name for path in folder.glob("*.bin"))
        if others:
            raise DataError(
                f"{folder} has no {WEIGHTS}, but {others[0]}, which is a pickle and is not read",
                fix="Save the model as safetensors: save_pretrained of transformers does",
            )
        return [WEIGHTS]
    names = sorted(set(weight_map(folder).values()))
    if whole.exists() and names != [WEIGHTS]:
        raise DataError(
            f"{folder} has {WEIGHTS} and {INDEX}, which names other files: one of them is stale",
            fix="Remove the one that is not the model",
        )
    for name in names:
        if Path(name).name != name:
            raise DataError(f"{index} points outside its folder: {name!r}")
        if not (folder / name).is_file():
            raise DataError(f"{folder} has no {name}, which {INDEX} names", fix="Fetch it again")
    return names


def hub_weights_sha256(folder: Path) -> str:
    """SHA-256 of model.safetensors; of several files, of their names and hashes.

    Raises   DataError when a file cannot be read.
    """
    names = weight_files(folder)
    try:
        hashes = {name: sha256_file(folder / name) for name in names}
    except OSError as error:
        raise DataError(f"the weights in {folder} cannot be read: {error}") from None
    return hashes[WEIGHTS] if names == [WEIGHTS] else sha256_value(hashes)


def weight_map(folder: Path) -> dict[str, str]:
    """File of each tensor by the index of a folder; {} without one.

    Raises   DataError when the index has no table of files.
    """
    index = folder / INDEX
    if not index.exists():
        return {}
    stored = read_json(index)
    table = stored.get("weight_map") if isinstance(stored, dict) else None
    if (
        not table
        or not isinstance(table, dict)
        or not all(isinstance(name, str) for name in table.values())
    ):
        raise DataError(
            f"{index} has no weight_map from tensors to files", fix="Fetch the checkpoint again"
        )
    return table


def unused_keys(folder: Path) -> tuple[UnknownKeys, list[str]]:
    """The unknown keys of a folder's configurations, and sentences about what is known and not used.

    Raises   DataError when a file is not a JSON object.
    """
    unknown, sentences = UnknownKeys(), list[str]()
    config = _object(folder / CONFIG)
    unknown.add(config_keys(str(config.get("model_type"))).unknown(config))
    window, longest = attention_window(config), longest_context(config)
    if window is not None and window == longest:
        sentences.append(
            f"sliding_window = {window:,}: contexts of up to {window:,} tokens are read, in which the"
            " window hides nothing."
        )
    for name in ("rope_parameters", "rope_scaling"):
        inner = config.get(name)
        if isinstance(inner, Mapping):
            kind = str(inner.get("rope_type", inner.get("type", "default")))
            unknown.add(f"{name}.{key}" for key in rope_keys(kind).unknown(inner))
    if (folder / GENERATION).is_file():
        generation = _object(folder / GENERATION)
        unknown.add(GENERATION_KEYS.unknown(generation))
        asked = [
            f"{key} = {visible(repr(value), 60)}"
            for key, value in sorted(generation.items())
            if key in _GENERATION
            and not RefusedKey(meaning="", neutral=_GENERATION[key]).is_neutral(value)
        ]
        if asked:
            sentences.append(
                f"{GENERATION} is not used, texts are sampled as configured here: {', '.join(asked)}."
            )
    return unknown, sentences


def end_ids(folder: Path) -> tuple[int, ...]:
    """The ids of generation_config.json at which transformers' generate() ends a text; () without it.

    Edge     ids below 0 are never generated, and are left out

    Raises   DataError for a value that is neither an id nor a list of ids.
    """
    path = folder / GENERATION
    value = _object(path).get("eos_token_id") if path.is_file() else None
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if any(type(number) is not int for number in ids):
        raise DataError(
            f"eos_token_id = {visible(repr(value), 60)} is neither an id nor a list of ids",
            where=str(path),
        )
    return tuple(sorted({number for number in ids if number >= 0}))


def _object(path: Path) -> dict[str, Any]:
    stored = read_json(path)
    if not isinstance(stored, dict):
        raise DataError(f"{path} is not a JSON object")
    return stored
