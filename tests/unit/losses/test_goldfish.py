"""The mask: the published one bit for bit, and a sound one."""

from __future__ import annotations

import json
import re
from collections import Counter
from importlib.resources import files

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from stamm.base.errors import ConfigError
from stamm.losses.config import Goldfish
from stamm.losses.goldfish import TABLE_SEED, TABLE_SIZE, coverage, keep_mask, stated_rate

VOCABULARY = 131_072


def _labels(count: int, seed: int = 0) -> NDArray[np.int64]:
    return np.random.RandomState(seed).randint(0, VOCABULARY, count).astype(np.int64)


def _zipf(count: int, seed: int = 0) -> NDArray[np.int64]:
    """Ids that are frequent where they are small, as a tokenizer's are."""
    return np.minimum(np.random.RandomState(seed).zipf(1.2, count), VOCABULARY - 1).astype(np.int64)


def _real() -> NDArray[np.int64]:
    """English and German prose, words and what stands between them, numbered by their frequency."""
    path = str(files("stamm.corpus.demo_data") / "guides.jsonl.zst")
    with pa.input_stream(path, compression="zstd") as stream:
        texts = [json.loads(line)["text"] for line in stream.read().splitlines()[:150]]
    words = [word for text in texts for word in ("<s>", *re.findall(r"\w+|\W", text), "</s>")]
    rank = {word: i for i, (word, _) in enumerate(Counter(words).most_common())}
    return np.array([73 + rank[word] for word in words], dtype=np.int64)


TEXTS = {"random": _labels(50_000), "zipf": _zipf(50_000), "real": _real()[:200_000]}


def _published(labels: NDArray[np.int64], k: int, h: int) -> NDArray[np.bool_]:
    """Written from the description of the released code, with torch throughout."""
    table = torch.rand(TABLE_SIZE, generator=torch.Generator().manual_seed(TABLE_SEED))
    key = torch.from_numpy(labels).unfold(0, h, 1).prod(dim=-1) % TABLE_SIZE
    keep = torch.ones(len(labels), dtype=torch.bool)
    keep[h - 1 :] = ~(table[key] < 1 / k)
    return keep.numpy()


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize(("k", "h"), [(50, 50), (4, 13), (50, 13), (2, 1), (3, 64), (7, 127)])
def test_the_published_hash_is_reproduced_bit_for_bit(text: str, k: int, h: int) -> None:
    labels = TEXTS[text].copy()
    labels[1000:1100] = 0  # padding, which the released code sets to 0 before it hashes
    labels[-70:] = 0
    labels[2000:2200] = 2**62 - 57  # no id, but products that wrap to negative numbers
    mask = keep_mask(Goldfish(k=k, h=h, hash="apertus"), labels, np.zeros_like(labels))
    assert (mask == _published(labels, k, h)).all()
    assert mask[: h - 1].all() and not mask.all()


@pytest.mark.parametrize("k", [2, 3, 10, 49, 50, 64, 100, 999, 2**20])
def test_the_published_table_is_cut_where_torch_cuts_it(k: int) -> None:
    """float32 against a Python number: one rounding more or less would drop other slots."""
    table = torch.rand(TABLE_SIZE, generator=torch.Generator().manual_seed(TABLE_SEED))
    found = stated_rate(Goldfish(k=k, hash="apertus"))
    assert found == float((table < 1 / k).sum()) / TABLE_SIZE
    assert found == pytest.approx(1 / k, rel=0.02, abs=3e-6)


@pytest.mark.parametrize("k", [16, 32])
def test_a_slot_that_holds_one_over_k_itself_keeps(k: int) -> None:
    """Two of the table's numbers do; "less than" is what the released code asks."""
    table = torch.rand(TABLE_SIZE, generator=torch.Generator().manual_seed(TABLE_SEED))
    slots = torch.nonzero(table == 1 / k)[:, 0].numpy()
    assert len(slots)
    assert keep_mask(Goldfish(k=k, h=1, hash="apertus"), slots, np.zeros_like(slots)).all()


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


@settings(max_examples=60, deadline=None)
@given(
    passage=st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=120),
    before=st.lists(st.integers(0, VOCABULARY - 1), max_size=60),
    behind=st.lists(st.integers(0, VOCABULARY - 1), max_size=60),
    h=st.integers(1, 40),
    salt=st.integers(0, 2**64 - 1),
)
def test_the_same_passage_is_masked_alike_wherever_it_stands(
    passage: list[int], before: list[int], behind: list[int], h: int, salt: int
) -> None:
    """As a document of its own between any others; and inside one, from its h-th token on."""
    config = Goldfish(k=3, h=h, salt=salt)
    own = np.array(passage, dtype=np.int64)
    alone = keep_mask(config, own, np.zeros_like(own))
    text = np.array([*before, *passage, *behind], dtype=np.int64)
    place = slice(len(before), len(before) + len(passage))
    document = np.repeat([4, 5, 6], [len(before), len(passage), len(behind)])
    assert (keep_mask(config, text, document)[place] == alone).all()
    inside = keep_mask(config, text, np.zeros_like(text))[place]
    assert (inside[h - 1 :] == alone[h - 1 :]).all()


@settings(max_examples=60, deadline=None)
@given(
    labels=st.lists(st.integers(0, 2**62), max_size=150),
    h=st.integers(1, 200),
    name=st.sampled_from(["stamm", "apertus"]),
    cut=st.integers(0, 150),
)
def test_a_mask_is_a_function_of_the_h_labels_up_to_it(
    labels: list[int], h: int, name: str, cut: int
) -> None:
    """With h - 1 labels before it, the rest of a text is masked as it was in the whole."""
    config = Goldfish(k=2, h=h, hash=name)  # type: ignore[arg-type]
    text = np.array(labels, dtype=np.int64)
    whole = keep_mask(config, text, np.zeros_like(text))
    assert whole.shape == text.shape and whole[: h - 1].all()
    first = max(cut - (h - 1), 0)
    part = text[first:]
    assert (keep_mask(config, part, np.zeros_like(part))[cut - first :] == whole[cut:]).all()


SALTS = range(100)


def _masked(text: str, k: int, h: int) -> NDArray[np.float64]:
    """For 100 salts, which full windows are dropped, less 1/k, in units of their spread."""
    labels = TEXTS[text][:50_000]
    zeros = np.zeros_like(labels)
    kept = [keep_mask(Goldfish(k=k, h=h, salt=salt), labels, zeros)[h - 1 :] for salt in SALTS]
    return (~np.stack(kept) - 1 / k) / np.sqrt(1 / k * (1 - 1 / k))


@pytest.mark.parametrize(("text", "k", "h"), [("random", 50, 50), ("zipf", 4, 20)])
def test_the_rate_varies_over_salts_as_chance_does(text: str, k: int, h: int) -> None:
    masked = _masked(text, k, h)
    errors = masked.mean(axis=1) * np.sqrt(masked.shape[1])  # standard errors, one a salt
    assert abs(errors.mean()) < 0.5  # five times 1 / sqrt(100)
    assert 0.7 < errors.std() < 1.35
    assert abs(errors).max() < 5


@pytest.mark.parametrize(("text", "k", "h"), [("random", 2, 50), ("zipf", 4, 20)])
def test_neighbours_and_salts_are_independent(text: str, k: int, h: int) -> None:
    masked = _masked(text, k, h)
    count = masked.shape[1]
    for lag in (1, 2, 3, h - 1, h, h + 1):
        errors = (masked[:, lag:] * masked[:, :-lag]).sum(axis=1) / np.sqrt(count - lag)
        assert abs(errors.mean()) < 0.5 and abs(errors).max() < 5, lag
    between = masked @ masked.T / np.sqrt(count)
    np.fill_diagonal(between, 0.0)
    assert abs(between).max() < 6  # of 4,950 pairs


@pytest.mark.parametrize("h", [1, 2, 50, 64, 1024])
def test_a_token_repeated_for_ever_is_dropped_always_or_never_and_by_chance(h: int) -> None:
    """Even where h is a power of two, and the factors of a window add up to an even number."""
    for token in (0, 1, 500):
        labels = np.full(h + 300, token, dtype=np.int64)
        keep = keep_mask(Goldfish(k=2, h=h), labels, np.zeros_like(labels))
        assert len(set(keep[h - 1 :].tolist())) == 1
    labels = np.repeat(np.arange(4000), h)
    ends = keep_mask(Goldfish(k=4, h=h), labels, np.zeros_like(labels))[h - 1 :: h]
    assert len(ends) == 4000
    assert abs((~ends).sum() - 1000) < 5 * np.sqrt(4000 * 0.25 * 0.75)


def test_a_document_shorter_than_a_window_is_kept_whole() -> None:
    labels = _labels(900)
    document = np.arange(900) // 30
    assert keep_mask(Goldfish(k=2, h=31), labels, document).all()
    full = keep_mask(Goldfish(k=2, h=30), labels, document)
    assert full.reshape(30, 30)[:, :-1].all()
    assert 3 < (~full.reshape(30, 30)[:, -1]).sum() < 27


def test_a_shift_of_all_ids_changes_the_mask() -> None:
    """Also by 1: neighbouring ids are as far apart as any."""
    labels = _labels(20_000) + 10
    zeros = np.zeros_like(labels)
    config = Goldfish(k=2, h=20)
    mask = keep_mask(config, labels, zeros)
    for shift in (1, -1, 2**16):
        other = keep_mask(config, labels + shift, zeros)
        assert abs((mask == other).mean() - 0.5) < 5 * np.sqrt(0.25 / 20_000)


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
