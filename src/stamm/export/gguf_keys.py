"""Keys of a GGUF file: read, without effect on the model, or with an effect that is not supported.

Keys of the architecture are listed without its name: "rope.freq_base" is "llama.rope.freq_base".

Source   llama.cpp: src/llama-arch.cpp (LLM_KV_NAMES), gguf-py/gguf/constants.py, docs of the format
         (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md)
Checked  tests/unit/export/test_gguf_keys.py: every key of the package gguf, against llama.cpp
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from stamm.base.known_keys import ANY_KEY, KnownKeys, RefusedKey

_OFF = (0, 0.0, False)
_ONE = (0, 0.0, 1, 1.0)
_SCALED = RefusedKey(meaning="scales what the layers compute", neutral=_ONE)
_CAPPED = RefusedKey(meaning="caps scores or logits", neutral=_OFF)
_POSITIONS = RefusedKey(meaning="scales rotary positions", neutral=_ONE)
_WINDOW = RefusedKey(meaning="hides earlier tokens", neutral=_OFF)
_OTHER = RefusedKey(meaning="describes another architecture", neutral=(*_OFF, [], ""))
_EXPERTS = RefusedKey(meaning="routes tokens to experts", neutral=_OFF)
_TEXT = RefusedKey(meaning="changes texts before they are encoded", neutral=(*_OFF, [], ""))
_OTHERS = (
    "leading_dense_block_count", "features_length", "embedding_length_out", "swin_norm",
    "moe_every_n_layers", "moe_latent_size", "n_deepstack_layers", "decoder_start_token_id",
    "decoder_block_count", "rescale_every_n_layers", "time_mix_extra_dim", "time_decay_extra_dim",
    "token_shift_count", "interleave_moe_layer_step", "full_attention_interval",
    "activation_sparsity_scale", "altup.active_idx", "altup.num_inputs",
    "embedding_length_per_layer_input", "swiglu_clamp_exp", "swiglu_clamp_shexp",
    "attention.max_alibi_bias", "attention.group_norm_epsilon", "attention.group_norm_groups",
    "attention.q_lora_rank", "attention.kv_lora_rank", "attention.decay_lora_rank",
    "attention.iclr_lora_rank", "attention.value_residual_mix_lora_rank", "attention.gate_lora_rank",
    "attention.relative_buckets_count", "attention.key_length_mla", "attention.value_length_mla",
    "attention.key_length_swa", "attention.value_length_swa", "attention.shared_kv_layers",
    "attention.indexer.head_count", "attention.indexer.key_length", "attention.indexer.top_k",
    "rope.dimension_sections", "rope.dimension_count_swa", "rope.freq_base_swa", "ssm.conv_kernel",
    "ssm.inner_size", "ssm.state_size", "ssm.time_step_rank", "ssm.group_count", "ssm.dt_b_c_rms",
    "kda.head_dim", "wkv.head_size", "posnet.embedding_length", "posnet.block_count",
    "convnext.embedding_length", "convnext.block_count", "classifier.output_labels",
    "shortconv.l_cache", "use_parallel_residual", "2_dense_feat_in", "2_dense_feat_out",
    "3_dense_feat_in", "3_dense_feat_out", "nextn_predict_layers",
)  # fmt: skip
_EXPERT_KEYS = (
    "expert_count", "expert_used_count", "expert_shared_count", "expert_group_count",
    "expert_group_used_count", "expert_weights_scale", "expert_weights_norm", "expert_gating_func",
    "expert_group_scale", "experts_per_group", "expert_feed_forward_length",
    "expert_shared_feed_forward_length", "expert_chunk_feed_forward_length",
)  # fmt: skip
_ABOUT = (
    "name", "author", "version", "organization", "finetune", "basename", "description", "quantized_by",
    "size_label", "license", "license.name", "license.link", "url", "doi", "uuid", "repo_url",
    "source.url", "source.doi", "source.uuid", "source.repo_url", "base_model.count", "dataset.count",
    "tags", "languages", "datasets", "file_type", "quantization_version", "source.huggingface.repository",
    "source.hf.repository",
    # defaults of sampling: stamm's sampling has its own options
    "sampling.sequence", "sampling.top_k", "sampling.top_p", "sampling.min_p",
    "sampling.xtc_probability", "sampling.xtc_threshold", "sampling.temp", "sampling.penalty_last_n",
    "sampling.penalty_repeat", "sampling.mirostat", "sampling.mirostat_tau", "sampling.mirostat_eta",
)  # fmt: skip
_ABOUT_EACH = (
    "name", "author", "version", "organization", "description", "url", "doi", "uuid", "repo_url",
)  # fmt: skip

_ARCHITECTURE = KnownKeys(
    reader="a GGUF file",
    read=frozenset(
        {
            "vocab_size", "context_length", "embedding_length", "block_count", "feed_forward_length",
            "attention.head_count", "attention.head_count_kv", "attention.key_length",
            "attention.value_length", "attention.layer_norm_rms_epsilon", "rope.dimension_count",
            "rope.freq_base",
        }
    ),
    harmless=frozenset(
        {
            "tensor_data_layout", "pooling_type", "attention.layer_norm_epsilon",
            "rope.scaling.finetuned", "rope.scaling.original_context_length",
        }
    ),
    suspect=ANY_KEY,  # every key of an architecture is one of its hyperparameters
    refused={
        # Without a type it is linear: then the factor decides.
        "rope.scaling.type": RefusedKey(
            meaning="scales rotary positions", neutral=("none", "linear", "")
        ),
        "rope.scaling.factor": _POSITIONS,
        "rope.scale_linear": _POSITIONS,
        "rope.scaling.attn_factor": _POSITIONS,
        "rope.scaling.alpha": _POSITIONS,
        **{
            f"rope.scaling.yarn_{name}": RefusedKey(
                meaning="belongs to yarn positions", neutral=(0, 0.0)
            )
            for name in ("log_multiplier", "ext_factor", "attn_factor", "beta_fast", "beta_slow")
        },
        "attention.sliding_window": _WINDOW,
        "attention.sliding_window_pattern": RefusedKey(
            meaning="gives layers a window", neutral=(*_OFF, 1, [])
        ),
        "attention.causal": RefusedKey(meaning="shows later tokens", neutral=(True,)),
        "attention.clamp_kqv": _CAPPED,
        "attn_logit_softcapping": _CAPPED,
        "router_logit_softcapping": _CAPPED,
        "final_logit_softcapping": _CAPPED,
        "attention.scale": RefusedKey(meaning="replaces the scale of scores", neutral=_OFF),
        "attention.output_scale": _SCALED,
        "attention.temperature_length": RefusedKey(meaning="scales queries by position", neutral=_OFF),
        "attention.temperature_scale": RefusedKey(meaning="scales queries by position", neutral=_OFF),
        "logit_scale": _SCALED,
        "residual_scale": _SCALED,
        "embedding_scale": _SCALED,
        **dict.fromkeys(_EXPERT_KEYS, _EXPERTS),
        **dict.fromkeys(_OTHERS, _OTHER),
    },
)  # fmt: skip
FILE_KEYS = KnownKeys(
    reader="a GGUF file",
    read=frozenset(
        {
            "general.architecture", "general.alignment", "split.count", "tokenizer.ggml.model",
            "tokenizer.ggml.pre", "tokenizer.ggml.tokens", "tokenizer.ggml.token_type",
            "tokenizer.ggml.merges", "tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id",
            "tokenizer.ggml.eot_token_id", "tokenizer.ggml.padding_token_id",
            "tokenizer.ggml.add_bos_token", "tokenizer.huggingface.json", "tokenizer.chat_template",
            "xielu.alpha_p", "xielu.alpha_n", "xielu.beta", "xielu.eps",
        }
    ),
    harmless=frozenset(
        {
            *(f"general.{name}" for name in _ABOUT),
            *(f"general.{kind}.N.{name}" for kind in ("base_model", "dataset") for name in _ABOUT_EACH),
            "split.no", "split.tensors.count", "tokenizer.ggml.scores",
            "tokenizer.ggml.token_type_count", "tokenizer.chat_templates", "tokenizer.chat_template.N",
            *(
                f"tokenizer.ggml.{name}_token_id"
                for name in (
                    "eom", "unknown", "seperator", "mask", "fim_pre", "fim_suf", "fim_mid", "fim_pad",
                    "fim_rep", "fim_sep", "prefix", "suffix", "middle",
                )
            ),
            "imatrix.chunk_count", "imatrix.chunk_size", "imatrix.datasets", "quantize.imatrix.file",
            "quantize.imatrix.dataset", "quantize.imatrix.entries_count", "quantize.imatrix.chunks_count",
        }
    ),
    suspect=re.compile(r"^tokenizer\.ggml\.(?!.*_token_ids?$)"),
    refused={
        "general.type": RefusedKey(
            meaning="is the kind of file, and only models are read", neutral=("model",)
        ),
        "tokenizer.ggml.add_eos_token": RefusedKey(
            meaning="puts a token after every text", neutral=(False,)
        ),
        "tokenizer.ggml.add_sep_token": RefusedKey(
            meaning="puts a token between texts", neutral=(False,)
        ),
        "tokenizer.ggml.add_space_prefix": RefusedKey(
            meaning="puts a blank before every text", neutral=(False,)
        ),
        "tokenizer.ggml.remove_extra_whitespaces": _TEXT,
        "tokenizer.ggml.precompiled_charsmap": _TEXT,
        "tokenizer.rwkv.world": _TEXT,
        "diffusion.shift_logits": RefusedKey(meaning="shifts logits", neutral=(False,)),
        **{
            f"adapter.{name}": RefusedKey(meaning="describes an adapter")
            for name in ("type", "lora.alpha", "lora.task_name", "lora.prompt_prefix", "alora.invocation_tokens")
        },
    },
)  # fmt: skip


def architecture_keys(architecture: str) -> KnownKeys:
    """The keys of an architecture, with its name."""

    def named(keys: Iterable[str]) -> frozenset[str]:
        return frozenset(f"{architecture}.{key}" for key in keys)

    refused = {f"{architecture}.{key}": refusal for key, refusal in _ARCHITECTURE.refused.items()}
    return KnownKeys(
        reader=_ARCHITECTURE.reader,
        read=named(_ARCHITECTURE.read),
        harmless=named(_ARCHITECTURE.harmless),
        refused=refused,
        suspect=_ARCHITECTURE.suspect,
    )


def check_keys(metadata: Mapping[str, object], architecture: str, where: str) -> list[str]:
    """Check that no key has an effect that is not supported; return the unknown keys.

    Raises   DataError with the key and its value.
    """
    prefix = f"{architecture}."
    inner = {key: value for key, value in metadata.items() if key.startswith(prefix)}
    others = {_numbered(key): value for key, value in metadata.items() if key not in inner}
    own = architecture_keys(architecture)
    own.check(inner, where)
    FILE_KEYS.check(others, where)
    return sorted([*own.unknown(inner), *FILE_KEYS.unknown(others)])


def _numbered(key: str) -> str:
    """A key with N for the number, or the name, of one of several entries."""
    key = re.sub(r"^(general\.(?:base_model|dataset))\.\d+\.", r"\1.N.", key)
    return re.sub(r"^tokenizer\.chat_template\..+", "tokenizer.chat_template.N", key)
