"""Write a decoder as a GGUF file: tensors, metadata and tokenizer as llama.cpp reads them.

Tensors are converted and written one by one: beyond the decoder, memory holds one matrix; of a mapped
decoder, the one being written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from stamm.base.errors import ExportError
from stamm.base.files import atomic, read_json
from stamm.export import llama_cpp
from stamm.export.runtime_support import QUANTIZER_TYPES, gguf_architecture
from stamm.models.config import DecoderConfig, Llama3Rope, PlainRope
from stamm.models.decoder import Decoder, build_blank
from stamm.models.hub import xielu_constants
from stamm.models.mapped_weights import drop_pages
from stamm.models.parameter_shapes import parameter_shapes
from stamm.models.rope import inverse_frequencies

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
    "Q8_0": 7,
    "Q4_K": 14,
    "Q5_K": 16,
    "Q6_K": 18,
    "BF16": 32,
}  # enum llama_ftype
TOKEN_NORMAL, TOKEN_CONTROL, TOKEN_USER_DEFINED, _UNUSED = 1, 3, 4, 5  # enum llama_token_type
HF_TOKENIZER = "tokenizer.huggingface.json"
"""Key of a whole tokenizer.json (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md)."""


@dataclass(frozen=True, kw_only=True)
class GgufTokenizer:
    """A tokenizer as GGUF holds it.

    pre        name of llama.cpp's rule that cuts texts into words
    tokens     of each id, normal ones in the byte alphabet; types: enum llama_token_type
    add_begin  whether <s> is put before a text
    ends       ids that end a text or an answer; the first is that of a text
    template   chat template, "" for a base model
    json       the content of tokenizer.json, for readers that cut texts by its pattern
    """

    pre: str
    tokens: Sequence[str]
    types: Sequence[int]
    merges: Sequence[str]
    begin: int
    pad: int
    add_begin: bool
    ends: Sequence[int]
    template: str = ""
    json: str = ""


def read_bpe(file: Path, vocab_size: int) -> tuple[list[str], list[int], list[str]]:
    """Tokens, their types and the merges of a tokenizer.json, filled up to `vocab_size` tokens.

    Raises   ExportError when it is not a byte-level BPE, or has more tokens than the model.
    """
    plain = read_json(file)
    model = plain.get("model") or {}
    if model.get("type") != "BPE" or model.get("byte_fallback") or not model.get("merges"):
        raise ExportError(
            f"{file} is not a byte-level BPE tokenizer, the only kind that is written as GGUF",
            fix="Choose another target with export.target",
        )
    known = {int(number): text for text, number in model["vocab"].items()}
    kinds = dict.fromkeys(known, TOKEN_NORMAL)
    for token in plain.get("added_tokens") or ():
        known[int(token["id"])] = token["content"]
        kinds[int(token["id"])] = TOKEN_CONTROL if token["special"] else TOKEN_USER_DEFINED
    if max(known) >= vocab_size:
        raise ExportError(f"{file} has an id {max(known)}, and the model has {vocab_size} ids")
    tokens = [known.get(number, f"[PAD{number}]") for number in range(vocab_size)]
    types = [kinds.get(number, _UNUSED) for number in range(vocab_size)]
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    return tokens, types, merges


def write_gguf(
    path: Path, tokenizer: GgufTokenizer, decoder: Decoder | None, quantization: str
) -> None:
    """Write a GGUF file.

    decoder        dense, float32; None writes the vocabulary only
    quantization   type of the matrices; vectors stay F32

    Raises   ExportError without the package gguf; RunError when no space is left.
    """
    gguf = _library()
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
            for _, tensor in () if decoder is None else gguf_tensors(decoder):
                kind = _type(gguf, tensor, quantization)
                if kind.name in QUANTIZER_TYPES:
                    writer.write_tensor_data(llama_cpp.quantize(tensor, quantization))
                else:
                    writer.write_tensor_data(gguf.quants.quantize(tensor.numpy(), kind))
        finally:
            writer.close()


def gguf_tensors(decoder: Decoder) -> Iterator[tuple[str, Tensor]]:
    """Name and tensor of each tensor in the file, float32.

    A tied output matrix is written out; Llama-3 rotary factors are a tensor; queries and keys of
    "llama" are in the order of its rotation, which turns neighbours (2i, 2i + 1).

    Source   llama.cpp: llama_model_rope_type, convert_hf_to_gguf.py (LlamaModel.permute)
    """
    config = decoder.config
    neighbours = gguf_architecture(config) == "llama"
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
    found = {}
    for name in parameter_shapes(untied):
        layer, _, inner = name.removeprefix("model.layers.").partition(".")
        place = f"blk.{layer}." if layer.isdigit() else ""
        module, _, kind = (inner if place else name).rpartition(".")
        if module in _TENSORS:
            found[name] = f"{place}{_TENSORS[module]}.{kind}"
    return found


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
    found: dict[str, int] = {}
    try:
        for tensor in gguf.GGUFReader(path).tensors:
            if len(tensor.shape) > 1:
                found[tensor.tensor_type.name] = found.get(tensor.tensor_type.name, 0) + 1
    except (ValueError, IndexError, OSError) as error:
        raise ExportError(f"{path} is not a GGUF file: {error}") from None
    return dict(sorted(found.items()))


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
    found = {
        name: str(fields[key].contents()) if key in fields else "" for name, key in keys.items()
    }
    begin = ""
    if (added := fields.get("tokenizer.ggml.add_bos_token")) is not None and added.contents():
        token = int(fields["tokenizer.ggml.bos_token_id"].contents())
        begin = str(fields["tokenizer.ggml.tokens"].contents(token))
    return {"architecture": architecture, "begin": begin, **found}


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
