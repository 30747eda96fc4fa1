"""How fast the corpus filters are: words, quality, language; beside datatrove's where it is there.

Run      python -m bench.filters FILE.jsonl.zst ... [--documents 1500]

One process, one thread, CPU time. datatrove's blocks get the splitter `\\w+|[^\\w\\s]` in place of
spaCy, as its argument for a tokenizer allows; they run where `datatrove` can be imported.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import itertools
import json
import re
import time
from collections.abc import Callable
from pathlib import Path

from stamm.corpus.documents import InputRecord
from stamm.corpus.language.config import LanguageConfig
from stamm.corpus.language.identify import LanguageIdentifier
from stamm.corpus.limits import ReadLimits
from stamm.corpus.quality.config import QualityConfig
from stamm.corpus.quality.rules import QualityFilter
from stamm.corpus.quality.word_split import count_characters, split_words
from stamm.corpus.readers.open import read_input

Document = tuple[str, str]
_SPLIT = re.compile(r"\w+|[^\w\s]")
_RIVALS: tuple[tuple[str, str, dict[str, list[str]]], ...] = (
    ("gopher_repetition_filter", "GopherRepetitionFilter", {}),
    ("gopher_quality_filter", "GopherQualityFilter", {"stop_words": []}),
    ("c4_filters", "C4QualityFilter", {}),
    ("fineweb_quality_filter", "FineWebQualityFilter", {}),
)


def documents(files: list[str], most: int) -> list[Document]:
    """Texts and languages, evenly from all files: every k-th document."""
    found = [
        (record.content.decode(), record.language)
        for name in files
        for record in read_input(name, Path(name), ReadLimits())
        if isinstance(record, InputRecord)
    ]
    return found[:: max(1, len(found) // most)]


def rivals() -> dict[str, Callable[[Document], object]]:
    """datatrove's four blocks with a splitter by pattern, if datatrove is installed."""
    if importlib.util.find_spec("datatrove") is None:
        return {}
    data = importlib.import_module("datatrove.data")
    words = importlib.import_module("datatrove.utils.word_tokenizers")

    class Splitter(words.WordTokenizer):  # type: ignore[name-defined]
        def word_tokenize(self, text: str) -> list[str]:
            return _SPLIT.findall(text)

        def sent_tokenize(self, text: str) -> list[str]:
            return [part for part in re.split(r"(?<=[.!?])\s+", text) if part]

        def span_tokenize(self, text: str) -> list[tuple[int, int]]:
            return [match.span() for match in re.finditer(r"[^.!?]+[.!?]*\s*", text)]

    splitter = Splitter("en")
    found: dict[str, Callable[[Document], object]] = {}
    for module, name, options in _RIVALS:
        kind = getattr(importlib.import_module(f"datatrove.pipeline.filters.{module}"), name)
        block = kind(language=splitter, **options)

        def run(document: Document, block: object = block) -> object:
            return block.filter(data.Document(text=document[0], id=""))  # type: ignore[attr-defined]

        found[f"datatrove {name}"] = run
    return found


def main() -> None:
    """Print one JSON line a filter: documents and megabytes a second."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--documents", type=int, default=1500)
    options = parser.parse_args()
    chosen = documents(options.files, options.documents)
    size = sum(len(text.encode()) for text, _ in chosen)
    quality, identifier = QualityFilter(QualityConfig()), LanguageIdentifier(LanguageConfig())
    filters: dict[str, Callable[[Document], object]] = {
        "words": lambda d: split_words(d[0], count_characters(d[0])),
        "quality": lambda d: quality.judge(*d),
        "language": lambda d: identifier.identify(d[0]),
        **rivals(),
    }
    for name, run in filters.items():
        for document in itertools.islice(chosen, 20):
            run(document)
        started = time.process_time()
        for document in chosen:
            run(document)
        seconds = time.process_time() - started
        row = {
            "filter": name,
            "documents": len(chosen),
            "documents_per_s": round(len(chosen) / seconds, 1),
            "megabytes_per_s": round(size / seconds / 1e6, 2),
        }
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
