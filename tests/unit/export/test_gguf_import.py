"""GGUF files become decoders with their tokenizer; damaged and foreign files are one line."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from stamm.base.errors import DataError
from stamm.base.files import read_json
from stamm.export.gguf_file import HF_TOKENIZER, write_gguf
from stamm.export.gguf_import import GgufModel
from stamm.export.gguf_reader import GgufReader
from stamm.export.gguf_tokenizer import GgufTokenizer, read_bpe
from stamm.export.llama_cpp import LlamaCpp
from stamm.models.config import DecoderConfig
from stamm.models.decoder import Decoder
from stamm.tokenizer.imported import ImportedTokenizer
from stamm.tokenizer.tokenizer import Tokenizer
from tests.unit.export.test_gguf import LAYOUTS, SMALL, decoder_of

TEXTS = (
    "Über 1234 Wörter, l'ÉCOLE; it's 3.14!\n\n  x\t日本語 हिन्दी العَرَبِيَّة 🙂",
    "it's WE'LL a/\n b",
    "</s> <s>",
)


def write(
    path: Path,
    inputs: dict[str, Path],
    config: DecoderConfig = SMALL,
    kind: str = "F32",
    decoder: Decoder | None = None,
    **changed: Any,
) -> Path:
    file = inputs["tokenizer"] / "tokenizer.json"
    tokens, types, merges = read_bpe(file, config.vocab_size)
    described: dict[str, Any] = {
        "pre": "qwen35", "tokens": tokens, "types": types, "merges": merges, "begin": 1, "pad": 3,
        "add_begin": True, "ends": [2], "json": file.read_text(encoding="utf-8"),
    }  # fmt: skip
    write_gguf(path, GgufTokenizer(**{**described, **changed}), decoder or decoder_of(config), kind)
    return path


@pytest.fixture(scope="module")
def file(inputs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("gguf") / "model.gguf", inputs)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_export_comes_back_bit_for_bit(
    layout: str, inputs: dict[str, Path], tmp_path: Path
) -> None:
    config, _ = LAYOUTS[layout]
    found = GgufModel(write(tmp_path / "model.gguf", inputs, config))
    ours, theirs = decoder_of(config), found.decoder()
    assert theirs.config.rope == config.rope
    assert theirs.config.tied_embeddings == config.tied_embeddings
    tokens = torch.arange(90)[None]
    with torch.no_grad():
        assert torch.equal(theirs(tokens), ours(tokens))
    found.write_tokenizer(tmp_path)
    written = (tmp_path / "tokenizer.json").read_bytes()
    assert written == (inputs["tokenizer"] / "tokenizer.json").read_bytes()


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0"])
def test_types_are_dequantized_as_by_the_package(kind: str, tmp_path: Path) -> None:
    weights = torch.randn(6, 64, generator=torch.Generator().manual_seed(1)).numpy()
    stored = gguf.quants.quantize(weights, gguf.GGMLQuantizationType[kind])
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    writer.add_array("some.floats", [0.5, -2.0])
    writer.add_bool("some.bool", True)
    writer.add_tensor("a", weights[:, :3].copy())
    writer.add_tensor("b", stored, raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = GgufReader(tmp_path / "x.gguf")
    assert (found.metadata["some.floats"], found.metadata["some.bool"]) == ([0.5, -2.0], True)
    expected = gguf.quants.dequantize(stored, gguf.GGMLQuantizationType[kind])
    assert np.array_equal(found.read("b").numpy(), expected.reshape(6, 64))
    assert np.array_equal(found.read("a").numpy(), weights[:, :3])


def test_quantized_weights_are_named(inputs: dict[str, Path], tmp_path: Path) -> None:
    found = GgufModel(write(tmp_path / "model.gguf", inputs, kind="Q8_0"))
    assert found.quantization == "9 F32, 14 Q8_0"
    apart = found.decoder().model.embed_tokens.weight - decoder_of(SMALL).model.embed_tokens.weight
    assert 0 < float(apart.detach().abs().max()) < 0.01


@pytest.mark.parametrize("pre", ["llama-bpe", "qwen2", "qwen35", "gpt-2"])
def test_without_a_stored_tokenizer_ids_are_those_of_llama_cpp(
    pre: str, inputs: dict[str, Path], tmp_path: Path
) -> None:
    path = write(tmp_path / "model.gguf", inputs, pre=pre, json="")
    GgufModel(path).write_tokenizer(tmp_path)
    ours, theirs = ImportedTokenizer.load(tmp_path), LlamaCpp(path, 96)
    assert ours.prefix_ids() == [1]
    for text in TEXTS:
        assert [1, *ours.encode(text)] == theirs.encode(text)


def test_tekken_is_the_pattern_of_the_original(inputs: dict[str, Path], tmp_path: Path) -> None:
    GgufModel(write(tmp_path / "model.gguf", inputs, pre="tekken", json="")).write_tokenizer(
        tmp_path
    )
    ours, original = ImportedTokenizer.load(tmp_path), Tokenizer.load(inputs["tokenizer"])
    for text in TEXTS:
        assert ours.encode(text) == original.encode(text)


def test_the_chat_template_and_the_ends_come_along(inputs: dict[str, Path], tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf", inputs, template="{{ messages }}", ends=[2, 5])
    GgufModel(path).write_tokenizer(tmp_path)
    assert (tmp_path / "chat_template.jinja").read_text() == "{{ messages }}"
    config = read_json(tmp_path / "tokenizer_config.json")
    tokens = read_bpe(inputs["tokenizer"] / "tokenizer.json", 352)[0]
    names = {"bos_token": tokens[1], "eos_token": tokens[5], "pad_token": tokens[3]}
    assert {key: config[key] for key in names} == names


def swapped(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    def change(data: bytes) -> bytes:
        assert old in data
        return data.replace(old, new, 1)

    return change


def count(place: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:place] + struct.pack("<Q", 1 << 60) + data[place + 8 :]


def absurd_array(data: bytes) -> bytes:
    place = data.index(b"xielu.alpha_p") + len(b"xielu.alpha_p") + 8
    return data[:place] + struct.pack("<Q", 1 << 61) + data[place + 8 :]


def moved_tensor(data: bytes) -> bytes:
    place = data.index(b"blk.0.attn_k.weight") + len(b"blk.0.attn_k.weight") + 4 + 16 + 4
    return data[:place] + struct.pack("<Q", 1 << 62) + data[place + 8 :]


def other_type(data: bytes) -> bytes:
    place = data.index(b"blk.0.attn_k.weight") + len(b"blk.0.attn_k.weight") + 4 + 16
    return data[:place] + struct.pack("<I", 12) + data[place + 4 :]


HOSTILE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda data: b"", "cannot be read"),
    "another format": (lambda data: b"PK\x03\x04" + data[4:], "does not begin with GGUF"),
    "version": (swapped(b"GGUF\x03", b"GGUF\x09"), "has GGUF version 9"),
    "cut in the header": (lambda data: data[:900], "ends within its header"),
    "cut in a tensor": (lambda data: data[:-40], "ends within the tensor 'output.weight'"),
    "2^60 tensors": (count(8), "ends within its header|not UTF-8|dimensions"),
    "2^60 keys": (count(16), "damaged|ends within its header"),
    "an array of 2^61": (absurd_array, "ends within its header"),
    "a tensor outside": (moved_tensor, "'blk.0.attn_k.weight' is at 4611686018427387904"),
    "another type": (other_type, r"tensors of type Q4_K; F32, F16, BF16, Q8_0 are read"),
    "a tensor twice": (swapped(b"blk.1.attn_k.weight", b"blk.0.attn_k.weight"), "occurs twice"),
    "a key twice": (swapped(b"xielu.alpha_n", b"xielu.alpha_p"), "'xielu.alpha_p' occurs twice"),
    "architecture": (swapped(b"\7\0\0\0\0\0\0\0apertus", b"\7\0\0\0\0\0\0\0gemma\x1b2"), r"'gemma\\x1b2'"),
    "a foreign tensor": (swapped(b"blk.1.attn_k.weight", b"blk.1.attn_k.bias\0\0"), "attn_k.weight is missing"),
    "another alpha": (swapped(b"xielu.alpha_n", b"xielu.alpha_x"), "has no xielu.alpha_n for each"),
    "a layer less": (swapped(b"apertus.block_count\4\0\0\0\2", b"apertus.block_count\4\0\0\0\1"), "not supported: 'blk.1"),
    "absurd layers": (swapped(b"apertus.block_count\4\0\0\0\2\0\0\0", b"apertus.block_count\4\0\0\0\2\0\0\7"), "block_count = 117440514, and 23 t"),
    "absurd width": (swapped(b"feed_forward_length\4\0\0\0\x40\0\0", b"feed_forward_length\4\0\0\0\x40\0\7"), "does not fit its metadata: blk.0.ffn_up.weight"),
}  # fmt: skip


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_file_is_one_line(kind: str, file: Path, tmp_path: Path) -> None:
    change, message = HOSTILE[kind]
    path = tmp_path / "hostile.gguf"
    path.write_bytes(change(file.read_bytes()))
    with pytest.raises(DataError, match=message) as raised:
        model = GgufModel(path)
        model.decoder()
        model.write_tokenizer(tmp_path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"json": "", "pre": "deepseek-coder"}, r"cuts words by 'deepseek-coder'"),
        ({"json": '{"model": {"type": "Unigram"}}'}, "not a tokenizer"),
        ({"merges": ["a b"]}, rf"another vocabulary in {HF_TOKENIZER}"),
        ({"types": [1]}, "no token_type for each token"),
    ],
)
def test_another_tokenizer_is_refused(
    changed: dict[str, Any], message: str, inputs: dict[str, Path], tmp_path: Path
) -> None:
    model = GgufModel(write(tmp_path / "model.gguf", inputs, **changed))
    with pytest.raises(DataError, match=message):
        model.write_tokenizer(tmp_path)


def test_other_rotary_factors_are_refused(inputs: dict[str, Path], tmp_path: Path) -> None:
    config = LAYOUTS["llama3 rope"][0]
    unusual = replace(config.rope, high_frequency_factor=3.0)  # type: ignore[type-var]
    with pytest.raises(DataError, match="other than Llama 3's"):
        GgufModel(write(tmp_path / "x.gguf", inputs, replace(config, rope=unusual, d_model=256)))
