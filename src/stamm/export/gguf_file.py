"""Write a decoder as a GGUF file: tensors, metadata and tokenizer as llama.cpp reads them.

Tensors are converted and written one by one: beyond the decoder, memory holds one matrix; of a mapped
decoder, the one being written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stamm.base.errors import ExportError
from stamm.base.files import atomic
from stamm.export import llama_cpp
from stamm.export.gguf_tokenizer import GgufTokenizer
from stamm.export.runtime_support import (
    NEIGHBOURS,
    QUANTIZER_TYPES,
    gguf_architecture,
    gguf_reasons,
)
from stamm.models.config import DecoderConfig, Llama3Rope, PlainRope
from stamm.models.decoder import Decoder, build_blank
from stamm.models.hub import xielu_constants
from stamm.models.mapped_weights import drop_pages
from stamm.models.parameter_shapes import parameter_shapes
from stamm.models.rope import inverse_frequencies
from stamm.models.steering import SteeringVector

_TENSORS = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "attention_layernorm": "attn_norm",
    "feedforward_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
ROTATED = ("attn_q.weight", "attn_k.weight")
_FILE_TYPES = {
    "F32": 0,
    "F16": 1,
    "Q8_0": 7,
    "Q4_K": 14,
    "Q5_K": 16,
    "Q6_K": 18,
    "BF16": 32,
}  # enum llama_ftype
HF_TOKENIZER = "tokenizer.huggingface.json"
"""Key of a whole tokenizer.json (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md)."""


@dataclass(frozen=True, kw_only=True)
class SmallWeights:
    """Weights of matrices that are too small for float16.

    weights   all of them
    zero      those that become 0: at most half of its smallest number, 6.0e-8
    inexact   those below 6.1e-5, its smallest normal number, that become another number than 0
    """

    weights: int = 0
    zero: int = 0
    inexact: int = 0

    def __add__(self, other: SmallWeights) -> SmallWeights:
        return SmallWeights(
            weights=self.weights + other.weights,
            zero=self.zero + other.zero,
            inexact=self.inexact + other.inexact,
        )


def to_float16(name: str, weight_OD: Tensor) -> tuple[Tensor, SmallWeights]:
    """The matrix `name` in float16, rounded to nearest, and its weights that are too small for it.

    Raises   ExportError for a weight beyond its range, which would become infinite
    """
    half_OD = weight_OD.half()
    if not half_OD.isfinite().all():
        largest = float(weight_OD.abs().max())
        raise ExportError(
            f"{name} has a weight of {largest:.6g}, and float16 ends at 65504",
            where="export.quantization = F16",
            fix="Set export.quantization=BF16",
        )
    small_OD = weight_OD.abs() < torch.finfo(torch.float16).smallest_normal
    changed_OD = small_OD & (half_OD.float() != weight_OD)
    zero = int((changed_OD & (half_OD == 0)).sum())
    lost = SmallWeights(weights=weight_OD.numel(), zero=zero, inexact=int(changed_OD.sum()) - zero)
    return half_OD, lost


def write_gguf(
    path: Path, tokenizer: GgufTokenizer, decoder: Decoder | None, quantization: str
) -> SmallWeights:
    """Write a GGUF file; return what F16 lost of small weights.

    decoder        dense, float32; None writes the vocabulary only
    quantization   type of the matrices; vectors stay F32

    Raises   ExportError without the package gguf, or for a weight beyond the range of F16; RunError
             when no space is left.
    """
    gguf = _library()
    lost = SmallWeights()
    config = None if decoder is None else decoder.config
    architecture = "llama" if config is None else gguf_architecture(config)
    with atomic(path) as temporary:
        writer = gguf.GGUFWriter(temporary, architecture)
        try:
            _add_tokenizer(writer, tokenizer)
            if decoder is not None and config is not None:
                _add_model(writer, decoder, config)
                writer.add_file_type(_FILE_TYPES[quantization])
                writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
            shapes = () if config is None else gguf_tensors(build_blank(config))
            for name, tensor in shapes:
                kind = _type(gguf, tensor, quantization)
                size = (
                    tensor.numel()
                    // gguf.GGML_QUANT_SIZES[kind][0]
                    * gguf.GGML_QUANT_SIZES[kind][1]
                )
                writer.add_tensor_info(name, tuple(tensor.shape), "float32", size, raw_dtype=kind)
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_ti_data_to_file()
            for name, tensor in () if decoder is None else gguf_tensors(decoder):
                kind = _type(gguf, tensor, quantization)
                if kind.name in QUANTIZER_TYPES:
                    writer.write_tensor_data(llama_cpp.quantize(tensor, quantization))
                elif kind.name == "F16":
                    half, small = to_float16(name, tensor)
                    writer.write_tensor_data(half.numpy())
                    lost += small
                else:
                    writer.write_tensor_data(gguf.quants.quantize(tensor.numpy(), kind))
        finally:
            writer.close()
    return lost


def write_control_vector(path: Path, vector: SteeringVector, config: DecoderConfig) -> None:
    """Write a steering vector as a control vector: F32 tensors `direction.N`, which llama.cpp adds behind layer N.

    config   of the model, for general and controlvector keys

    Raises   ExportError for layer 0, for a model that llama.cpp cannot run, and without the package gguf
    Source   llama.cpp, common/common.cpp: common_control_vector_load_one; tools/cvector-generator
    """
    if 0 in vector.layers:
        raise ExportError(
            "the vector is of layer 0, and llama.cpp has no control vector there",
            fix="Choose a later layer, such as layers=1",
        )
    if reasons := gguf_reasons(config):
        raise ExportError(f"llama.cpp cannot run the model: {reasons[0]}")
    gguf = _library()
    with atomic(path) as temporary:
        writer = gguf.GGUFWriter(temporary, "controlvector")
        try:
            writer.add_string("controlvector.model_hint", gguf_architecture(config))
            writer.add_uint32("controlvector.layer_count", len(vector.layers))
            for key, value in asdict(vector.header).items():
                writer.add_string(f"stamm.{key}", str(value))
            for layer in sorted(vector.layers):
                writer.add_tensor(f"direction.{layer}", vector.layers[layer].float().numpy())
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
        finally:
            writer.close()


def gguf_tensors(decoder: Decoder) -> Iterator[tuple[str, Tensor]]:
    """Name and tensor of each tensor in the file, float32.

    A tied output matrix is written out; Llama-3 rotary factors are a tensor; queries and keys of
    NEIGHBOURS are in the order of their rotation.

    Source   llama.cpp: llama_model_rope_type, convert_hf_to_gguf.py (LlamaModel.permute)
    """
    config = decoder.config
    neighbours = gguf_architecture(config) in NEIGHBOURS
    names = gguf_names(config)
    factors = rope_factors(config.rope, config.head_width)
    if factors is not None:
        yield "rope_freqs.weight", factors
    for name, parameter in decoder.state_dict().items():
        if name not in names:  # alphas of xIELU are metadata
            continue
        tensor = parameter.detach().float().contiguous()
        if neighbours and names[name].endswith(ROTATED):
            tensor = to_neighbours(tensor, config.head_width)
        yield names[name], tensor
        drop_pages(parameter)


def gguf_names(config: DecoderConfig) -> dict[str, str]:
    """The name in GGUF of each parameter that is a tensor there, with a tied output matrix."""
    untied = replace(config, tied_embeddings=False)
    names = {}
    for name in parameter_shapes(untied):
        layer, _, inner = name.removeprefix("model.layers.").partition(".")
        prefix = f"blk.{layer}." if layer.isdigit() else ""
        module, _, kind = (inner if prefix else name).rpartition(".")
        if module in _TENSORS:
            names[name] = f"{prefix}{_TENSORS[module]}.{kind}"
    return names


def to_neighbours(weight_OD: Tensor, head_width: int) -> Tensor:
    """Rows of each head in the order 0, E/2, 1, E/2 + 1, ..., E the width of a head."""
    halves = weight_OD.view(-1, 2, head_width // 2, weight_OD.shape[1])
    return halves.transpose(1, 2).reshape(weight_OD.shape).contiguous()


def from_neighbours(weight_OD: Tensor, head_width: int) -> Tensor:
    """The inverse of `to_neighbours`."""
    pairs = weight_OD.view(-1, head_width // 2, 2, weight_OD.shape[1])
    return pairs.transpose(1, 2).reshape(weight_OD.shape).contiguous()


def rope_factors(rope: PlainRope | Llama3Rope, head_width: int) -> Tensor | None:
    """Divisors of the plain rotary frequencies, shape (head_width / 2,); None for plain rotations."""
    if not isinstance(rope, Llama3Rope):
        return None
    plain = inverse_frequencies(PlainRope(theta=rope.theta), head_width)
    return plain / inverse_frequencies(rope, head_width)


def xielu_arrays(decoder: Decoder) -> dict[str, list[float]]:
    """xIELU's raw alphas (before softplus) and constants, a value for each layer."""
    state = decoder.state_dict()
    layers = range(decoder.config.num_layers)
    arrays = {
        name: [float(state[f"model.layers.{layer}.mlp.act_fn.{name}"]) for layer in layers]
        for name in ("alpha_p", "alpha_n")
    }
    return {**arrays, **{name: [value] * len(layers) for name, value in xielu_constants().items()}}


def stored_types(path: Path) -> Mapping[str, int]:
    """The number of matrices of each type in a GGUF file.

    Raises   ExportError when it is not a GGUF file.
    """
    gguf = _library()
    counts: dict[str, int] = {}
    try:
        for tensor in gguf.GGUFReader(path).tensors:
            if len(tensor.shape) > 1:
                counts[tensor.tensor_type.name] = counts.get(tensor.tensor_type.name, 0) + 1
    except (ValueError, IndexError, OSError) as error:
        raise ExportError(f"{path} is not a GGUF file: {error}") from None
    return dict(sorted(counts.items()))


def read_metadata(path: Path) -> dict[str, str]:
    """Architecture, context_length, pre, chat template ("" for none) and begin of a GGUF file.

    begin   the token that llama.cpp puts before every text, chats included; "" for none
    """
    fields = _library().GGUFReader(path).fields
    architecture = str(fields["general.architecture"].contents())
    keys = {
        "context_length": f"{architecture}.context_length",
        "pre": "tokenizer.ggml.pre",
        "template": "tokenizer.chat_template",
    }
    metadata = {
        name: str(fields[key].contents()) if key in fields else "" for name, key in keys.items()
    }
    begin = ""
    if (added := fields.get("tokenizer.ggml.add_bos_token")) is not None and added.contents():
        token = int(fields["tokenizer.ggml.bos_token_id"].contents())
        begin = str(fields["tokenizer.ggml.tokens"].contents(token))
    return {"architecture": architecture, "begin": begin, **metadata}


def _add_tokenizer(writer: Any, tokenizer: GgufTokenizer) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(tokenizer.pre)
    writer.add_token_list(tokenizer.tokens)
    writer.add_token_types(tokenizer.types)
    writer.add_token_merges(tokenizer.merges)
    writer.add_bos_token_id(tokenizer.begin)
    writer.add_eos_token_id(tokenizer.ends[0])
    if len(tokenizer.ends) > 1:
        writer.add_eot_token_id(tokenizer.ends[1])
    writer.add_pad_token_id(tokenizer.pad)
    writer.add_add_bos_token(tokenizer.add_begin)
    writer.add_add_eos_token(False)
    if tokenizer.template:
        writer.add_chat_template(tokenizer.template)
    if tokenizer.json:
        writer.add_string(HF_TOKENIZER, tokenizer.json)


def _add_model(writer: Any, decoder: Decoder, config: DecoderConfig) -> None:
    writer.add_context_length(config.max_context)
    writer.add_embedding_length(config.d_model)
    writer.add_block_count(config.num_layers)
    writer.add_feed_forward_length(config.ffn.width)
    writer.add_vocab_size(config.vocab_size)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_key_length(config.head_width)
    writer.add_value_length(config.head_width)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_rope_dimension_count(config.head_width)
    writer.add_rope_freq_base(config.rope.theta)
    if gguf_architecture(config) == "apertus":
        for name, values in xielu_arrays(decoder).items():
            writer.add_array(f"xielu.{name}", values)


def _type(gguf: Any, tensor: Tensor, quantization: str) -> Any:
    kind = quantization if tensor.dim() > 1 else "F32"
    return gguf.GGMLQuantizationType[kind]


def _library() -> Any:
    try:
        import gguf
    except ImportError as error:
        raise ExportError(
            f"gguf cannot be imported: {error}", fix="Run: pip install 'stamm[gguf]'"
        ) from None
    return gguf
