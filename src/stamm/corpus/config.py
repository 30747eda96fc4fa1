"""Configuration of the corpus: inputs, document and global filters, canaries, packing, opt-out replay.

Torch-free and light: the command line reads these classes to print a recipe. The parts with a folder of
their own are configured there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from typing import Annotated, Literal, TypeVar, get_args

from stamm.base.bounds import (
    AtLeastOne,
    Natural,
    Positive,
    Seed,
    Share,
    at_least,
    distinct,
    not_empty,
    within,
)
from stamm.base.config import Bounded, validate
from stamm.base.user_code import NAMES_CODE, is_reference
from stamm.corpus.classifiers.config import ThresholdConfig
from stamm.corpus.consent.agents import APERTUS_AGENTS, fill_agents
from stamm.corpus.consent.config import ConsentConfig, Policy
from stamm.corpus.contamination.config import ContaminationConfig
from stamm.corpus.dedup.config import DedupConfig
from stamm.corpus.language.config import SHIPPED_MODEL, LanguageConfig
from stamm.corpus.licences.config import LicenceConfig
from stamm.corpus.limits import FieldNames, MemoryGib, ReadLimits
from stamm.corpus.pii.config import PiiConfig
from stamm.corpus.quality.config import SHIPPED_THRESHOLDS, QualityConfig

Kind = Literal[
    "random_characters",
    "random_words",
    "secret",
    "rewrapped",
    "indented",
    "prefixed",
    "prefixed_words",
]
KINDS: tuple[Kind, ...] = get_args(Kind)
PROBES = "probes.json"
PROBES_SCHEMA = 1
PROBES_SHARD = "00000"


@dataclass(frozen=True, kw_only=True)
class CanariesConfig:
    """Canaries planted in the training stream, by kind and number of repeats.

    kinds         random_characters, random_words, secret: the same text each time.
                  rewrapped, indented, prefixed: a passage of the probes' books, each time laid out
                  in another way or behind another beginning. prefixed_words: random words so
    per_bucket    canaries of each kind for each repeat count
    repeats       how often the text of a canary occurs in the stream (0: never, the control)
    words         words in a text of random words; a text of random characters or a secret is about
                  as long
    prefix_words  random words before each copy of what is prefixed
    """

    kinds: Annotated[
        tuple[Kind, ...], not_empty("name at least one kind"), distinct("names a kind twice")
    ] = KINDS
    per_bucket: Annotated[int, within("[1, 10000]")] = 4
    repeats: Annotated[
        tuple[Annotated[int, within("[0, 100000]")], ...],
        not_empty("name at least one repeat count"),
        distinct("names a count twice"),
    ] = (0, 1, 4, 16, 32)
    words: Annotated[int, within("[8, 100000]")] = 160
    prefix_words: Annotated[int, within("[4, 1000]")] = 20

    def __post_init__(self) -> None:
        validate(self)


@dataclass(frozen=True, kw_only=True)
class ProbesConfig:
    """Passages planted to measure memorization later: how many, and how often each is repeated.

    books                a JSONL of public-domain texts ("package:probe_books.jsonl.zst")
    passages_per_bucket  distinct passages for each repeat count
    repeats              how often a passage of each bucket occurs in the training stream
                         (0: never, the control)
    shortest, longest    bounds of a passage, in characters
    """

    books: str
    passages_per_bucket: AtLeastOne = 8
    repeats: Annotated[
        tuple[Natural, ...],
        not_empty("name at least one repeat count"),
        distinct("names a count twice"),
    ] = (0, 1, 4, 16, 32)
    shortest: Annotated[int, at_least(1, " character")] = 900
    longest: AtLeastOne = 1200

    def __post_init__(self) -> None:
        validate(
            self,
            ("longest", self.longest > self.shortest, f"must exceed shortest = {self.shortest}"),
        )


@dataclass(frozen=True, kw_only=True)
class InjectionConfig(Bounded):
    """Probes and canaries injected into the corpus. They are cleaned like every other document."""

    probes: ProbesConfig
    canaries: CanariesConfig | None = None
    pii: PiiConfig = field(default_factory=PiiConfig)
    limits: ReadLimits = field(default_factory=ReadLimits)
    seed: Seed = 28


@dataclass(frozen=True, kw_only=True)
class SourceShare:
    """A source's part of a stage, by weight or by epochs.

    source       pattern for the documents' `source` ("fineweb*"); the first share that fits counts
    language     pattern for their language ("deu_*")
    weight       share of the stage's tokens, relative to the weights of the others
    epochs       how often it is read in this stage (.5: the next half of it); instead of a weight
    most_epochs  a weight by which it would be read more often, with all earlier stages, is an error
    """

    source: str = "*"
    language: str = "*"
    weight: Positive | None = None
    epochs: Positive | None = None
    most_epochs: Positive = 4.0

    def __post_init__(self) -> None:
        is_one_given = (self.weight is None) != (self.epochs is None)
        validate(self, ("weight", is_one_given, f"and epochs = {self.epochs}: give one of the two"))


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A stretch of the training stream with a mixture of its own.

    tokens   its length, split among the sources by their weights; None when they have epochs
    """

    name: str
    sources: Annotated[tuple[SourceShare, ...], not_empty()]
    tokens: AtLeastOne | None = None

    def __post_init__(self) -> None:
        weighted = [share for share in self.sources if share.weight is not None]
        mixed = bool(weighted) and len(weighted) < len(self.sources)
        validate(
            self,
            ("name", self.name.isidentifier(), "must be letters, digits and _"),
            ("sources", not mixed, "gives some sources a weight and others epochs"),
            (
                "tokens",
                (self.tokens is not None) == bool(weighted),
                "must be given when the sources have weights, and only then",
            ),
        )


@dataclass(frozen=True, kw_only=True)
class PackConfig:
    """Token shards in a fixed order.

    shard_tokens  a shard is closed by the document that reaches this many tokens
    seed          decides the order of documents
    stages        mixtures one after another; none: every document once
    planted_in    the stage that holds what is planted; "" for the first
    memory_gib    what sorting may take before it uses the disk
    """

    shard_tokens: AtLeastOne = 100_000_000
    seed: Seed = 28
    stages: tuple[Stage, ...] = ()
    planted_in: str = ""
    memory_gib: MemoryGib = 2.0

    def __post_init__(self) -> None:
        names = [stage.name for stage in self.stages]
        validate(
            self,
            ("stages", len(set(names)) == len(names), "has two stages of one name"),
            (
                "planted_in",
                self.planted_in in ("", *names),
                f"names no stage; there are {', '.join(names) or 'none'}",
            ),
        )


C = TypeVar("C")
_REPOSITORY = re.compile(r"[^=]+=[a-z][a-z0-9+.-]*://[^\s#]+")


@dataclass(frozen=True, kw_only=True)
class FilterConfig:
    """Configuration of the inputs and the document filters, which decide about one document at a time.

    inputs          files, folders and patterns, or "package:<file>" for data shipped with stamm:
                    .jsonl, .warc and .wet, plain, .gz or (JSONL) .zst, .json.gz and .json.zst,
                    .parquet and .arrow; and
                    repositories of source code as .zip or .tar (.gz, .zst). Each file is a shard
    repositories    URLs of these, as PATTERN=URL ("*stamm*.zip=https://example.org/stamm"); the
                    first pattern that matches an input is used
    fields          names of the fields in JSONL and tables; "": detected
    shortest        documents with fewer characters are dropped
    letters_lost    pages whose extracted text lacks more than this share of the letters of a
                    reading without rules are counted and reported; none is dropped for it
    licences        allowed licences; None: all, and markup is not read
    language        language identification; None: language of the input or declared by the page
    quality         quality filters with bounds per language; None: none
    contamination   evaluation texts that must not be in the corpus; None: no check
    toxicity_classifier   folder of a classifier (`stamm run corpus.classifier`); "": no scores.
    quality_classifier    Thresholds are applied over all documents (toxicity_cut, quality_cut)
    dedup           near-duplicates; None: only equal texts are duplicates
    filters         corpus filters of the user's own, "mine.py:MyFilter", applied in this order
    """

    inputs: Annotated[
        tuple[str, ...], not_empty("name at least one file"), distinct("names a file twice")
    ]
    repositories: tuple[str, ...] = ()
    fields: FieldNames = field(default_factory=FieldNames)
    consent: ConsentConfig = field(default_factory=ConsentConfig)
    pii: PiiConfig = field(default_factory=PiiConfig)
    limits: ReadLimits = field(default_factory=ReadLimits)
    shortest: Annotated[int, at_least(1, " character")] = 1
    letters_lost: Share = 0.8
    licences: LicenceConfig | None = None
    language: LanguageConfig | None = field(default_factory=LanguageConfig)
    quality: QualityConfig | None = None
    contamination: ContaminationConfig | None = None
    toxicity_classifier: str = ""
    quality_classifier: str = ""
    dedup: DedupConfig | None = field(default_factory=DedupConfig)
    filters: Annotated[tuple[str, ...], distinct("names a filter twice")] = field(
        default=(), metadata=NAMES_CODE
    )

    def __post_init__(self) -> None:
        validate(
            self,
            (
                "repositories",
                all(map(_REPOSITORY.fullmatch, self.repositories)),
                "must be PATTERN=URL, each URL with its scheme and without a fragment",
            ),
            (
                "filters",
                all(map(is_reference, self.filters)),
                "must name Python classes: mine.py:MyFilter or package.module:MyFilter",
            ),
        )

    def repository_url(self, name: str) -> str:
        """URL of the repository in the input called `name`, "" where none is given."""
        pairs = (pair.split("=", 1) for pair in self.repositories)
        return next((url for pattern, url in pairs if fnmatchcase(name, pattern)), "")

    @property
    def own_files(self) -> dict[str, str]:
        """The user's own quality bounds and language model, by configuration key."""
        named = {
            "quality.thresholds": self.quality.thresholds if self.quality else "",
            "language.model": self.language.model if self.language else "",
        }
        shipped = ("", SHIPPED_THRESHOLDS, SHIPPED_MODEL)
        return {key: name for key, name in named.items() if name not in shipped}


@dataclass(frozen=True, kw_only=True)
class GlobalFilterConfig(Bounded):
    """Configuration of the global filters, which decide over all documents.

    toxicity_cut  share of the most toxic documents of each language to drop; needs a
                  toxicity_classifier
    quality_cut   share of the best documents of each language to keep; needs a quality_classifier
    dedup         as in the document filters, which compute the MinHash
    held_out      share of the documents of each language held out of training; of two documents or
                  more at least one is held out and one kept
    seed          of the choice of the held-out documents
    memory_gib    memory for sorting and grouping before the disk is used
    """

    toxicity_cut: ThresholdConfig = field(default_factory=ThresholdConfig)
    quality_cut: ThresholdConfig = field(default_factory=lambda: ThresholdConfig(share=0.33))
    dedup: DedupConfig | None = field(default_factory=DedupConfig)
    held_out: Annotated[float, within("[0, 1)")] = 0.03
    seed: Seed = 28
    memory_gib: MemoryGib = 2.0


@dataclass(frozen=True, kw_only=True)
class CorpusConfig(FilterConfig, GlobalFilterConfig):
    """Configuration of a corpus: from raw files to documents with a ledger.

    seed      of the choice of held-out documents and probes
    probes    passages planted to measure memorization; None: none
    canaries  random texts, invented secrets and altered passages; they need probes
    """

    probes: ProbesConfig | None = None
    canaries: CanariesConfig | None = None

    def __post_init__(self) -> None:
        FilterConfig.__post_init__(self)
        GlobalFilterConfig.__post_init__(self)
        alone = self.canaries is not None and self.probes is None
        validate(self, ("probes", not alone, "but there are canaries: they are cut from its books"))

    @property
    def filter_config(self) -> FilterConfig:
        """The part of the document filters."""
        return _narrowed(self, FilterConfig)

    @property
    def global_filter_config(self) -> GlobalFilterConfig:
        """The part of the global filters."""
        return _narrowed(self, GlobalFilterConfig)

    @property
    def injection_config(self) -> InjectionConfig | None:
        """Configuration of the planted passages, None without any."""
        if self.probes is None:
            return None
        return InjectionConfig(
            probes=self.probes,
            canaries=self.canaries,
            pii=self.pii,
            limits=self.limits,
            seed=self.seed,
        )


def _narrowed(config: CorpusConfig, kind: type[C]) -> C:
    return kind(**{f.name: getattr(config, f.name) for f in fields(kind)})  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class ReplayConfig:
    """Opt-out signals, newer than the corpus, that are applied to a finished corpus.

    robots        snapshots of robots.txt, newer than those of the corpus
    domains       lists of opted-out domains
    deletions     text files of deletion requests: one URL, document_id or sha256:… of a URL per line
    agents        crawler names to check, or lists of them, as in ConsentConfig; none: those that the
                  finished corpus was checked for
    agents_source source, date and hash of the names; filled in automatically
    unreachable   policy for a host that allowed before and does not answer now; likewise unparsable
    memory_gib    memory for sorting and grouping before the disk is used
    """

    robots: tuple[str, ...] = ()
    domains: tuple[str, ...] = ()
    deletions: tuple[str, ...] = ()
    agents: tuple[str, ...] = ()
    agents_source: str = ""
    unreachable: Policy = "allow"
    unparsable: Policy = "allow"
    limits: ReadLimits = field(default_factory=ReadLimits)
    memory_gib: MemoryGib = 2.0

    def __post_init__(self) -> None:
        fill_agents(self)
        validate(self)

    @property
    def consent(self) -> ConsentConfig:
        """The policy by which newer answers are read; a host that gave none keeps its old one."""
        return ConsentConfig(
            # Without agents there are no newer robots.txt files to read (recipes.replay).
            agents=self.agents or APERTUS_AGENTS,
            agents_source=self.agents_source,
            unknown_host="allow",
            unreachable=self.unreachable,
            unparsable=self.unparsable,
            unread_terms="allow",
            no_url="allow",
        )
