"""Models, tokenizers and weight types that each built-in export target can hold.

No torch here: a recipe checks its export target before training.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stamm.activations.spec.shipped import NAMES
from stamm.base.errors import ExportError
from stamm.export.gguf_tokenizer import read_bpe
from stamm.export.target import ExportOptions
from stamm.models.config import DecoderConfig, GatedFFN, PlainRope
from stamm.models.hf_architecture import shapes_reason, unsupported_reasons

# GGML types and the number of weights that share a scale (ggml/src/ggml-common.h).
BLOCKS = {"F32": 1, "F16": 1, "BF16": 1, "Q8_0": 32, "Q4_K": 256, "Q5_K": 256, "Q6_K": 256}
BLOCK_BYTES = {"F32": 4, "F16": 2, "BF16": 2, "Q8_0": 34, "Q4_K": 144, "Q5_K": 176, "Q6_K": 210}
QUANTIZER_TYPES = {"Q4_K": 12, "Q5_K": 13, "Q6_K": 14}
"""Types that only llama.cpp's quantizer writes, with their numbers (enum ggml_type)."""
NEIGHBOURS = ("arcee", "llama")
"""Architectures of llama.cpp whose rotation turns neighbours (2i, 2i + 1): llama_model_rope_type."""


class TransformersSupport:
    """Checks and options of the export target `transformers`."""

    name = "transformers"
    quantizations = ("F32", "BF16")

    def __init__(self) -> None:
        self._options = ExportOptions()

    def configure(self, options: ExportOptions) -> None:
        """Set the type and the size of the files of weights; BF16 has a folder of its own."""
        self._options = options
        self.name = "transformers" if options.quantization == "F32" else "transformers_bf16"

    def check(self, config: DecoderConfig) -> Sequence[str]:
        """Why no class of transformers holds the model; empty when one does."""
        return unsupported_reasons(config)


class GgufSupport:
    """Checks and options of the export target `gguf`."""

    name = "gguf"
    quantizations = tuple(BLOCKS)
    unread = ("max_shard_bytes",)

    def __init__(self) -> None:
        self._options = ExportOptions()

    def configure(self, options: ExportOptions) -> None:
        """Set the type of the matrices; other types than F32 have folders of their own."""
        self._options = options
        kind = options.quantization
        self.name = "gguf" if kind == "F32" else f"gguf_{kind.lower()}"

    def check(self, config: DecoderConfig) -> Sequence[str]:
        """Why llama.cpp cannot run the model; empty when it can."""
        return gguf_reasons(config, self._options.quantization)

    def tokenizer_problem(self, file: Path, vocab_size: int) -> str:
        """Why llama.cpp cannot read the tokenizer; "" when none is known."""
        try:
            read_bpe(file, vocab_size)
        except ExportError as error:
            return error.what
        return ""


class OnnxSupport:
    """Checks and options of the export target `onnx`."""

    name = "onnx"
    unread = ("max_shard_bytes",)

    def __init__(self) -> None:
        self._options = ExportOptions()

    def configure(self, options: ExportOptions) -> None:
        """Set the chat format."""
        self._options = options

    def check(self, config: DecoderConfig) -> Sequence[str]:
        """Why the graph cannot hold the model; empty when it can."""
        return onnx_reasons(config)


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
    reasons = [reason] if (reason := shapes_reason(config)) else []
    if config.ffn.experts is not None:
        reasons.append("GGUF files of models with experts are not written: use target=transformers")
    architecture = gguf_architecture(config)
    if not architecture:
        norm = "with" if config.qk_norm else "without"
        reasons.append(
            f"llama.cpp has no architecture with the activation {activation_name(config)!r} {norm}"
            f" qk_norm{' and with qkv_bias' * config.qkv_bias}: it has xielu with qk_norm (apertus), relu2"
            " without (arcee), swiglu with qk_norm (qwen3), without (llama), and without, with qkv_bias (qwen2)"
            + (
                ""
                if onnx_reasons(config)
                else ". target=onnx holds this model, in operators of opset 18"
            )
        )
    if architecture in ("qwen2", "qwen3") and not isinstance(config.rope, PlainRope):
        reasons.append(
            f"llama.cpp's {architecture} ignores the factors of Llama3Rope: use PlainRope"
        )
    block = BLOCKS[quantization]
    rows = {
        "model.d_model": config.d_model,
        "num_heads * head_dim": config.num_heads * config.head_width,
        "model.ffn.width": config.ffn.width,
    }
    wrong = [f"{name} = {size}" for name, size in rows.items() if size % block]
    if wrong:
        reasons.append(
            f"{quantization} stores blocks of {block} weights, which do not divide"
            f" {', '.join(wrong)}: choose another export.quantization"
        )
    return tuple(reasons)


def onnx_reasons(config: DecoderConfig) -> tuple[str, ...]:
    """Why the ONNX graph cannot hold the model; empty when it can."""
    if reason := shapes_reason(config):
        return (reason,)
    if config.ffn.experts is not None:
        return ("the ONNX graph has no experts: use target=transformers",)
    why = "the graph comes with a configuration for transformers: "
    return tuple(why + reason for reason in unsupported_reasons(config))
