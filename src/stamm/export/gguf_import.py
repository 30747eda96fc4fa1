"""A decoder and its tokenizer from a GGUF file of llama.cpp: Apertus, Arcee, Llama, Qwen2 or Qwen3.

Checked  tests/unit/export/test_gguf_import.py
"""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from stamm.base.errors import ConfigError, DataError, ExportError, visible
from stamm.base.files import write_json, write_text
from stamm.chat.template_files import TEMPLATE
from stamm.export.gguf_file import (
    HF_TOKENIZER,
    ROTATED,
    from_neighbours,
    gguf_names,
    rope_factors,
)
from stamm.export.gguf_keys import check_keys
from stamm.export.gguf_reader import GgufReader
from stamm.export.gguf_tokenizer import (
    TOKEN_CONTROL,
    TOKEN_NORMAL,
    TOKEN_USER_DEFINED,
    read_bpe,
)
from stamm.export.runtime_support import NEIGHBOURS
from stamm.export.transformers_target import TOKENIZER, TOKENIZER_CONFIG
from stamm.models.config import DecoderConfig, GatedFFN, Llama3Rope, PlainFFN, PlainRope
from stamm.models.decoder import Decoder, check_finite
from stamm.models.hub import xielu_constants
from stamm.models.parameter_shapes import parameter_shapes
from stamm.tokenizer.imported import ImportedTokenizer
from stamm.tokenizer.tokenizer import SPLIT_PATTERN

_ARCHITECTURES = ("apertus", "arcee", "llama", "qwen2", "qwen3")
_PLAIN = {"apertus": "xielu", "arcee": "relu2"}  # activations of plain blocks; the others are gated
_WITH_FACTORS = (
    "apertus",
    "arcee",
    "llama",
)  # llama.cpp refuses the others with factors of positions
_LARGEST_CONTEXT = 1 << 31
_EMBEDDING, _OUTPUT, _FACTORS = "token_embd.weight", "output.weight", "rope_freqs.weight"
_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LETTERS = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+"
# Name in tokenizer.ggml.pre: the pattern of the original tokenizer.json, and whether whole words are
# looked up before merges. Source: llama.cpp, src/llama-vocab.cpp (llm_tokenizer_bpe)
_PATTERNS = {
    "llama-bpe": (rf"{_LETTERS}|\p{{N}}{{1,3}}|{_TAIL}", True),
    "qwen2": (rf"{_LETTERS}|\p{{N}}|{_TAIL}", False),
    "qwen35": (
        rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}|"
        r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        False,
    ),
    "tekken": (SPLIT_PATTERN, True),
    "gpt-2": (
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        False,
    ),
}
_BEGIN_BY_DEFAULT = ("llama-bpe", "tekken")


class GgufModel:
    """A GGUF file that a stamm decoder can represent.

    config         of the decoder; an output matrix that equals the embedding is tied
    quantization   types of its tensors and their numbers: "9 F32, 14 Q8_0"
    unknown        keys of the file that are neither read nor known

    Raises   DataError with the first thing that is damaged or not supported.
    """

    def __init__(self, path: Path) -> None:
        self._file = GgufReader(path)
        if self._file.metadata.get("split.count", 1) not in (0, 1):
            raise self._error("is one of several files", "Join them: llama-gguf-split --merge")
        self._architecture = self._text("general.architecture")
        if self._architecture not in _ARCHITECTURES:
            named = self._architecture[:80]
            raise self._error(
                f"has the architecture {named!r}", f"Known: {', '.join(_ARCHITECTURES)}"
            )
        self.unknown = check_keys(self._file.metadata, self._architecture, str(path))
        self.config = self._config()
        self._names = self._check_tensors()
        counts = Counter(tensor.type for tensor in self._file.tensors.values())
        self.quantization = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))

    def decoder(self) -> Decoder:
        """The decoder, float32; beyond it, memory holds one tensor.

        Raises   DataError when xIELU's constants are not those of stamm, or weights contain NaN.
        """
        decoder = Decoder(self.config)
        with torch.no_grad():
            for name, parameter in decoder.named_parameters():
                if ".act_fn." not in name:
                    stored = self._file.read(self._names[name])
                    if self._architecture in NEIGHBOURS and self._names[name].endswith(ROTATED):
                        stored = from_neighbours(stored, self.config.head_width)
                    parameter.copy_(stored)
            for layer, alphas in enumerate(self._alphas()):
                for name, value in alphas.items():
                    decoder.get_parameter(f"model.layers.{layer}.mlp.act_fn.{name}").fill_(value)
        try:
            check_finite(dict(decoder.named_parameters()))
        except DataError as error:
            raise self._error(f"cannot be used: {error.what}", "Fetch the file again") from None
        return decoder.eval()

    def write_tokenizer(self, folder: Path) -> None:
        """Write tokenizer.json, tokenizer_config.json and, if the file has one, chat_template.jinja.

        tokenizer.json is the one in the file, if it has one (tokenizer.huggingface.json); otherwise it is
        made from the vocabulary, with the original pattern of tokenizer.ggml.pre.

        Raises   DataError for a vocabulary of another kind or with an unknown pattern.
        """
        if self._text("tokenizer.ggml.model") != "gpt2":
            raise self._error("has a tokenizer other than byte-level BPE ('gpt2')")
        tokens, merges = (self._texts(f"tokenizer.ggml.{key}") for key in ("tokens", "merges"))
        types = self._file.metadata.get("tokenizer.ggml.token_type")
        if not isinstance(types, list) or len(types) != len(tokens):
            raise self._error("has no token_type for each token")
        if twice := [token for token, count in Counter(tokens).items() if count > 1]:
            raise self._error(f"has the token {visible(repr(twice[0]), 60)} twice")
        if HF_TOKENIZER in self._file.metadata:
            write_text(folder / TOKENIZER, self._text(HF_TOKENIZER))
            begins = bool(ImportedTokenizer.load(folder).prefix_ids())
            try:
                same = read_bpe(folder / TOKENIZER, self.config.vocab_size)
            except ExportError as error:
                raise DataError(error.what) from None
            if same[::2] != (tokens, merges):
                raise self._error(f"has another vocabulary in {HF_TOKENIZER} than in its tokens")
            if begins != self._prepends():
                raise self._error(
                    f"has add_bos_token = {self._prepends()}, and {HF_TOKENIZER} does otherwise"
                )
        else:
            write_json(folder / TOKENIZER, self._tokenizer_json(tokens, types, merges))
        template = self._file.metadata.get("tokenizer.chat_template", "")
        if template:
            write_text(folder / TEMPLATE, str(template))
        ends = ["eot_token_id", "eos_token_id"] if template else ["eos_token_id"]
        named = {
            "bos_token": ["bos_token_id"],
            "eos_token": ends,
            "pad_token": ["padding_token_id"],
        }
        special = {
            name: text
            for name, keys in named.items()
            if (text := next(filter(None, (self._token(tokens, key) for key in keys)), ""))
        }
        if "eos_token" not in special:
            raise self._error("has no eos_token_id")
        config = {
            **special,
            "tokenizer_class": "PreTrainedTokenizerFast",
            "split_special_tokens": not template,
            "clean_up_tokenization_spaces": False,
            "model_max_length": self.config.max_context,
        }
        write_json(folder / TOKENIZER_CONFIG, config)

    def _config(self) -> DecoderConfig:
        embedding = self._file.tensors.get(_EMBEDDING)
        if embedding is None or len(embedding.shape) != 2:
            raise self._error(f"has no matrix {_EMBEDDING}")
        layers, heads = self._count("block_count"), self._count("attention.head_count")
        if layers > len(self._file.tensors):  # each has several
            raise self._error(f"has block_count = {layers}, and {len(self._file.tensors)} tensors")
        if self._count("vocab_size", embedding.shape[0]) != embedding.shape[0]:
            size = self._count("vocab_size")
            raise self._error(
                f"has vocab_size = {size}, and {embedding.shape[0]} rows in {_EMBEDDING}"
            )
        d_model, width = self._count("embedding_length"), self._count("feed_forward_length")
        head = self._count("attention.key_length", d_model // max(heads, 1))
        for key in ("attention.value_length", "rope.dimension_count"):
            if self._count(key, head) != head:
                raise self._error(f"has another {key} than attention.key_length")
        plain = _PLAIN.get(self._architecture)
        ffn = PlainFFN(width=width, activation=plain) if plain else GatedFFN(width=width)
        tensors = self._file.tensors
        tied = _OUTPUT not in tensors or (
            tensors[_OUTPUT].shape == embedding.shape
            and torch.equal(self._file.read(_OUTPUT), self._file.read(_EMBEDDING))
        )
        try:
            return DecoderConfig(
                vocab_size=embedding.shape[0],
                d_model=d_model,
                num_layers=layers,
                num_heads=heads,
                num_kv_heads=self._count("attention.head_count_kv", heads),
                head_dim=None if head * heads == d_model else head,
                ffn=ffn,
                rope=self._rope(head),
                qk_norm=self._architecture in ("apertus", "qwen3"),
                qkv_bias=self._architecture == "qwen2",
                norm_eps=self._number("attention.layer_norm_rms_epsilon"),
                tied_embeddings=tied,
                max_context=self._count("context_length"),
            )
        except ConfigError as error:
            raise self._error(f"does not describe a decoder: {error.what}") from None

    def _rope(self, head: int) -> PlainRope | Llama3Rope:
        """The rotation; Llama 3's from its factors, with the original context that gives them."""
        theta = self._number("rope.freq_base", 10_000.0)
        if _FACTORS not in self._file.tensors or self._architecture not in _WITH_FACTORS:
            return PlainRope(theta=theta)
        factors = self._file.read(_FACTORS)
        largest = float(factors.max())
        if factors.shape == (head // 2,) and 1 <= largest < math.inf:
            for power in range(4, 24):
                rope = Llama3Rope(theta=theta, factor=largest, original_context=1 << power)
                implied = rope_factors(rope, head)
                if implied is not None and torch.allclose(implied, factors, rtol=1e-5, atol=0):
                    return rope
        raise self._error(f"has {_FACTORS} other than Llama 3's with frequency factors 1 and 4")

    def _check_tensors(self) -> dict[str, str]:
        """The name in the file of each parameter, with the shapes that the metadata describe."""
        names = gguf_names(self.config)
        remaining = dict(self._file.tensors)
        if self._architecture in _WITH_FACTORS:
            remaining.pop(_FACTORS, None)
        if self.config.tied_embeddings:
            remaining.pop(_OUTPUT, None)
        for name, shape in parameter_shapes(self.config).items():
            if name not in names:  # alphas of xIELU are metadata
                continue
            tensor = remaining.pop(names[name], None)
            if tensor is None or tensor.shape != shape:
                given = "is missing" if tensor is None else f"has the shape {tensor.shape}"
                raise self._error(f"does not fit its metadata: {names[name]} {given}, not {shape}")
        if remaining:
            raise self._error(f"has tensors that are not supported: {next(iter(remaining))[:80]!r}")
        return names

    def _alphas(self) -> list[dict[str, float]]:
        """xIELU's raw alphas of each layer; [] without xIELU."""
        if self._architecture != "apertus":
            return []
        layers = self.config.num_layers
        constants = xielu_constants()
        alphas: list[dict[str, float]] = [{} for _ in range(layers)]
        for name in ("alpha_p", "alpha_n", *constants):
            value = self._file.metadata.get(f"xielu.{name}")
            values = value if isinstance(value, list) else [value] * layers
            numbers = [value for value in values if isinstance(value, float)]
            if not len(values) == len(numbers) == layers:
                raise self._error(f"has no xielu.{name} for each layer")
            if name not in constants:
                for layer, alpha in enumerate(numbers):
                    alphas[layer][name] = alpha
            elif not all(math.isclose(number, constants[name], rel_tol=1e-2) for number in numbers):
                raise self._error(f"has xielu.{name} = {numbers[0]}, not {constants[name]}")
        return alphas

    def _tokenizer_json(
        self, tokens: list[str], types: list[Any], merges: list[str]
    ) -> dict[str, Any]:
        pre = self._text("tokenizer.ggml.pre")
        if pre not in _PATTERNS:
            raise self._error(
                f"cuts words by {pre[:80]!r} (tokenizer.ggml.pre)",
                f"Known: {', '.join(_PATTERNS)}",
            )
        pattern, whole_words = _PATTERNS[pre]
        begin = self._file.metadata.get("tokenizer.ggml.bos_token_id")
        prepends = self._prepends()
        first = self._token(tokens, "bos_token_id") if prepends else ""
        if prepends and not first:
            raise self._error("puts a token before each text, and has no bos_token_id")
        text = [{"Sequence": {"id": "A", "type_id": 0}}]
        special = [{"SpecialToken": {"id": first, "type_id": 0}}] if first else []
        bytes_only = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
        added = [
            {
                "id": number, "content": token, "single_word": False, "lstrip": False,
                "rstrip": False, "normalized": False, "special": kind == TOKEN_CONTROL,
            }
            for number, (token, kind) in enumerate(zip(tokens, types, strict=True))
            if kind in (TOKEN_CONTROL, TOKEN_USER_DEFINED)
        ]  # fmt: skip
        kept = (TOKEN_NORMAL, TOKEN_CONTROL, TOKEN_USER_DEFINED)
        pairs = [(merge.find(" ", 1), merge) for merge in merges]
        return {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": added,
            "normalizer": None,
            "pre_tokenizer": {
                "type": "Sequence",
                "pretokenizers": [
                    {
                        "type": "Split",
                        "pattern": {"Regex": pattern},
                        "behavior": "Isolated",
                        "invert": False,
                    },
                    {**bytes_only, "use_regex": False},
                ],
            },
            "post_processor": {
                "type": "TemplateProcessing",
                "single": [*special, *text],
                "pair": [*special, *text, {"Sequence": {"id": "B", "type_id": 1}}],
                "special_tokens": {first: {"id": first, "ids": [begin], "tokens": [first]}}
                if first
                else {},
            },
            "decoder": {**bytes_only, "use_regex": True},
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": False,
                "byte_fallback": False,
                "ignore_merges": whole_words,
                "vocab": {
                    token: number
                    for number, (token, kind) in enumerate(zip(tokens, types, strict=True))
                    if kind in kept
                },
                "merges": [[merge[:cut], merge[cut + 1 :]] for cut, merge in pairs],
            },
        }

    def _prepends(self) -> bool:
        """Whether the token bos_token_id is put before each text."""
        default = self._file.metadata.get("tokenizer.ggml.pre") in _BEGIN_BY_DEFAULT
        value = self._file.metadata.get("tokenizer.ggml.add_bos_token", default)
        if not isinstance(value, bool):
            raise self._error(f"has tokenizer.ggml.add_bos_token = {visible(str(value), 40)}")
        return value

    def _token(self, tokens: list[str], key: str) -> str:
        """The text of a special token; "" when the file has none."""
        number = self._file.metadata.get(f"tokenizer.ggml.{key}")
        if number is None:
            return ""
        if type(number) is not int or not 0 <= number < len(tokens):
            shown = visible(str(number), 40)
            raise self._error(f"has tokenizer.ggml.{key} = {shown}, and {len(tokens):,} tokens")
        return tokens[number]

    def _text(self, key: str) -> str:
        value = self._file.metadata.get(key)
        if not isinstance(value, str):
            raise self._error(f"has no text {key}")
        return value

    def _texts(self, key: str) -> list[str]:
        value = self._file.metadata.get(key)
        if not isinstance(value, list) or not value or not isinstance(value[0], str):
            raise self._error(f"has no texts {key}")
        return value

    def _count(self, key: str, default: int | None = None) -> int:
        value = self._file.metadata.get(f"{self._architecture}.{key}", default)
        if isinstance(value, list) and len(set(value)) == 1:  # one value for each layer
            value = value[0]
        if type(value) is not int or not 0 < value < _LARGEST_CONTEXT:
            raise self._error(f"has {self._architecture}.{key} = {visible(str(value), 80)}")
        return value

    def _number(self, key: str, default: float | None = None) -> float:
        value = self._file.metadata.get(f"{self._architecture}.{key}", default)
        if not isinstance(value, float):
            raise self._error(f"has {self._architecture}.{key} = {visible(str(value), 80)}")
        return value

    def _error(self, what: str, fix: str = "") -> DataError:
        return DataError(f"{self._file.path} {what}", fix=fix)
