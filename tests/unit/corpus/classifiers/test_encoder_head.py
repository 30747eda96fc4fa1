"""The perceptron against torch, and a head on a tiny random encoder read through transformers."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import XLMRobertaConfig, XLMRobertaModel

from stamm.base.errors import DataError
from stamm.corpus.classifiers.config import EncoderHeadConfig
from stamm.corpus.classifiers.encoder import Embed, EncoderHead, train_encoder_head
from stamm.corpus.classifiers.examples import Example
from stamm.corpus.classifiers.perceptron import (
    Layers,
    initial_layers,
    loss_and_slopes,
    train_perceptron,
)

CONFIG = EncoderHeadConfig(
    encoder="tiny", chunk_tokens=16, hidden=24, batch=8, epochs=6, rate=1e-2, warm_up=5
)


def vectors(count: int, width: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 1, (count, width)).astype(np.float32)


def test_gradients_are_those_of_torch() -> None:
    x_NW, labels_N = vectors(10, 7, 1), (np.arange(10) % 2).astype(np.int8)
    layers = initial_layers(7, CONFIG)
    mask_NH = (vectors(10, CONFIG.hidden, 2) > -0.8).astype(np.float32) / np.float32(0.8)
    loss, slopes = loss_and_slopes(layers, x_NW, labels_N, mask_NH)
    given = [torch.tensor(getattr(layers, f.name), requires_grad=True) for f in fields(Layers)]
    hidden = torch.relu(torch.tensor(x_NW) @ given[0] + given[1]) * torch.tensor(mask_NH)
    logits = hidden @ given[2] + given[3]
    expected = torch.nn.functional.cross_entropy(logits, torch.tensor(labels_N).long())
    expected.backward()
    assert abs(loss - expected.item()) < 1e-6
    for slope, value in zip(slopes, given, strict=True):
        assert value.grad is not None
        assert np.abs(slope - value.grad.numpy()).max() < 1e-6


def test_steps_are_those_of_torch_adamw() -> None:
    config = EncoderHeadConfig(
        encoder="tiny", hidden=5, batch=4, epochs=1, rate=1e-2, warm_up=0, dropout=0.0
    )
    # One row repeated: the order of visits does not matter, so torch can follow.
    x_NW = np.repeat(vectors(1, 6, 3), 8, axis=0)
    labels_N = np.ones(8, dtype=np.int8)
    found = train_perceptron(config, x_NW, labels_N, x_NW, labels_N).layers
    start = initial_layers(6, config)
    given = [torch.tensor(getattr(start, f.name), requires_grad=True) for f in fields(Layers)]
    groups = [
        {"params": [given[0], given[2]], "weight_decay": 0.01},
        {"params": [given[1], given[3]], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-2)
    for pace in (0.5, 0.0):  # two steps, linear decay to zero
        for group in optimizer.param_groups:
            group["lr"] = 1e-2 * pace
        optimizer.zero_grad()
        hidden = torch.relu(torch.tensor(x_NW[:4]) @ given[0] + given[1])
        target = torch.ones(4, dtype=torch.long)
        torch.nn.functional.cross_entropy(hidden @ given[2] + given[3], target).backward()
        optimizer.step()
    for field, value in zip(fields(Layers), given, strict=True):
        assert np.abs(getattr(found, field.name) - value.detach().numpy()).max() < 1e-6


def test_softmax_is_applied_once() -> None:
    # Apertus' training gives softmax to a loss that applies it again: with two labels that loss
    # cannot fall below log(1 + 1/e) = 0.313, however right the head is.
    sure = Layers(
        first_WH=np.eye(2, dtype=np.float32),
        first_bias_H=np.zeros(2, dtype=np.float32),
        second_H2=np.eye(2, dtype=np.float32) * 20,
        second_bias_2=np.zeros(2, dtype=np.float32),
    )
    x_NW, labels_N = np.eye(2, dtype=np.float32), np.array([0, 1], dtype=np.int8)
    loss, _ = loss_and_slopes(sure, x_NW, labels_N, np.ones((2, 2), dtype=np.float32))
    assert loss < 1e-6
    # Nor are scores: twice squashed, none could leave the band from 0.269 to 0.731.
    head = EncoderHead(config=CONFIG, encoder="x", layers=sure, embed=lambda _: x_NW[1:])
    assert head.score("a", "und") > 0.999


def test_the_epoch_is_chosen_by_accuracy_and_not_by_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    # All epochs get every row right while the loss goes on falling: by loss the last would win.
    x_NW = np.tile(np.array([[4.0], [-4.0]], dtype=np.float32), (32, 3))
    labels_N = np.tile(np.array([1, 0], dtype=np.int8), 32)
    mask_NH = np.ones((len(x_NW), CONFIG.hidden), dtype=np.float32)
    losses: list[float] = []
    logits = Layers.logits

    def watched(layers: Layers, rows_NW: np.ndarray) -> np.ndarray:
        losses.append(loss_and_slopes(layers, x_NW, labels_N, mask_NH)[0])
        return logits(layers, rows_NW)

    monkeypatch.setattr(Layers, "logits", watched)
    config = replace(CONFIG, epochs=4, rate=1e-3, warm_up=0, dropout=0.0)
    trained = train_perceptron(config, x_NW, labels_N, x_NW, labels_N)
    assert trained.accuracy == (1.0, 1.0, 1.0, 1.0)
    assert losses == sorted(losses, reverse=True)
    chosen = loss_and_slopes(trained.layers, x_NW, labels_N, mask_NH)[0]
    assert (trained.epoch, chosen) == (0, losses[0])


def test_it_learns_what_no_line_can_separate() -> None:
    x_NW = vectors(600, 4, 5)
    labels_N = (x_NW[:, 0] * x_NW[:, 1] > 0).astype(np.int8)
    config = EncoderHeadConfig(
        encoder="tiny", hidden=64, epochs=30, batch=16, rate=5e-3, warm_up=20
    )
    trained = train_perceptron(config, x_NW[:500], labels_N[:500], x_NW[500:], labels_N[500:])
    assert max(trained.accuracy) > 0.85
    assert trained.accuracy[trained.epoch] == max(trained.accuracy)
    guessed = trained.layers.logits(x_NW[500:]).argmax(axis=1)
    # The layers are those of the epoch that was chosen, not of the last one.
    assert (guessed == labels_N[500:]).mean() == trained.accuracy[trained.epoch]


@pytest.fixture(scope="module")
def embed() -> Embed:
    torch.manual_seed(0)
    encoder = XLMRobertaModel(
        XLMRobertaConfig(
            vocab_size=300,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=40,
        ),
        add_pooling_layer=False,
    ).eval()

    def read(text: str) -> np.ndarray:
        # Bytes stand in for the encoder's own tokens.
        tokens = [3 + byte for byte in text.encode()] or [3]
        rows = []
        for start in range(0, len(tokens), CONFIG.chunk_tokens):
            piece = torch.tensor([tokens[start : start + CONFIG.chunk_tokens]])
            with torch.no_grad():
                rows.append(encoder(piece).last_hidden_state[0].mean(0).numpy())
        return np.stack(rows)

    return read


def examples(count: int, start: int) -> list[Example]:
    return [
        Example(
            text=("aaaa " if number % 2 else "zzzz ") * (1 + number % 3) + str(number),
            label=number % 2,
            language="und",
            group=str(number),
            source="",
            functionality="",
            clean=False,
        )
        for number in range(start, start + count)
    ]


def test_a_head_on_an_encoder(embed: Embed, tmp_path: Path) -> None:
    head, trained = train_encoder_head(CONFIG, "hash one", embed, examples(80, 0), examples(20, 80))
    assert max(trained.accuracy) > 0.9
    again, _ = train_encoder_head(CONFIG, "hash one", embed, examples(80, 0), examples(20, 80))
    assert again.identity == head.identity
    # Toxicity takes the worst chunk: clean text around it does not help.
    alone, hidden = (
        head.score("aaaa " * 3 + "a", "und"),
        head.score("zzzz " * 16 + "aaaa " * 16, "und"),
    )
    assert alone > 0.5
    assert hidden > 0.5 > head.score("zzzz " * 16, "und")
    head.store(tmp_path)
    loaded = EncoderHead.load(tmp_path, "hash one", embed)
    assert loaded.identity == head.identity
    assert loaded.score("zzzz aaaa", "und") == head.score("zzzz aaaa", "und")
    with pytest.raises(DataError, match="hash one"):
        EncoderHead.load(tmp_path, "hash two", embed)


def test_a_chunk_scores_the_same_whatever_is_beside_it() -> None:
    layers = initial_layers(32, CONFIG)
    x_NW = vectors(9, 32, 8)
    together = layers.logits(x_NW)
    assert all((layers.logits(x_NW[n : n + 1])[0] == together[n]).all() for n in range(9))


@pytest.mark.parametrize("bad", [np.zeros((0, 4)), np.zeros(4), np.full((1, 4), np.nan)])
def test_an_encoder_that_gives_nonsense_is_refused(bad: np.ndarray) -> None:
    head = EncoderHead(
        config=CONFIG, encoder="x", layers=initial_layers(4, CONFIG), embed=lambda _: bad
    )
    with pytest.raises(DataError, match="encoder"):
        head.score("a", "und")


def test_one_label_is_nothing_to_learn_from(embed: Embed) -> None:
    with pytest.raises(DataError, match="lacks a label"):
        train_encoder_head(CONFIG, "x", embed, examples(4, 0)[::2], examples(4, 0))


@pytest.mark.parametrize("change", ["shape", "scalar", "number", "field"])
def test_damaged_layers_are_refused(tmp_path: Path, embed: Embed, change: str) -> None:
    layers = initial_layers(16, CONFIG)
    if change == "number":
        layers.second_bias_2[0] = np.nan
    if change == "shape":
        layers = replace(layers, second_bias_2=np.zeros(3, dtype=np.float32))
    if change == "scalar":
        layers = replace(layers, first_WH=np.zeros((), dtype=np.float32))
    EncoderHead(config=CONFIG, encoder="x", layers=layers, embed=embed).store(tmp_path)
    if change == "field":
        path = tmp_path / "head.json"
        path.write_text(path.read_text().replace('"dropout"', '"drop"'))
    with pytest.raises(DataError, match="no head that can be used"):
        EncoderHead.load(tmp_path, "x", embed)
