"""The sample of a corpus that a tokenizer is trained and evaluated on.

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

from stamm.corpus.query import Query, opened
from stamm.corpus.tables import parts

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
        self.own_bytes = sum(own for _, _, own in rows)
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
    given = {name: 0 for name, size in sizes.items() if not size}
    left = {name: size for name, size in sorted(sizes.items()) if size}
    rest = budget
    while left:
        weight = sum(size**temperature for size in left.values())
        wanted = {name: rest * size**temperature / weight for name, size in left.items()}
        exhausted = [name for name, size in left.items() if size <= wanted[name]]
        if not exhausted:
            return given | {name: max(1, int(share)) for name, share in wanted.items()}
        for name in exhausted:
            given[name] = left.pop(name)
            rest -= given[name]
    return given
