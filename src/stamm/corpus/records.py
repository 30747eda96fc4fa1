"""Files of a corpus: summaries of its steps, manifests of shards, the packed corpus."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from stamm.base.schema import FieldError

WITHDRAWN_IDS = "withdrawn_ids.txt"
"""Of a replay: the ids of the withdrawn documents, as a file of deletion requests."""


def _check_counts(record: object) -> None:
    """Raise FieldError for a number below 0, in a field or in a mapping."""
    for name, value in vars(record).items():
        numbers = value.values() if isinstance(value, Mapping) else (value,)
        if any(isinstance(number, int) and number < 0 for number in numbers):
            raise FieldError(name, "a whole number from 0")


@dataclass(frozen=True, kw_only=True)
class DocumentSum:
    """Documents, and the bytes of their text."""

    documents: int
    bytes: int

    def __post_init__(self) -> None:
        _check_counts(self)


@dataclass(frozen=True, kw_only=True)
class HostCounts:
    """Documents of one website by decision."""

    kept: int
    dropped: int


@dataclass(frozen=True, kw_only=True)
class AbsoluteRules:
    """Documents and hosts whose robots.txt has rules written as absolute URLs."""

    documents: int = 0
    hosts: int = 0


@dataclass(frozen=True, kw_only=True)
class LettersLost:
    """Web pages, and percentiles of the share of letters that extraction left out of them."""

    pages: int = 0
    p50: float = 0.0
    p90: float = 0.0
    p99: float = 0.0


@dataclass(frozen=True, kw_only=True)
class WithdrawnSum:
    """Documents and bytes of one language before a replay, and those that it withdrew."""

    documents: int
    withdrawn: int
    bytes: int
    withdrawn_bytes: int
    share: float = 0.0


@dataclass(frozen=True, kw_only=True)
class UnmatchedRequest:
    """A request for deletion that matches no record: list, line, and SHA-256 or identifier."""

    list: str
    line: int
    key: str


@dataclass(frozen=True, kw_only=True)
class DeletionRequests:
    """Requests for deletion by outcome.

    withdrew          matched a kept document
    out_before        matched only documents that were dropped before
    first_unmatched   the first of those that match no record
    """

    asked: int
    withdrew: int
    out_before: int
    unmatched: int
    first_unmatched: tuple[UnmatchedRequest, ...]


@dataclass(frozen=True, kw_only=True)
class FilterColumn:
    """Values of a column that a user's corpus filter added, over the kept documents.

    least, median, largest   of numbers
    values                   documents by text, of the most frequent
    """

    documents: int
    least: float | None = None
    median: float | None = None
    largest: float | None = None
    values: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class CorpusSummary:
    """corpus/summary.json: n_in = n_kept + n_dropped; planted probes are counted apart.

    by_host                the largest hosts by number of documents; `hosts` counts all
    fields                 rows by the name under which a field was read: {"url": {"metadata.url": 2}};
                           looks_like_url: fields of rows without an address that were not read
    unknown_keys           rows by key that is not used
    filter_columns         columns that a user's corpus filters added to the ledger
    skipped_files          files in folders of the inputs that are not read, by ending
    withdrawn_by_reason    and what follows it: only of a replay; None for a corpus from raw files
    duplicates_not_brought_back   dropped as duplicates of a document that was withdrawn
    """

    SCHEMA: ClassVar[int] = 1

    n_in: int
    n_kept: int
    n_dropped: int = 0
    n_probes: int
    bytes_in: int
    bytes_kept: int
    dropped_by_reason: Mapping[str, DocumentSum]
    documents_by_consent: Mapping[str, int]
    absolute_rules: AbsoluteRules = field(default_factory=AbsoluteRules)
    unread_terms: AbsoluteRules = field(default_factory=AbsoluteRules)
    letters_lost: LettersLost = field(default_factory=LettersLost)
    pii_replaced: Mapping[str, int]
    kept_by_language: Mapping[str, DocumentSum]
    kept_by_consent: Mapping[str, DocumentSum] = field(default_factory=dict)
    by_split: Mapping[str, DocumentSum]
    by_host: Mapping[str, HostCounts]
    hosts: int
    fields: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    unknown_keys: Mapping[str, int] = field(default_factory=dict)
    filter_columns: Mapping[str, FilterColumn] = field(default_factory=dict)
    skipped_files: Mapping[str, int] = field(default_factory=dict)
    withdrawn_by_reason: Mapping[str, int] | None = None
    withdrawn_tokens: Mapping[str, int] = field(default_factory=dict)
    withdrawn_by_language: Mapping[str, WithdrawnSum] = field(default_factory=dict)
    withdrawn_probes: int = 0
    duplicates_not_brought_back: Mapping[str, int] = field(default_factory=dict)
    deletion_requests: DeletionRequests | None = None

    def __post_init__(self) -> None:
        _check_counts(self)


@dataclass(frozen=True, kw_only=True)
class TokenRates:
    """Token counts and rates of a text; rates are None where they are undefined."""

    documents: int = 0
    bytes: int = 0
    tokens: int = 0
    bytes_per_token: float | None = None
    tokens_per_character: float | None = None
    tokens_per_word: float | None = None
    vocabulary_used: float | None = None


@dataclass(frozen=True, kw_only=True)
class SampleRates(TokenRates):
    """Token rates of a sample of the corpus, over all and by language.

    whole          whether the sample is the whole corpus
    corpus_bytes   bytes of the corpus without planted texts
    """

    whole: bool = True
    corpus_bytes: int = 0
    languages: Mapping[str, TokenRates]


@dataclass(frozen=True, kw_only=True)
class ParallelRates:
    """Token rates of one language of a parallel text; without blanks, no tokens_per_word."""

    tokens_per_line: float
    documents: int = 0
    bytes: int = 0
    tokens: int = 0
    bytes_per_token: float
    tokens_per_character: float | None = None
    tokens_per_word: float | None = None
    vocabulary_used: float

    def __post_init__(self) -> None:
        for name in ("tokens_per_line", "bytes_per_token"):
            if not 0 < getattr(self, name) < float("inf"):
                raise FieldError(name, "a positive number")


@dataclass(frozen=True, kw_only=True)
class ParallelCosts:
    """Token rates of the same lines of `text` in each language.

    gini   inequality of tokens per line, from 0 to 1
    """

    text: str
    lines: int
    gini: float
    bytes_per_token: float | None = None
    vocabulary_used: float | None = None
    languages: Mapping[str, ParallelRates]


@dataclass(frozen=True, kw_only=True)
class TokenizerSummary:
    """tokenizer/summary.json: vocabulary size and token rates."""

    SCHEMA: ClassVar[int] = 1

    vocabulary: int
    reserved: int = 0
    sha256: str = ""
    fast: bool = False
    sampling: Mapping[str, Any] = field(default_factory=dict)
    train: SampleRates
    held_out: SampleRates | None = None
    parallel: ParallelCosts | None = None


@dataclass(frozen=True, kw_only=True)
class PackStage:
    """A stage of the training stream; unnamed without a mixture."""

    OPEN: ClassVar[bool] = True

    name: str = ""
    documents: int
    tokens: int

    def __post_init__(self) -> None:
        _check_counts(self)


@dataclass(frozen=True, kw_only=True)
class PackShard:
    """A shard of a split; sha256: hash of each of its files, by its ending."""

    name: str
    tokens: int
    documents: int = 0
    sha256: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class PackSplit:
    """A split of the packed corpus.

    documents    each time that one occurs
    planted_documents, planted_tokens   those of planted passages among them
    """

    tokens: int
    documents: int
    planted_documents: int = 0
    planted_tokens: int = 0
    tokens_by_language: Mapping[str, int] = field(default_factory=dict)
    stages: tuple[PackStage, ...] = ()
    shards: tuple[PackShard, ...] = ()

    def __post_init__(self) -> None:
        _check_counts(self)


@dataclass(frozen=True, kw_only=True)
class PackManifest:
    """pack/manifest.json: the packed corpus.

    token_type   "uint16" or "int32"
    order        rule of the order of documents
    """

    SCHEMA: ClassVar[int] = 2

    tokenizer_sha256: str = ""
    vocabulary: int = 0
    token_type: str = ""
    config: object = None
    order: str = ""
    splits: Mapping[str, PackSplit]


@dataclass(frozen=True, kw_only=True)
class SetCoverage:
    """Searchable items of one evaluation set.

    blind    items without a searchable text: a document that contains them is reported as clean
    runs     texts searched for by their word runs
    short    texts searched for as a whole
    unseen   texts too short to search for
    """

    items: int
    blind: int
    runs: int
    short: int
    unseen: int


@dataclass(frozen=True, kw_only=True)
class CoverageFile:
    """contamination/coverage.json: which evaluation texts a contamination screen searches for."""

    SCHEMA: ClassVar[int] = 2
    OPEN: ClassVar[bool] = True

    sets: Mapping[str, SetCoverage]
