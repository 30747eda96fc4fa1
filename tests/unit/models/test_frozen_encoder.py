"""A tiny random encoder of XLM-R's kind, saved by transformers: read in chunks, judged by a head."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast, XLMRobertaConfig, XLMRobertaModel

from stamm.base.errors import DataError
from stamm.corpus.classifiers.config import EncoderHeadConfig, ThresholdConfig
from stamm.corpus.classifiers.encoder import EncoderHead, train_encoder_head
from stamm.corpus.classifiers.examples import Example
from stamm.corpus.classifiers.thresholds import language_thresholds
from stamm.models.frozen_encoder import FrozenEncoder

CHUNK = 16
CONFIG = EncoderHeadConfig(
    encoder="tiny", chunk_tokens=CHUNK, hidden=24, batch=8, epochs=6, rate=1e-2, warm_up=5
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bytes are its words, framed by <s> and </s>."""
    place = tmp_path_factory.mktemp("encoder")
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {name: i for i, name in enumerate(["<s>", "<pad>", "</s>", "<unk>", *letters])}
    plain = Tokenizer(models.BPE(vocab=words, merges=[], unk_token="<unk>"))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    PreTrainedTokenizerFast(
        tokenizer_object=plain, cls_token="<s>", sep_token="</s>", **names
    ).save_pretrained(place)
    torch.manual_seed(0)
    XLMRobertaModel(
        XLMRobertaConfig(
            vocab_size=len(words), hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
            intermediate_size=32, max_position_embeddings=CHUNK + 2, pad_token_id=1,
        ),
        add_pooling_layer=False,
    ).save_pretrained(place)  # fmt: skip
    return place


@pytest.fixture(scope="module")
def encoder(folder: Path) -> FrozenEncoder:
    return FrozenEncoder(folder, CHUNK)


def test_a_chunk_is_the_mean_of_its_own_states(folder: Path, encoder: FrozenEncoder) -> None:
    text = "one two three four five six"
    found = encoder(text)
    room = CHUNK - 2  # <s> and </s> stand around each chunk
    pieces = [text[i : i + room] for i in range(0, len(text), room)]
    assert found.shape == (len(pieces), 16)
    assert found.dtype == np.float32
    model = XLMRobertaModel.from_pretrained(folder, add_pooling_layer=False).eval()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    for piece, vector in zip(pieces, found, strict=True):
        ids = torch.tensor([tokenizer(piece)["input_ids"]])
        assert ids[0, 0] == 0
        assert ids[0, -1] == 2
        with torch.no_grad():
            expected = model(ids).last_hidden_state[0].mean(0).numpy()
        assert np.abs(vector - expected).max() < 1e-6


def test_what_stands_beside_a_chunk_does_not_change_it(encoder: FrozenEncoder) -> None:
    room = CHUNK - 2
    first, second = "a" * room, "b" * room
    assert (encoder(first + second)[0] == encoder(first)[0]).all()
    assert (encoder(first + second)[1] == encoder(second)[0]).all()


@pytest.mark.parametrize("text", ["", " ", "\ud800", "</s><s><pad>", "\x00", "e\u0301" * 300])
def test_every_text_has_a_chunk(encoder: FrozenEncoder, text: str) -> None:
    found = encoder(text)
    assert len(found) >= 1
    assert np.isfinite(found).all()


def examples(count: int, start: int) -> list[Example]:
    return [
        Example(
            text=("aaaa " if n % 2 else "zzzz ") * (1 + n % 3) + str(n), label=n % 2,
            language="und", group=str(n), source="", functionality="", clean=False,
        )
        for n in range(start, start + count)
    ]  # fmt: skip


def test_the_worst_chunk_decides_and_each_language_has_its_own_threshold(
    folder: Path, encoder: FrozenEncoder, tmp_path: Path
) -> None:
    head, trained = train_encoder_head(
        CONFIG, encoder.identity, encoder, examples(80, 0), examples(20, 80)
    )
    assert max(trained.accuracy) > 0.8  # the last chunk of a text may hold its number alone
    clean = "zzzz " * 9
    page = clean + "aaaa " * 9 + clean
    chunks = [float(head.layers.logits(v[None])[0] @ [-1, 1]) for v in encoder(page)]
    assert head.score(page, "und") == pytest.approx(1 / (1 + np.exp(-max(chunks))), abs=1e-6)
    assert head.score(page, "und") > 0.5 > head.score(clean, "und")
    head.store(tmp_path)
    again = EncoderHead.load(tmp_path, FrozenEncoder(folder, CHUNK).identity, encoder)
    assert again.score(page, "und") == head.score(page, "und")
    # The same share of each language goes, however high its scores are.
    scores = {
        "deu_Latn": [head.score("zzzz " * 2 + "a" * n, "deu_Latn") for n in range(40)],
        "fra_Latn": [head.score("aaaa " * 2 + "z" * n, "fra_Latn") for n in range(40)],
    }
    cuts = language_thresholds(scores, ThresholdConfig(share=0.05, fewest=10))
    assert {name: cut.above for name, cut in cuts.items()} == {"deu_Latn": 2, "fra_Latn": 2}


def test_no_encoder_is_told_in_one_line(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        FrozenEncoder(tmp_path / "xlm-roberta-base", CHUNK)
    told = str(caught.value)
    assert "xlm-roberta-base holds no encoder that can be used: it has no config.json" in told
    assert "save_pretrained" in told
    assert "\n" not in told
    with pytest.raises(DataError, match=r"reads 16 tokens at once, fewer than 512.*=16"):
        FrozenEncoder(folder, 512)


@pytest.mark.parametrize(
    "damage", ["weights", "cut", "half", "pickle", "tokenizer", "words", "config"]
)
def test_a_damaged_encoder_is_told_in_one_line(folder: Path, tmp_path: Path, damage: str) -> None:
    place = tmp_path / "damaged"
    shutil.copytree(folder, place)
    weights = place / "model.safetensors"
    if damage in ("weights", "pickle"):
        weights.unlink()
    if damage == "pickle":
        torch.save(load_file(folder / "model.safetensors"), place / "pytorch_model.bin")
    if damage == "cut":
        weights.write_bytes(weights.read_bytes()[:1000])
    if damage == "half":
        state = load_file(weights)
        save_file({k: v for k, v in state.items() if "layer.1" not in k}, weights)
    if damage == "tokenizer":
        for path in place.glob("tokenizer*"):
            path.unlink()
    if damage == "words":
        path = place / "tokenizer.json"
        plain = json.loads(path.read_text(encoding="utf-8"))
        plain["model"]["vocab"]["more"] = len(plain["model"]["vocab"])
        path.write_text(json.dumps(plain), encoding="utf-8")
    if damage == "config":
        (place / "config.json").write_text(json.dumps({"model_type": "nothing"}))
    with pytest.raises(DataError, match="no encoder that can be used") as caught:
        FrozenEncoder(place, CHUNK)
    assert "\n" not in str(caught.value)


def test_another_tokenizer_is_another_encoder(
    folder: Path, encoder: FrozenEncoder, tmp_path: Path
) -> None:
    place = tmp_path / "changed"
    shutil.copytree(folder, place)
    assert FrozenEncoder(place, CHUNK).identity == encoder.identity
    path = place / "tokenizer.json"
    path.write_text(path.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    assert FrozenEncoder(place, CHUNK).identity != encoder.identity
