"""Precision, recall and F of text extraction on two public sets of annotated pages, and its time.

passages   trafilatura's evaluation pages: passages that must occur in the text (`with`) and that must
           not (`without`), compared with collapsed whitespace. F is over all passages; its standard
           error is from 1,000 resamples of the pages. Half of the pages (even first byte of the
           MD5 of the address) served to choose the rules of stamm.corpus.extract.
articles   scrapinghub's article-extraction-benchmark: the text of each article, by shingles of four
           words; true and false positives and negatives are divided by their sum for each page. No
           rule was chosen by it.

The pages belong to others and are not part of stamm: give the folders of checkouts. Libraries that
are not installed are left out.

Run      python -m bench.extraction TRAFILATURA [--articles ARTICLES] [--write FILE]
Prints   a table; --write appends the rows to a JSONL file
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import importlib
import importlib.metadata
import json
import random
import re
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from resiliparse.extract.html2text import extract_plain_text
from resiliparse.parse.html import HTMLTree

from stamm.base.processor import cpu_name
from stamm.corpus.charset import decode
from stamm.corpus.extract import extract
from stamm.corpus.limits import ReadLimits

_LIMITS = ReadLimits()
_RESAMPLES = 1000
_SHINGLE = 4
_PERCENTILES = (50, 75, 90, 95, 99)
Extractor = Callable[[bytes], str]
Counts = tuple[float, float, float]  # true positives, false positives, false negatives


def stamm(body: bytes) -> str:
    """stamm's extraction, with its licence marks, meta elements and second reading."""
    return extract(body, None, _LIMITS).text


def resiliparse(body: bytes) -> str:
    """resiliparse's main content, as stamm used it before."""
    tree = HTMLTree.parse(decode(body, None))
    return extract_plain_text(tree, main_content=True, alt_texts=False)


def trafilatura(fast: bool) -> Extractor:
    """trafilatura with the options of its own evaluation."""
    library = importlib.import_module("trafilatura")
    return lambda body: library.extract(body, fast=fast, include_comments=False) or ""


def extractors() -> dict[str, Extractor]:
    """Extractors by name and version; those that are installed."""
    version = importlib.metadata.version
    found: dict[str, Extractor] = {
        "stamm": stamm,
        f"resiliparse {version('resiliparse')}, main content": resiliparse,
    }
    try:
        name = f"trafilatura {version('trafilatura')}"
    except importlib.metadata.PackageNotFoundError:
        return found
    return found | {f"{name}, fast": trafilatura(fast=True), name: trafilatura(fast=False)}


def passages(checkout: Path) -> list[tuple[str, bytes, dict[str, list[str]]]]:
    """Address, body and annotation of trafilatura's pages."""
    folder = checkout / "tests"
    pages = json.loads((folder / "evaldata.json").read_text(encoding="utf-8"))
    rows = []
    for url, annotation in sorted(pages.items()):
        paths = [folder / name / annotation["file"] for name in ("cache", "eval")]
        path = next(path for path in paths if path.is_file())
        rows.append((url, path.read_bytes(), annotation))
    return rows


def count_passages(text: str, annotation: dict[str, list[str]]) -> Counts:
    """Passages in the text that belong to it, that do not, and missing ones."""
    text = _collapsed(text)
    there = sum(_collapsed(passage) in text for passage in annotation["with"])
    wrong = sum(_collapsed(passage) in text for passage in annotation["without"])
    return there, wrong, len(annotation["with"]) - there


def count_shingles(text: str, article: str) -> Counts:
    """Shared, superfluous and missing shingles, as shares of all."""
    got, true = _shingles(text), _shingles(article)
    shared = (got & true).total()
    counts = (shared, got.total() - shared, true.total() - shared)
    there, wrong, missing = (count / (sum(counts) or 1) for count in counts)
    return there, wrong, missing


def scores(counts: Sequence[Counts]) -> dict[str, float]:
    """Precision, recall and F of the sums, and the standard error of F over the pages."""
    dice = random.Random(0)
    resampled = [
        _scores(dice.choices(counts, k=len(counts)))["f"] for _ in range(_RESAMPLES)
    ]  # fmt: skip
    return _scores(counts) | {"f_standard_error": statistics.stdev(resampled)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trafilatura", type=Path, help="checkout of adbar/trafilatura")
    parser.add_argument("--articles", type=Path, help="checkout of article-extraction-benchmark")
    parser.add_argument("--write", type=Path, help="JSONL file to append to")
    options = parser.parse_args()
    pages = passages(options.trafilatura)
    rows = []
    for name, extractor in extractors().items():
        texts, seconds = _extracted(extractor, [body for _, body, _ in pages])
        counts = [
            count_passages(text, annotation)
            for text, (_, _, annotation) in zip(texts, pages, strict=True)
        ]
        held_out = [
            page_counts
            for page_counts, (url, _, _) in zip(counts, pages, strict=True)
            if hashlib.md5(url.encode()).digest()[0] % 2
        ]
        row = {
            "benchmark": "extraction", "extractor": name, "processor": cpu_name(),
            "pages": len(pages), **scores(counts), "held_out": scores(held_out),
            "pages_without_text": sum(not text.strip() for text in texts),
            "ms_per_page": 1000 * statistics.mean(seconds),
        }  # fmt: skip
        if options.articles:
            row["articles"] = _articles(extractor, options.articles)
        if name == "stamm":
            row["letters_lost"] = _letters_lost([body for _, body, _ in pages])
        print(json.dumps(row), flush=True)
        rows.append(row)
    if options.write:
        with options.write.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)


def _articles(extractor: Extractor, checkout: Path) -> dict[str, float]:
    truth = json.loads((checkout / "ground-truth.json").read_text(encoding="utf-8"))
    counts = [
        count_shingles(
            extractor(gzip.decompress((checkout / "html" / f"{key}.html.gz").read_bytes())),
            article.get("articleBody", ""),
        )
        for key, article in sorted(truth.items())
    ]
    return {"pages": len(counts), **scores(counts)}


def _letters_lost(bodies: list[bytes]) -> dict[str, float]:
    shares = sorted(extract(body, None, _LIMITS).letters_lost for body in bodies)
    return {f"p{p}": shares[len(shares) * p // 100] for p in _PERCENTILES}


def _extracted(extractor: Extractor, bodies: list[bytes]) -> tuple[list[str], list[float]]:
    texts, seconds = [], []
    for body in bodies:
        start = time.process_time()
        texts.append(extractor(body))
        seconds.append(time.process_time() - start)
    return texts, seconds


def _scores(counts: Sequence[Counts]) -> dict[str, float]:
    there, wrong, missing = (sum(column) for column in zip(*counts, strict=True))
    return {
        "precision": there / ((there + wrong) or 1),
        "recall": there / ((there + missing) or 1),
        "f": 2 * there / ((2 * there + wrong + missing) or 1),
    }


def _collapsed(text: str) -> str:
    # Soft hyphens, which annotations may contain, are no letters.
    return re.sub(r"\s+", " ", text.replace("\xad", "")).strip()


def _shingles(text: str) -> Counter[Any]:
    words = re.findall(r"\w+", text)
    return Counter(tuple(words[i : i + _SHINGLE]) for i in range(len(words) - _SHINGLE + 1))


if __name__ == "__main__":
    main()
