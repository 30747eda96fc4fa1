"""The mask: the published one bit for bit, and a sound one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from stamm.base.errors import ConfigError
from stamm.losses.goldfish import TABLE_SEED, TABLE_SIZE, Goldfish, coverage, keep_mask

VOCABULARY = 131_072


def _labels(count: int, seed: int = 0) -> NDArray[np.int64]:
    return np.random.RandomState(seed).randint(0, VOCABULARY, count).astype(np.int64)


def _published(labels: NDArray[np.int64], k: int, h: int) -> NDArray[np.bool_]:
    """Written from the description of the released code, with torch throughout."""
    table = torch.rand(TABLE_SIZE, generator=torch.Generator().manual_seed(TABLE_SEED))
    key = torch.from_numpy(labels).unfold(0, h, 1).prod(dim=-1) % TABLE_SIZE
    keep = torch.ones(len(labels), dtype=torch.bool)
    keep[h - 1 :] = ~(table[key] < 1 / k)
    return keep.numpy()


@pytest.mark.parametrize(("k", "h"), [(50, 50), (4, 13), (50, 13), (2, 1)])
def test_the_published_hash_is_reproduced_bit_for_bit(k: int, h: int) -> None:
    labels = _labels(50_000)
    labels[1000:1100] = 0  # a product of zero reads slot 0
    mask = keep_mask(Goldfish(k=k, h=h, hash="apertus"), labels, np.zeros_like(labels))
    assert (mask == _published(labels, k, h)).all()


def test_the_published_hash_collapses_to_zero_and_coverage_says_so() -> None:
    # 50 ids collect 64 factors of two in one window of ten, even when they are uniform.
    labels = _labels(100_000)
    document = np.zeros_like(labels)
    published = coverage(Goldfish(hash="apertus"), [(labels, document)])
    sound = coverage(Goldfish(), [(labels, document)])
    assert published.zero_share > 0.08
    assert published.rate < 0.017
    assert sound.zero_share == 0.0


def test_the_sound_hash_drops_one_in_k() -> None:
    labels = _labels(400_000)
    for k in (4, 50):
        measured = coverage(Goldfish(k=k), [(labels, np.zeros_like(labels))])
        spread = 5 * np.sqrt((1 / k) * (1 - 1 / k) / len(labels))  # five standard deviations
        assert abs(measured.rate - 1 / k) < spread
        assert measured.masked == round(measured.rate * measured.labels)


def test_gaps_are_geometric_under_the_sound_hash() -> None:
    measured = coverage(Goldfish(k=50), [(_labels(400_000), np.zeros(400_000, dtype=np.int64))])
    median = np.log(0.5) / np.log(1 - 1 / 50)
    assert abs(measured.gap_quantiles[0] - median) < 4


def test_coverage_over_windows_counts_what_training_on_windows_masks() -> None:
    """The published code hashes each window by itself, and never masks its first h - 1 labels."""
    config, labels = Goldfish(hash="apertus", k=4, h=13), _labels(6400)
    windows = [(labels[i : i + 64], np.zeros(64, dtype=np.int64)) for i in range(0, 6400, 64)]
    measured = coverage(config, windows)
    masked = sum(int((~keep_mask(config, a, b)).sum()) for a, b in windows)
    assert (measured.labels, measured.masked) == (6400, masked)
    assert measured.rate < coverage(config, [(labels, np.zeros_like(labels))]).rate


def test_the_same_passage_is_masked_alike_wherever_it_stands() -> None:
    passage = _labels(400, seed=2)
    config = Goldfish(k=10, h=20)
    alone = keep_mask(config, passage, np.zeros_like(passage))
    before = _labels(77, seed=3)
    together = np.concatenate([before, passage])
    document = np.repeat([1, 2], [len(before), len(passage)])
    assert (keep_mask(config, together, document)[len(before) :] == alone).all()
    assert not alone[19:].all()


def test_a_window_never_crosses_a_document_border() -> None:
    labels, h = _labels(1000), 20
    document = np.arange(1000) // 100
    keep = keep_mask(Goldfish(k=2, h=h), labels, document)
    for start in range(0, 1000, 100):
        assert keep[start : start + h - 1].all()
    assert not keep.all()


def test_the_sound_hash_depends_on_the_order_and_on_the_salt() -> None:
    labels = _labels(5000)
    zeros = np.zeros_like(labels)
    swapped = labels.copy()
    swapped[::2], swapped[1::2] = labels[1::2], labels[::2]
    config = Goldfish(k=4, h=6)
    assert (keep_mask(config, labels, zeros) != keep_mask(config, swapped, zeros)).any()
    salted = Goldfish(k=4, h=6, salt=1)
    assert (keep_mask(config, labels, zeros) != keep_mask(salted, labels, zeros)).any()


def test_the_sound_hash_is_frozen() -> None:
    """A change would unlearn what a run in progress has masked: these are the first masked places."""
    keep = keep_mask(Goldfish(k=10, h=5), np.arange(200, dtype=np.int64), np.zeros(200, np.int64))
    assert np.flatnonzero(~keep)[:6].tolist() == FROZEN


FROZEN = [7, 8, 15, 43, 45, 48]


def test_short_runs_are_kept_whole() -> None:
    for name in ("stamm", "apertus"):
        config = Goldfish(k=2, h=50, hash=name)  # type: ignore[arg-type]
        assert keep_mask(config, _labels(49), np.zeros(49, dtype=np.int64)).all()


def test_settings_are_checked() -> None:
    with pytest.raises(ConfigError, match="k = 1 must be at least 2"):
        Goldfish(k=1)
