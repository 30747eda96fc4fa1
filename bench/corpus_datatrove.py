"""datatrove's half of bench/corpus.py: raw files to token shards, in one process.

Run by the interpreter that has datatrove; imports nothing of stamm. The filters are those of
FineWeb with its settings, words split by one regular expression for all languages; MinHash has
stamm's bands. What it took stands in FOLDER/result.json.

Run      python -m bench.corpus_datatrove PLAN.json
         {"inputs": folder, "kind": "warc" | "jsonl", "extractor": "resiliparse" | "trafilatura",
         "drop": bool, "tokenizer": folder, "folder": where to work}
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pycld2
import regex
from datatrove.data import Document
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.base import PipelineStep
from datatrove.pipeline.dedup import (
    MinhashDedupBuckets,
    MinhashDedupCluster,
    MinhashDedupFilter,
    MinhashDedupSignature,
)
from datatrove.pipeline.dedup.minhash import MinhashConfig
from datatrove.pipeline.extractors import Trafilatura
from datatrove.pipeline.extractors.base import BaseExtractor
from datatrove.pipeline.filters import (
    C4QualityFilter,
    FineWebQualityFilter,
    GopherQualityFilter,
    GopherRepetitionFilter,
)
from datatrove.pipeline.filters.base_filter import BaseFilter
from datatrove.pipeline.formatters import PIIFormatter
from datatrove.pipeline.readers import JsonlReader, WarcReader
from datatrove.pipeline.tokens import DocumentTokenizer
from datatrove.pipeline.writers import JsonlWriter
from datatrove.utils.word_tokenizers import WordTokenizer
from resiliparse.extract.html2text import extract_plain_text
from resiliparse.parse.html import HTMLTree

WORD = regex.compile(r"\w+|[^\w\s]")
SENTENCE = regex.compile(r"[^.!?]+[.!?]*")
BUCKETS = 14
PATIENT_S = 60.0


class RegexWords(WordTokenizer):
    """Words and sentences by two regular expressions, whatever the language."""

    def word_tokenize(self, text: str) -> list[str]:
        """The words and signs of a text."""
        return WORD.findall(text)

    def sent_tokenize(self, text: str) -> list[str]:
        """Its sentences."""
        return SENTENCE.findall(text)

    def span_tokenize(self, text: str) -> list[tuple[int, int]]:
        """Where they stand."""
        return [match.span() for match in SENTENCE.finditer(text)]


class Resiliparse(BaseExtractor):
    """The extractor that stamm uses, with stamm's options."""

    name = "resiliparse"

    def __init__(self) -> None:
        super().__init__(PATIENT_S)

    def extract(self, text: str) -> str:
        """The main content of a page."""
        return extract_plain_text(HTMLTree.parse(text), main_content=True, alt_texts=False).strip()


class Cld2(BaseFilter):
    """Names the language; stands in for LanguageFilter, whose models must be fetched."""

    name = "CLD2"

    def filter(self, doc: Document) -> bool:
        """Always true."""
        try:
            doc.metadata["language"] = pycld2.detect(doc.text)[2][0][1]
        except pycld2.error:
            doc.metadata["language"] = "un"
        return True


class Lenient(BaseFilter):
    """Asks a filter about every document, and keeps it whatever the answer."""

    def __init__(self, asked: BaseFilter) -> None:
        self.name = asked.name
        super().__init__()
        self.asked = asked

    def filter(self, doc: Document) -> bool:
        """Always true."""
        self.asked.filter(doc)
        return True


def stages(plan: dict[str, Any]) -> Iterator[tuple[str, int, list[PipelineStep]]]:
    """Name, number of tasks and blocks of each pipeline, in order."""
    folder, words = Path(plan["folder"]), RegexWords()
    read: list[PipelineStep] = [JsonlReader(plan["inputs"])]
    if plan["kind"] == "warc":
        trafilatura = plan["extractor"] == "trafilatura"
        extract = Trafilatura(timeout=PATIENT_S) if trafilatura else Resiliparse()
        read = [WarcReader(plan["inputs"]), extract]
    filters: list[BaseFilter] = [
        GopherRepetitionFilter(language=words),
        GopherQualityFilter(language=words),
        C4QualityFilter(filter_no_terminal_punct=False, language=words),
        FineWebQualityFilter(language=words),
    ]
    asked = filters if plan["drop"] else [Lenient(one) for one in filters]
    config = MinhashConfig(n_grams=5, num_buckets=BUCKETS, hashes_per_bucket=8)
    texts, signatures, buckets, removed = (
        str(folder / name) for name in ("texts", "signatures", "buckets", "removed")
    )
    yield "filter", 1, [*read, Cld2(), *asked, JsonlWriter(texts, compression="zstd")]
    signing = MinhashDedupSignature(signatures, config=config, language=words)
    yield "signatures", 1, [JsonlReader(texts), signing]
    yield "buckets", BUCKETS, [MinhashDedupBuckets(signatures, buckets, config=config)]
    yield "cluster", 1, [MinhashDedupCluster(buckets, removed, config=config)]
    tokens = DocumentTokenizer(
        str(folder / "tokens"),
        str(Path(plan["tokenizer"]) / "tokenizer.json"),
        eos_token="</s>",
        seed=28,
    )
    yield "tokens", 1, [JsonlReader(texts), MinhashDedupFilter(removed), PIIFormatter(), tokens]


def _total(told: Any) -> float:
    """datatrove writes a number, or where documents or tasks differ, an object with its total."""
    return float(told["total"] if isinstance(told, dict) else told)


def main() -> None:
    """Do the plan named on the command line."""
    plan = json.loads(Path(sys.argv[1]).read_text())
    folder = Path(plan["folder"])
    seconds: dict[str, float] = {}
    spent: dict[str, float] = {}
    counts: dict[str, dict[str, Any]] = {}
    for name, tasks, blocks in stages(plan):
        began = time.perf_counter()
        log = folder / "log" / name
        LocalPipelineExecutor(blocks, tasks=tasks, workers=1, logging_dir=str(log)).run()
        seconds[name] = time.perf_counter() - began
        for block, told in zip(blocks, json.loads((log / "stats.json").read_text()), strict=True):
            asked = block.asked if isinstance(block, Lenient) else block
            key = f"{name}.{type(asked).__name__}"
            spent[key] = _total(told["time_stats"])
            counts[key] = told["stats"]
    result = {
        "ended": time.monotonic(),
        "cpu_s": sum(os.times()[:4]),
        "kept": int(_total(counts["tokens.MinhashDedupFilter"]["forwarded"])),
        "dropped": {
            block: {
                reason.removeprefix("dropped_"): int(_total(count))
                for reason, count in told.items()
                if reason.startswith("dropped")
            }
            for block, told in counts.items()
        },
        "token_bytes": sum(file.stat().st_size for file in (folder / "tokens").glob("*.ds")),
        "steps": seconds,
        "stages": spent,
    }
    (folder / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
