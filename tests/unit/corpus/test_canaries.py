"""Canaries: the same for a seed, distinct where they must be, in nobody's ranges, masked apart."""

from __future__ import annotations

import ipaddress
import json
import re
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from stamm.base.errors import ConfigError, DataError
from stamm.corpus.canaries.job import Canary, canary_row, plan_canaries, plan_probes
from stamm.corpus.config import KINDS, CanariesConfig, ProbesConfig
from stamm.corpus.limits import ReadLimits
from stamm.corpus.pii.config import PiiConfig
from stamm.losses.config import Goldfish
from stamm.losses.goldfish import keep_mask

PROBES = ProbesConfig(books="books.jsonl", passages_per_bucket=2, repeats=(0, 4))
CONFIG = CanariesConfig(per_bucket=2, repeats=(0, 1, 16))
VERBATIM = ("random_characters", "random_words", "secret")


@pytest.fixture
def books(tmp_path: Path) -> Path:
    path = tmp_path / "books.jsonl"
    sentences = " ".join(
        f"Sentence {i} of the book tells of {i * 7919 % 1000} apples and {i * 31 % 77} winters."
        for i in range(1500)
    )
    row = {"text": sentences, "url": "https://example.org/book", "licence": "CC0-1.0"}
    path.write_text(json.dumps(row) + "\n")
    return path


def plan(books: Path, config: CanariesConfig = CONFIG, seed: int = 1) -> list[Canary]:
    return plan_canaries(config, PROBES, books, ReadLimits(), seed, PiiConfig())


def flat(text: str) -> str:
    return " ".join(text.split())


def test_every_kind_and_bucket_in_order(books: Path) -> None:
    found = plan(books)
    assert [(c.kind, c.repeat) for c in found] == [
        (kind, repeat) for kind in KINDS for repeat in CONFIG.repeats for _ in range(2)
    ]
    assert len({c.probe_id for c in found}) == len({c.text for c in found}) == len(found)


def test_the_stream_holds_each_text_as_often_as_its_bucket_says(books: Path) -> None:
    ids: list[str] = []
    for canary in plan(books):
        assert sum(copy.repeat for copy in canary.copies) == canary.repeat
        assert all(flat(canary.text) in flat(copy.text) for copy in canary.copies)
        varied = canary.kind not in VERBATIM and canary.repeat > 1
        assert len(canary.copies) == (canary.repeat if varied else 1)
        ids += [copy.document_id for copy in canary.copies]
    assert len(set(ids)) == len(ids)


def test_a_seed_decides_and_a_kind_left_out_changes_no_made_up_text(books: Path) -> None:
    assert plan(books) == plan(books)
    made = [{c.text for c in plan(books, seed=s) if c.kind in VERBATIM} for s in (1, 2)]
    assert made[0].isdisjoint(made[1])
    few = plan(books, replace(CONFIG, kinds=("secret",)))
    assert few == [c for c in plan(books) if c.kind == "secret"]


def test_passages_of_probes_are_not_used_again(books: Path) -> None:
    probes = plan_probes(PROBES, books, ReadLimits(), 1, PiiConfig())
    assert {p.text for p in probes}.isdisjoint(c.text for c in plan(books))


def test_secrets_belong_to_nobody(books: Path) -> None:
    secrets = plan(books, replace(CONFIG, kinds=("secret",), per_bucket=20))
    text = "\n".join(canary.text for canary in secrets)
    assert set(re.findall(r"@([\w.]+)", text)) == {"example.org", "example.com", "example.net"}
    addresses = [
        ipaddress.ip_address(a) for a in re.findall(r"at (\S+) and (\S+),", text) for a in a
    ]
    assert len(addresses) > 100
    assert not any(address.is_global for address in addresses)
    for country, number in re.findall(r"\+(\d+) ([\d ]+),", text):
        wanted = r"\d{3} 555 01\d\d" if country == "1" else r"20 7946 0\d{3}"
        assert re.fullmatch(wanted, number)
    assert all(d.startswith("00:00:5e:00:53:") for d in re.findall(r"device (\S+),", text))


def masked(text: str, passage: str) -> set[int]:
    """Which words of the passage Goldfish drops in a text that ends with it, laid out somehow."""
    tokens = re.findall(r"\n| +|[^\s]+", text)
    labels = np.array([zlib.crc32(t.encode()) for t in tokens], np.int64)
    keep = keep_mask(Goldfish(k=10, h=13), labels, np.zeros(len(labels), np.int64))
    words = [bool(k) for k, token in zip(keep, tokens, strict=True) if token.strip()]
    return {i for i, kept in enumerate(words[-len(passage.split()) :]) if not kept}


@pytest.mark.parametrize(
    ("kind", "lowest", "highest"),
    [
        ("random_words", 1.0, 1.0),
        ("rewrapped", 3.0, 11.0),
        ("indented", 3.0, 11.0),
        ("prefixed", 1.0, 2.5),
    ],
)
def test_layouts_are_masked_in_other_places(
    books: Path, kind: str, lowest: float, highest: float
) -> None:
    # With one token in ten masked and 16 independent masks, four words in five are masked
    # somewhere: 8 times as many as by one. A new beginning only reaches as far as the window.
    ratios = []
    for canary in plan(books):
        if canary.kind == kind and canary.repeat == 16:
            masks = [masked(copy.text, canary.text) for copy in canary.copies]
            ratios.append(len(set().union(*masks)) / np.mean([len(mask) for mask in masks]))
    assert len(ratios) == 2
    assert all(lowest <= ratio <= highest for ratio in ratios), ratios


def test_a_row_has_the_fields_of_a_probe(books: Path) -> None:
    rows = [canary_row(canary) for canary in plan(books)]
    assert {"probe_id", "kind", "repeat", "document_id", "text", "url", "licence"} <= set(rows[0])
    assert {row["licence"] for row in rows} == {"CC0-1.0"}
    assert json.loads(json.dumps(rows)) == rows


@pytest.mark.parametrize(
    "change",
    [
        lambda config: replace(config, per_bucket=500),
        lambda config: replace(config, kinds=("rewrapped",), repeats=(0,), per_bucket=10_000),
    ],
)
def test_too_few_passages_are_told(
    books: Path, change: Callable[[CanariesConfig], CanariesConfig]
) -> None:
    with pytest.raises(DataError, match="passages beside the probes"):
        plan(books, change(CONFIG))


def test_layouts_that_run_out_are_told(tmp_path: Path) -> None:
    path = tmp_path / "books.jsonl"
    path.write_text(
        json.dumps({"text": "Ab cd ef. " * 3 + "".join(f"Gh {i}. " for i in range(99))})
    )
    short = replace(PROBES, shortest=10, longest=20, passages_per_bucket=1)
    config = CanariesConfig(kinds=("rewrapped",), repeats=(50,), per_bucket=1)
    with pytest.raises(DataError, match="50 different layouts"):
        plan_canaries(config, short, path, ReadLimits(), 1, PiiConfig())


def test_refused_settings() -> None:
    with pytest.raises(ConfigError, match=r"per_bucket = 0 .*repeats = \(1, 1\)"):
        CanariesConfig(per_bucket=0, repeats=(1, 1))
