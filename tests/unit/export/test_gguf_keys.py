"""Metadata of GGUF files: every key of llama.cpp has its effect, changes nothing, or is refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf.constants import Keys

from stamm.base.errors import DataError
from stamm.export.gguf_file import HF_TOKENIZER
from stamm.export.gguf_import import GgufModel
from stamm.export.gguf_keys import FILE_KEYS, architecture_keys, check_keys
from stamm.export.llama_cpp import LlamaCpp
from stamm.tokenizer.imported import ImportedTokenizer

TOKENS = torch.arange(1, 24)[None]
TEXT = "Über 1234 it's a test\n\n  x </s>"
BYTES = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
LETTERS = [
    chr(b if b in BYTES else 0x100 + n)
    for n, b in enumerate([*BYTES, *sorted(set(range(256)) - set(BYTES))])
]
BASE: dict[str, Any] = {
    "llama.context_length": 128, "llama.embedding_length": 32, "llama.block_count": 1,
    "llama.feed_forward_length": 64, "llama.attention.head_count": 2,
    "llama.attention.head_count_kv": 2, "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.dimension_count": 16, "llama.rope.freq_base": 10_000.0,
    "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2",
    "tokenizer.ggml.tokens": [*LETTERS, "<s>", "</s>", "he", "ll", "hell", "hello"],
    "tokenizer.ggml.token_type": [1] * 256 + [3, 3] + [1] * 4,
    "tokenizer.ggml.merges": ["h e", "l l", "he ll", "hell o"],
    "tokenizer.ggml.bos_token_id": 256, "tokenizer.ggml.eos_token_id": 257,
    "tokenizer.ggml.add_bos_token": True,
}  # fmt: skip


def small_file(path: Path, keys: dict[str, Any] | None = None, **tensors: np.ndarray) -> Path:
    """A Llama of one layer; keys replace or add metadata, ... removes one."""
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in {**BASE, **(keys or {})}.items():
        if key == "general.architecture" or value is ...:
            continue
        kinds = {bool: writer.add_bool, float: writer.add_float32, str: writer.add_string}
        if key == "general.alignment":
            writer.add_custom_alignment(value)
        elif isinstance(value, list):
            writer.add_array(key, value)
        elif type(value) is int:
            (writer.add_int32 if value < 0 else writer.add_uint32)(key, value)
        else:
            kinds[type(value)](key, value)
    draws = np.random.default_rng(1)
    shapes = {
        "token_embd": (262, 32), "output": (262, 32), "blk.0.attn_q": (32, 32), "blk.0.attn_k": (32, 32),
        "blk.0.attn_v": (32, 32), "blk.0.attn_output": (32, 32), "blk.0.ffn_gate": (64, 32),
        "blk.0.ffn_up": (64, 32), "blk.0.ffn_down": (32, 64),
    }  # fmt: skip
    for name, shape in shapes.items():
        values = 0.3 * draws.standard_normal(shape, np.float32)
        writer.add_tensor(f"{name}.weight", tensors.get(name, values))
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(32, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def read(path: Path, folder: Path) -> tuple[torch.Tensor, list[int]]:
    """Logits and ids."""
    model = GgufModel(path)
    with torch.no_grad():
        logits = model.decoder()(TOKENS)
    folder.mkdir(exist_ok=True)
    model.write_tokenizer(folder)
    tokenizer = ImportedTokenizer.load(folder)
    return logits, [*tokenizer.prefix_ids(), *tokenizer.encode(TEXT)]


def agrees(path: Path, folder: Path) -> None:
    """Logits and ids are those of llama.cpp."""
    logits, ids = read(path, folder)
    theirs = LlamaCpp(path, 64)
    expected = theirs.logits(TOKENS)
    assert float((logits - expected).abs().max() / expected.abs().max()) <= 1e-5
    assert ids == theirs.encode(TEXT)


def published() -> Iterator[str]:
    """Every key of the package gguf, of a language model of the architecture llama."""

    def names(kind: type) -> Iterator[str]:
        for name, value in vars(kind).items():
            if isinstance(value, type):
                yield from names(value)
            elif not name.startswith("_"):
                yield value

    for key in names(Keys):
        if not key.startswith("clip."):
            yield (
                key.format(arch="llama", id=0, name="tool_use", dense="2_dense")
                if "{" in key
                else key
            )


@pytest.mark.parametrize("architecture", ["llama", "qwen3", "apertus"])
def test_every_published_key_is_known(architecture: str) -> None:
    keys = [key.replace("llama.", f"{architecture}.", 1) for key in published()]
    metadata = dict.fromkeys(keys)
    assert check_keys(metadata, architecture, "") == []
    own = architecture_keys(architecture)
    for key in keys:
        refusal = own.refused.get(key) or FILE_KEYS.refused.get(key)
        if refusal is not None:
            with pytest.raises(DataError, match=rf"^{key} = 'odd' .*which is not supported"):
                check_keys({key: "odd"}, architecture, "")
    for key in (f"{architecture}.spiral", f"{architecture}.rope.spiral", "tokenizer.ggml.novel"):
        with pytest.raises(
            DataError, match=rf"^{key} = 1 is unknown in a GGUF file, and may change"
        ):
            check_keys({key: 1}, architecture, "")
    novel = {f"{architecture}.off": False, "tokenizer.ggml.x_token_id": 3, "general.x": "y"}
    assert check_keys(novel, architecture, "") == sorted(novel)


# Keys that change nothing, with values that would show.
HARMLESS: dict[str, Any] = {
    "llama.rope.scaling.type": "linear", "llama.rope.scaling.finetuned": True,
    "llama.rope.scaling.original_context_length": 16, "llama.rope.scaling.factor": 1.0,
    "llama.rope.scale_linear": 1.0, "llama.attention.layer_norm_epsilon": 0.1,
    "llama.vocab_size": 262, "llama.attention.key_length": 16, "llama.logit_scale": 0.0,
    "llama.tensor_data_layout": "Meta AI original pth", "llama.expert_count": 0,
    "llama.attention.head_count_kv": [2], "llama.feed_forward_length": [64],
    "tokenizer.ggml.scores": [float(-n) for n in range(262)], "tokenizer.ggml.eot_token_id": 257,
    "tokenizer.ggml.unknown_token_id": 5, "tokenizer.ggml.eom_token_id": 257,
    "tokenizer.ggml.add_space_prefix": False, "tokenizer.ggml.add_eos_token": False,
    "tokenizer.ggml.add_bos_token": False, "tokenizer.ggml.fim_pre_token_id": 4,
    "tokenizer.ggml.padding_token_id": 257, "general.alignment": 64, "general.type": "model",
    "general.base_model.0.name": "x", "tokenizer.chat_template": "{{ messages }}",
    "general.sampling.temp": 0.5,
}  # fmt: skip


@pytest.mark.parametrize("key", HARMLESS)
def test_logits_and_ids_are_those_of_llama_cpp(key: str, tmp_path: Path) -> None:
    agrees(small_file(tmp_path / "model.gguf", {key: HARMLESS[key]}), tmp_path / "tokenizer")


@pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe", "qwen2", "qwen35", "tekken"])
def test_without_add_bos_the_rule_of_the_words_decides(pre: str, tmp_path: Path) -> None:
    keys = {"tokenizer.ggml.add_bos_token": ..., "tokenizer.ggml.pre": pre}
    agrees(small_file(tmp_path / "model.gguf", keys), tmp_path / "tokenizer")


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "the older key of linear positions": ({"llama.rope.scale_linear": 4.0}, r"llama\.rope\.scale_linear = 4\.0 scales rotary"),
    "a factor alone": ({"llama.rope.scaling.factor": 4.0}, r"llama\.rope\.scaling\.factor = 4\.0"),
    "linear": ({"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0}, r"factor = 2\.0"),
    "yarn": ({"llama.rope.scaling.type": "yarn"}, r"llama\.rope\.scaling\.type = 'yarn'"),
    "scores": ({"llama.attention.scale": 0.05}, r"attention\.scale = 0\.05"),
    "softcapping": ({"llama.final_logit_softcapping": 30.0}, r"final_logit_softcapping = 30\.0"),
    "embeddings": ({"llama.embedding_scale": 12.0}, r"embedding_scale = 12\.0"),
    "residual": ({"llama.residual_scale": 0.5}, r"residual_scale = 0\.5"),
    "logits": ({"llama.logit_scale": 0.25}, r"logit_scale = 0\.25"),
    "temperature": ({"llama.attention.temperature_length": 8192}, r"temperature_length = 8192"),
    "parallel": ({"llama.use_parallel_residual": True}, r"use_parallel_residual = True"),
    "a window": ({"llama.attention.sliding_window": 8}, r"sliding_window = 8 hides"),
    "not causal": ({"llama.attention.causal": False}, r"attention\.causal = False"),
    "an adapter": ({"general.type": "adapter"}, r"general\.type = 'adapter'"),
    "eos": ({"tokenizer.ggml.add_eos_token": True}, r"add_eos_token = True puts a token after"),
    "a blank": ({"tokenizer.ggml.add_space_prefix": True}, r"add_space_prefix = True"),
    "no rule of words": ({"tokenizer.ggml.pre": ...}, r"has no text tokenizer\.ggml\.pre"),
    "another rule of words": ({"tokenizer.ggml.pre": "default"}, r"cuts words by 'default'"),
    "another rows": ({"llama.vocab_size": 263}, r"has vocab_size = 263, and 262 rows"),
    "heads by layer": ({"llama.attention.head_count_kv": [2, 1]}, r"head_count_kv = \[2, 1\]"),
    "a negative id": ({"tokenizer.ggml.bos_token_id": -1}, r"bos_token_id = -1, and 262 tokens"),
    "an id too large": ({"tokenizer.ggml.eos_token_id": 262}, r"eos_token_id = 262, and 262 tokens"),
    "a negative id of padding": ({"tokenizer.ggml.padding_token_id": -1}, r"padding_token_id = -1"),
    "begins without a token": ({"tokenizer.ggml.bos_token_id": ...}, r"has no bos_token_id"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_honoured_is_refused_by_name(case: str, tmp_path: Path) -> None:
    keys, message = REFUSED[case]
    path = small_file(tmp_path / "model.gguf", keys)
    with pytest.raises(DataError, match=message) as raised:
        read(path, tmp_path / "tokenizer")
    assert "\n" not in str(raised.value)


def test_a_token_that_is_there_twice_is_named(tmp_path: Path, capfd: Any) -> None:
    tokens = [*BASE["tokenizer.ggml.tokens"][:-1], "hell"]
    path = small_file(tmp_path / "m.gguf", {"tokenizer.ggml.tokens": tokens})
    with pytest.raises(DataError, match=r"has the token 'hell' twice"):
        read(path, tmp_path / "tokenizer")
    # A vocabulary at which the library panics is one line, too.
    kinds = [*BASE["tokenizer.ggml.token_type"][:-1], 2]
    path = small_file(tmp_path / "m.gguf", {"tokenizer.ggml.token_type": kinds})
    with pytest.raises(DataError, match=r"not a tokenizer: range end index"):
        read(path, tmp_path / "tokenizer")
    assert "panicked" not in capfd.readouterr().err


def test_weights_with_nan_and_big_endian_files_are_refused(tmp_path: Path) -> None:
    damaged = np.ones((64, 32), np.float32)
    damaged[3, 3] = np.nan
    path = small_file(tmp_path / "model.gguf", **{"blk.0.ffn_up": damaged})
    with pytest.raises(DataError, match=r"mlp\.up_proj\.weight of the model contains NaN"):
        GgufModel(path).decoder()
    writer = gguf.GGUFWriter(tmp_path / "big.gguf", "llama", endianess=gguf.GGUFEndian.BIG)
    writer.write_header_to_file()
    writer.close()
    with pytest.raises(DataError, match="is big-endian, which is not read"):
        GgufModel(tmp_path / "big.gguf")


def test_a_stored_tokenizer_must_begin_texts_as_the_file_does(tmp_path: Path) -> None:
    path = small_file(tmp_path / "model.gguf")
    GgufModel(path).write_tokenizer(tmp_path)
    stored = (tmp_path / "tokenizer.json").read_text(encoding="utf-8")
    agrees(small_file(tmp_path / "same.gguf", {HF_TOKENIZER: stored}), tmp_path / "same")
    other = {HF_TOKENIZER: stored, "tokenizer.ggml.add_bos_token": False}
    with pytest.raises(DataError, match=r"add_bos_token = False, and tokenizer\.huggingface\.json"):
        read(small_file(tmp_path / "other.gguf", other), tmp_path / "other")
