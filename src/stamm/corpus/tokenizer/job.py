"""The tokenizer step: trains a BPE tokenizer or takes tekken, and measures fertility by language.

A small corpus is used whole. Of a larger one, documents of each language are taken in the order of
SHA-256 of "tokenizer {document_id}" up to the language's share. So the sample depends on the
documents alone, not on shards, workers or the order of files; sorting is out of core, so memory
does not grow with the corpus.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stamm.base.errors import DataError
from stamm.base.files import remove_leftovers, write_text
from stamm.base.schema import write_record
from stamm.corpus.documents import UnreadableRecord
from stamm.corpus.inputs import locate
from stamm.corpus.ledger import HELD_OUT, TRAIN
from stamm.corpus.limits import ReadLimits
from stamm.corpus.query import Query, opened
from stamm.corpus.readers.open import read_input
from stamm.corpus.records import TokenizerSummary
from stamm.corpus.tables import parts
from stamm.corpus.tokenizer.config import TekkenConfig, TokenizerConfig
from stamm.corpus.tokenizer.fairness import count_tokens, fairness, merge_counts
from stamm.corpus.tokenizer.tekken import tekken_description, train_tokenizer_on
from stamm.runs.job import Workspace
from stamm.tokenizer.special_tokens import RESERVED_TOKENS
from stamm.tokenizer.tokenizer import FILE, Tokenizer

RULE = (
    "Languages share sample_bytes by bytes^temperature; one that has less gives all, and the others "
    "share the rest. Documents of a language are taken in the order of SHA-256 of the text "
    "'tokenizer {document_id}' while those before them are smaller than its share."
)
_MEMORY_GIB = 1.0


@dataclass(frozen=True, kw_only=True)
class SampledDocument:
    """A document of the sample; `planted` for probes."""

    language: str
    text: str
    planted: bool


class TokenizerSample:
    """The sample of one split, which can be read repeatedly.

    own_bytes   bytes of all documents of the split without planted passages
    whole       whether the sample is the whole split
    """

    def __init__(self, query: Query, budget: int, temperature: float, split: str) -> None:
        self._query = query
        rows = query.rows(
            "select language, sum(strlen(text))::bigint, coalesce(sum(strlen(text)) "
            "filter (probe_id is null), 0)::bigint from documents where split = $split "
            "group by language order by language",
            {"split": split},
        )
        sizes = {language: size for language, size, _ in rows}
        self.own_bytes = sum(own_size for _, _, own_size in rows)
        self.whole = sum(sizes.values()) <= budget
        query.run("create or replace table shares (language varchar, share bigint)")
        for language, share in shares(sizes, budget, temperature).items():
            query.run(
                "insert into shares values ($language, $share)",
                {"language": language, "share": share},
            )
        self._table = f"sample_{split}"
        query.run(
            f"create or replace table {self._table} as select document_id, digest from "
            "(select document_id, digest, language, coalesce(sum(size) over (partition by language "
            "order by digest, document_id rows between unbounded preceding and 1 preceding), 0) "
            "as before from (select document_id, language, strlen(text) as size, "
            "sha256('tokenizer ' || document_id) as digest from documents where split = $split)) "
            "join shares using (language) where before < share",
            {"split": split},
        )

    def documents(self) -> Iterator[SampledDocument]:
        """The documents of the sample in the order of their hashes."""
        rows = self._query.stream(
            f"select language, text, probe_id is not null from documents join {self._table} "
            "using (document_id) order by digest, document_id"
        )
        for language, text, planted in rows:
            yield SampledDocument(language=language, text=text, planted=planted)


@contextlib.contextmanager
def open_corpus_documents(corpus: Path, folder: Path) -> Iterator[Query]:
    """Open a query with the view documents of a corpus; sorting spills into `folder`."""
    with opened(folder, _MEMORY_GIB, 1) as query:
        query.view("documents", parts(corpus, "documents"))
        yield query


def shares(sizes: Mapping[str, int], budget: int, temperature: float) -> dict[str, int]:
    """Bytes of each language in a sample of `budget` bytes.

    share(l) = min(bytes(l), rest * bytes(l)^t / sum over languages not exhausted of bytes^t)

    Edge     a language with less than its share is taken whole, and the rest is shared again; every
             language has at least one byte, which means one document.
    Checked  tests/unit/corpus/tokenizer/test_sample.py
    """
    share_by_language = {name: 0 for name, size in sizes.items() if not size}
    remaining_sizes = {name: size for name, size in sorted(sizes.items()) if size}
    rest = budget
    while remaining_sizes:
        weight = sum(size**temperature for size in remaining_sizes.values())
        wanted = {name: rest * size**temperature / weight for name, size in remaining_sizes.items()}
        exhausted = [name for name, size in remaining_sizes.items() if size <= wanted[name]]
        if not exhausted:
            return share_by_language | {name: max(1, int(share)) for name, share in wanted.items()}
        for name in exhausted:
            share_by_language[name] = remaining_sizes.pop(name)
            rest -= share_by_language[name]
    return share_by_language


RIGHTS = "package:rights.jsonl.zst"
TITLE = "Universal Declaration of Human Rights"
ARTICLES = 30
# Numbered paragraphs of articles; the others have one or two without numbers.
_PARAGRAPHS = {
    11: 2,
    13: 2,
    14: 2,
    15: 2,
    16: 3,
    17: 2,
    20: 2,
    21: 3,
    23: 4,
    25: 2,
    26: 3,
    27: 2,
    29: 3,
}


def load_declaration() -> dict[str, tuple[str, ...]]:
    """The articles of the Universal Declaration in each language shipped with stamm, by language.

    Raises   DataError when the shipped file is damaged.
    """
    articles_by_language = {}
    for record in read_input(RIGHTS, locate(RIGHTS, "tokenizer"), ReadLimits()):
        if isinstance(record, UnreadableRecord):
            raise DataError(f"{RIGHTS} is damaged: {record.detail}", fix="Install stamm again")
        articles_by_language[record.language] = articles(record.content.decode())
    return dict(sorted(articles_by_language.items()))


def articles(text: str) -> tuple[str, ...]:
    """The bodies of the 30 articles, without their headings.

    Blank lines separate blocks: the title and the preamble, in one or two, then the articles. A
    heading is a block or the first line of its body; numbered paragraphs are blocks.

    Raises   DataError for a text in another layout.
    """
    blocks = [block.strip() for block in text.split("\n\n")]
    candidates = [bodies for before in (1, 2) if (bodies := _bodies(blocks[before:])) is not None]
    if len(candidates) != 1:
        raise DataError(
            f"no declaration of {ARTICLES} articles in {len(blocks)} blocks",
            fix="Leave a blank line before each article and each of its numbered paragraphs",
        )
    return candidates[0]


def _bodies(blocks: list[str]) -> tuple[str, ...] | None:
    """The bodies when the blocks are 30 articles and nothing else, None otherwise."""
    bodies, at = [], 0
    for article in range(1, ARTICLES + 1):
        if at >= len(blocks):
            return None
        _, _, below = blocks[at].partition("\n")
        paragraphs = _PARAGRAPHS.get(article, 0 if below else 1)
        body = [below] if below else []
        body += blocks[at + 1 : at + 1 + paragraphs]
        if bool(below) == bool(paragraphs) or not all(body):
            return None
        bodies.append("\n".join(body))
        at += 1 + paragraphs
    return tuple(bodies) if at == len(blocks) else None


SUMMARY = "summary.json"


def train_tokenizer(config: TokenizerConfig | TekkenConfig, workspace: Workspace) -> None:
    """Write tokenizer.json, trained on the train split of inputs["corpus"] or tekken; summary.json.

    Probes count once, whatever their repeats: the vocabulary must not memorize them.
    Raises   DataError when the split is empty or too small for the vocabulary size.
    """
    remove_leftovers(workspace.folder)
    for name in (FILE, SUMMARY):
        (workspace.folder / name).unlink(missing_ok=True)
    workspace.progress.begin("tokenizer", config.vocab_size, "tokens")
    with open_corpus_documents(workspace.inputs["corpus"], workspace.folder) as query:
        samples = {
            split: TokenizerSample(query, config.sample_bytes, config.temperature, split)
            for split in (TRAIN, HELD_OUT)
        }
        if isinstance(config, TekkenConfig):
            description = tekken_description(config)
        else:
            texts = (document.text for document in samples[TRAIN].documents())
            description = train_tokenizer_on(config, texts)
        tokenizer = Tokenizer(description)
        if tokenizer.size != config.vocab_size:
            raise DataError(
                f"the corpus gives {tokenizer.size} tokens, fewer than {config.vocab_size}",
                where="tokenizer.vocab_size",
                fix=f"Set tokenizer.vocab_size={tokenizer.size} or less, and pretrain.model.vocab_size with "
                f"it; or add text: `stamm show ledger {workspace.folder.parent} decision=dropped` "
                "shows what was left out",
            )
        write_text(workspace.folder / FILE, description)
        summary = _summary(config, tokenizer, samples)
        write_record(workspace.folder / SUMMARY, TokenizerSummary, summary)
    workspace.progress.end(f"{tokenizer.size} tokens")


def _summary(
    config: TokenizerConfig | TekkenConfig,
    tokenizer: Tokenizer,
    samples: dict[str, TokenizerSample],
) -> dict[str, Any]:
    return {
        "vocabulary": tokenizer.size,
        "reserved": len(RESERVED_TOKENS),
        "sha256": tokenizer.sha256,
        "fast": tokenizer.fast is not None,
        "sampling": {
            "rule": RULE,
            "sample_bytes": config.sample_bytes,
            "temperature": config.temperature,
        },
        **{split: _costs(tokenizer, sample) for split, sample in samples.items()},
        "parallel": {"text": TITLE, **fairness(tokenizer, load_declaration())},
    }


def _costs(tokenizer: Tokenizer, sample: TokenizerSample) -> dict[str, Any]:
    """Token counts of the corpus' own documents of a sample, the largest language first."""
    own_documents = (document for document in sample.documents() if not document.planted)
    counts = count_tokens(
        tokenizer, ((document.language, document.text) for document in own_documents)
    )
    ranked = sorted(counts.items(), key=lambda item: (-item[1].bytes, item[0]))
    return {
        "whole": sample.whole,
        "corpus_bytes": sample.own_bytes,
        **merge_counts(counts, tokenizer.size).as_dict(None),
        "languages": {language: cost.as_dict(language) for language, cost in ranked},
    }
