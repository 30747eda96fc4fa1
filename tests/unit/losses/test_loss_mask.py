"""Borders, padding and Goldfish together, against a plain torch form of the released loss mask."""

from __future__ import annotations

from itertools import chain
from typing import get_args

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from stamm.base.errors import ConfigError
from stamm.losses.config import Goldfish, Rule
from stamm.losses.goldfish import TABLE_SEED, TABLE_SIZE, keep_mask
from stamm.losses.loss_mask import MaskTokenIds, loss_targets

BEGIN, END, PAD = 1, 2, 3
SPECIAL = MaskTokenIds(end=END, pad=PAD)
RULES: tuple[Rule, ...] = get_args(Rule)


def _packed(*lengths: int, pads: int = 0, seed: int = 0) -> tuple[NDArray[np.int64], ...]:
    """Documents of so many tokens between begin and end, then padding; and their numbers."""
    draw = np.random.RandomState(seed)
    parts = [[BEGIN, *draw.randint(4, 131_072, length), END] for length in lengths]
    parts[-1].extend([PAD] * pads)
    document = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    return np.array(list(chain.from_iterable(parts)), dtype=np.int64), document


def _released(tokens: NDArray[np.int64], pad: int, k: int, h: int) -> NDArray[np.bool_]:
    """A loss mask by the description of the released code, statement after statement, in torch."""
    text = torch.from_numpy(tokens)
    inputs, labels = text[:-1].clone(), text[1:].clone()
    loss_mask = torch.ones(len(inputs))
    loss_mask[inputs == END] = 0
    loss_mask[labels == pad] = 0
    labels[labels == pad] = 0
    if len(labels) >= h:
        table = torch.rand(TABLE_SIZE, generator=torch.Generator().manual_seed(TABLE_SEED))
        key = labels.unfold(0, h, 1).prod(dim=-1) % TABLE_SIZE
        loss_mask[h - 1 :][table[key] < 1 / k] = 0
    return (loss_mask == 1).numpy()


def test_each_rule_on_one_short_text() -> None:
    tokens = np.array([BEGIN, 9, 8, END, BEGIN, 7, END, PAD, PAD])
    document = np.array([0, 0, 0, 0, 1, 1, 1, 1, 1])
    expected = {
        "stamm": [1, 1, 1, 0, 1, 1, 0, 0],
        "released": [1, 1, 1, 0, 1, 1, 0, 0],
        "report": [1, 1, 0, 1, 1, 0, 0, 0],
    }
    for rule in RULES:
        keep = loss_targets(rule, tokens, document, SPECIAL)
        assert keep.astype(int).tolist() == expected[rule], rule
        assert keep.dtype == np.bool_


@pytest.mark.parametrize("pad", [PAD, END, -1, 500])
@pytest.mark.parametrize(("k", "h"), [(50, 50), (4, 13), (2, 1)])
def test_the_released_composition_is_reproduced_bit_for_bit(pad: int, k: int, h: int) -> None:
    """Also where padding is an id that stands in the text: the end token, or a word."""
    goldfish = Goldfish(k=k, h=h, hash="apertus")
    for seed in range(6):
        tokens, document = _packed(700, 3, 0, 160, 30, pads=90, seed=seed)
        tokens[tokens == PAD] = pad
        tokens[200:900:7] = 500
        keep = loss_targets("released", tokens, document, MaskTokenIds(end=END, pad=pad), goldfish)
        assert (keep == _released(tokens, pad, k, h)).all()
    assert not keep.all()


def test_padding_is_hashed_as_id_zero_only_where_the_released_code_is_followed() -> None:
    """A window that holds an id that counts as padding reads slot 0 of the table, which keeps."""
    tokens = np.random.RandomState(3).randint(4, 131_072, 4000).astype(np.int64)
    tokens[::10] = 500
    document = np.zeros_like(tokens)
    goldfish = Goldfish(k=5, h=13, hash="apertus")
    special = MaskTokenIds(end=END, pad=500)
    released = loss_targets("released", tokens, document, special, goldfish)
    report = loss_targets("report", tokens, document, special, goldfish)
    assert (released == (tokens[1:] != 500)).all()
    assert report.sum() < 0.85 * released.sum()


def test_documents_of_one_rule_are_those_of_the_other_when_every_text_is_whole() -> None:
    tokens, document = _packed(20, 0, 5, 100, pads=7)
    stamm, released, report = (loss_targets(rule, tokens, document, SPECIAL) for rule in RULES)
    assert (stamm == released).all()
    assert not report[tokens[1:] == END].any()
    assert report[(tokens[1:] == BEGIN) & (tokens[:-1] == END)].all()
    # A text cut off: only "stamm" knows that another begins.
    cut, border = np.delete(tokens, 21), np.delete(document, 21)
    assert tokens[21] == END and cut[21] == BEGIN
    assert not loss_targets("stamm", cut, border, SPECIAL)[20]
    assert loss_targets("released", cut, border, SPECIAL)[20]


@pytest.mark.parametrize("name", ["stamm", "apertus"])
@pytest.mark.parametrize("rule", RULES)
def test_goldfish_only_takes_away(rule: Rule, name: str) -> None:
    tokens, document = _packed(3000, 60, 500)
    goldfish = Goldfish(k=5, h=12, hash=name)  # type: ignore[arg-type]
    without = loss_targets(rule, tokens, document, SPECIAL)
    both = loss_targets(rule, tokens, document, SPECIAL, goldfish)
    assert (both == (without & keep_mask(goldfish, tokens[1:], document[1:]))).all()
    assert both.sum() < 0.9 * without.sum()


@pytest.mark.parametrize("rule", RULES)
def test_nothing_and_one_token_have_no_targets(rule: Rule) -> None:
    for count in (0, 1):
        tokens = np.full(count, END, dtype=np.int64)
        assert loss_targets(rule, tokens, tokens, SPECIAL, Goldfish()).shape == (0,)


def test_the_text_is_left_as_it_was() -> None:
    tokens, document = _packed(50, pads=5)
    before = tokens.copy()
    loss_targets("released", tokens, document, SPECIAL, Goldfish(hash="apertus"))
    assert (tokens == before).all()


@pytest.mark.parametrize("rule", ["released", "report"])
def test_a_rule_that_needs_the_end_token_says_so(rule: Rule) -> None:
    tokens, document = _packed(5)
    with pytest.raises(ConfigError, match=f"rule '{rule}' masks at the end token"):
        loss_targets(rule, tokens, document, MaskTokenIds(pad=PAD))
