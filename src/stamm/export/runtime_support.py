"""Which models llama.cpp and ONNX Runtime can run, and the weight formats of each export target.

No torch here: a recipe checks its export target before training.
"""

from __future__ import annotations

from stamm.activations.spec.shipped import NAMES
from stamm.models.config import DecoderConfig, GatedFFN, PlainRope
from stamm.models.hf_architecture import shapes_reason, unsupported_reasons

# GGML types and the number of weights that share a scale (ggml/src/ggml-common.h).
BLOCKS = {"F32": 1, "F16": 1, "BF16": 1, "Q8_0": 32, "Q4_K": 256, "Q5_K": 256, "Q6_K": 256}
BLOCK_BYTES = {"F32": 4, "F16": 2, "BF16": 2, "Q8_0": 34, "Q4_K": 144, "Q5_K": 176, "Q6_K": 210}
QUANTIZER_TYPES = {"Q4_K": 12, "Q5_K": 13, "Q6_K": 14}
"""Types that only llama.cpp's quantizer writes, with their numbers (enum ggml_type)."""
FORMATS = {
    "transformers": ("F32", "BF16"),
    "gguf": tuple(BLOCKS),
    "onnx": ("F32",),
}
NEIGHBOURS = ("arcee", "llama")
"""Architectures of llama.cpp whose rotation turns neighbours (2i, 2i + 1): llama_model_rope_type."""
ONNX_PLAIN = ("xielu", "relu2", "relu", "gelu", "silu")
ONNX_GATED = ("swiglu", "geglu", "reglu")


def activation_name(config: DecoderConfig) -> str:
    """The catalogue's name of the activation, also for a Spec given by its formula."""
    return NAMES.get(config.ffn.spec.content_hash, config.ffn.spec.name)


def gguf_architecture(config: DecoderConfig) -> str:
    """The architecture of llama.cpp that computes the model; "" when none does."""
    gated, name = isinstance(config.ffn, GatedFFN), activation_name(config)
    if not gated and not config.qkv_bias:
        return {("xielu", True): "apertus", ("relu2", False): "arcee"}.get(
            (name, config.qk_norm), ""
        )
    if gated and name == "swiglu" and not (config.qk_norm and config.qkv_bias):
        return "qwen3" if config.qk_norm else "qwen2" if config.qkv_bias else "llama"
    return ""


def gguf_reasons(config: DecoderConfig, quantization: str = "F32") -> tuple[str, ...]:
    """Why llama.cpp cannot run the model with weights of this type; empty when it can.

    Source   llama.cpp, src/models/apertus.cpp, arcee.cpp, qwen3.cpp (no factors of rotary frequencies),
             llama.cpp
    """
    found = [reason] if (reason := shapes_reason(config)) else []
    architecture = gguf_architecture(config)
    if not architecture:
        norm = "with" if config.qk_norm else "without"
        found.append(
            f"llama.cpp has no architecture with the activation {activation_name(config)!r} {norm}"
            f" qk_norm{' and with qkv_bias' * config.qkv_bias}: it has xielu with qk_norm (apertus), relu2"
            " without (arcee), swiglu with qk_norm (qwen3), without (llama), and without, with qkv_bias (qwen2)"
        )
    if architecture in ("qwen2", "qwen3") and not isinstance(config.rope, PlainRope):
        found.append(f"llama.cpp's {architecture} ignores the factors of Llama3Rope: use PlainRope")
    block = BLOCKS[quantization]
    rows = {
        "model.d_model": config.d_model,
        "num_heads * head_dim": config.num_heads * config.head_width,
        "model.ffn.width": config.ffn.width,
    }
    wrong = [f"{name} = {size}" for name, size in rows.items() if size % block]
    if wrong:
        found.append(
            f"{quantization} stores blocks of {block} weights, which do not divide"
            f" {', '.join(wrong)}: choose another export.quantization"
        )
    return tuple(found)


def onnx_reasons(config: DecoderConfig) -> tuple[str, ...]:
    """Why the ONNX graph cannot hold the model; empty when it can."""
    if reason := shapes_reason(config):
        return (reason,)
    known = ONNX_GATED if isinstance(config.ffn, GatedFFN) else ONNX_PLAIN
    name = activation_name(config)
    if name in known:
        why = "the graph comes with a configuration for transformers: "
        return tuple(why + reason for reason in unsupported_reasons(config))
    listed = ", ".join((*ONNX_PLAIN, *ONNX_GATED))
    return (f"the ONNX graph has no formula of the activation {name!r}: it has {listed}",)
