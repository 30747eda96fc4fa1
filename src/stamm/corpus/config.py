"""What the three corpus jobs can be told: which texts, whose consent, which vocabulary, how packed.

Torch-free and light: the command line reads these classes to print a recipe.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from typing import TypeVar

from stamm.base.config import validate
from stamm.corpus.canaries.config import CanariesConfig
from stamm.corpus.classifiers.config import ThresholdConfig
from stamm.corpus.consent.agents import APERTUS_AGENTS, fill_agents
from stamm.corpus.consent.config import ConsentConfig, Policy
from stamm.corpus.contamination.config import ContaminationConfig
from stamm.corpus.dedup.config import DedupConfig
from stamm.corpus.language.config import LanguageConfig
from stamm.corpus.licences.config import LicenceConfig
from stamm.corpus.pii.config import PiiConfig
from stamm.corpus.quality.config import QualityConfig
from stamm.corpus.special_tokens import RESERVED_TOKENS

C = TypeVar("C")
_REPOSITORY = re.compile(r"[^=]+=[a-z][a-z0-9+.-]*://[^\s#]+")
LARGEST_SEED = 2**63 - 1


@dataclass(frozen=True, kw_only=True)
class ProbesConfig:
    """Passages planted to measure memorization later: how many, and how often each is repeated.

    books                a JSONL of public-domain texts ("package:probe_books.jsonl.zst")
    passages_per_bucket  distinct passages for each repeat count
    repeats              how often a passage of each bucket stands in the training stream
                         (0: never, the control)
    shortest, longest    bounds of a passage, in characters
    """

    books: str
    passages_per_bucket: int = 8
    repeats: tuple[int, ...] = (0, 1, 4, 16, 32)
    shortest: int = 900
    longest: int = 1200

    def __post_init__(self) -> None:
        validate(
            self,
            ("passages_per_bucket", self.passages_per_bucket >= 1, "must be at least 1"),
            ("repeats", len(self.repeats) > 0, "is empty: name at least one repeat count"),
            ("repeats", min(self.repeats, default=0) >= 0, "must not be negative"),
            ("repeats", len(set(self.repeats)) == len(self.repeats), "names a count twice"),
            ("shortest", self.shortest >= 1, "must be at least 1 character"),
            ("longest", self.longest > self.shortest, f"must exceed shortest = {self.shortest}"),
        )


@dataclass(frozen=True, kw_only=True)
class ReadLimits:
    """Bounds on what one input may cost. Beyond them a record is dropped and the ledger says so.

    line_bytes       longest line of a JSONL file
    record_bytes     longest body of a WARC record, before and after its content encoding
    expansion        decompressed bytes per compressed byte; the first 64 MiB are free
    html_tags        most tags of a page; extraction takes some 10 microseconds for each
    html_depth       deepest nesting of elements; less in a page of over 20,000 tags, for extraction
                     time grows with the product
    """

    line_bytes: int = 8 * 2**20
    record_bytes: int = 16 * 2**20
    expansion: int = 200
    html_tags: int = 200_000
    html_depth: int = 1000

    def __post_init__(self) -> None:
        validate(
            self,
            ("line_bytes", self.line_bytes >= 1, "must be at least 1"),
            ("record_bytes", self.record_bytes >= 1, "must be at least 1"),
            ("expansion", self.expansion >= 1, "must be at least 1"),
            ("html_tags", self.html_tags >= 1, "must be at least 1"),
            ("html_depth", self.html_depth >= 1, "must be at least 1"),
        )


@dataclass(frozen=True, kw_only=True)
class FieldNames:
    """What the fields of a document are called in JSONL and tables.

    licence   "license" is looked for as well
    """

    text: str = "text"
    url: str = "url"
    source: str = "source"
    licence: str = "licence"
    language: str = "language"
    date: str = "date"

    def all(self) -> tuple[str, ...]:
        """Every name that is looked for."""
        own = (self.text, self.url, self.source, self.licence, self.language, self.date)
        return tuple(dict.fromkeys((*own, "license")))


@dataclass(frozen=True, kw_only=True)
class ScreenConfig:
    """What is decided about each document by itself.

    inputs          files, folders and patterns, or "package:<file>" for data shipped with stamm:
                    .jsonl and .warc, plain, .gz or (JSONL) .zst, .parquet and .arrow; and
                    repositories of source code as .zip or .tar (.gz, .zst). Each file is a shard
    repositories    addresses of these, as PATTERN=URL ("*stamm*.zip=https://example.org/stamm");
                    the first pattern that fits an input counts
    fields          what the fields of JSONL and tables are called
    shortest        documents with fewer characters are dropped
    licences        which licences are taken; None: all, and none is looked for
    language        how languages are identified; None: only as input and page say
    quality         rules against bad text, with bounds of its language; None: no rule
    contamination   evaluation texts that must not be in the corpus; None: none is looked for
    toxicity_classifier   folder of a head (`stamm run corpus.classifier`); "": nothing is scored. What the score
    quality_classifier    leads to is decided over all documents (toxicity_cut, quality_cut)
    dedup           when texts are nearly the same; None: only equal texts are duplicates
    """

    inputs: tuple[str, ...]
    repositories: tuple[str, ...] = ()
    fields: FieldNames = field(default_factory=FieldNames)
    consent: ConsentConfig = field(default_factory=ConsentConfig)
    pii: PiiConfig = field(default_factory=PiiConfig)
    limits: ReadLimits = field(default_factory=ReadLimits)
    shortest: int = 1
    licences: LicenceConfig | None = None
    language: LanguageConfig | None = field(default_factory=LanguageConfig)
    quality: QualityConfig | None = None
    contamination: ContaminationConfig | None = None
    toxicity_classifier: str = ""
    quality_classifier: str = ""
    dedup: DedupConfig | None = field(default_factory=DedupConfig)

    def __post_init__(self) -> None:
        validate(
            self,
            ("inputs", len(self.inputs) > 0, "is empty: name at least one file"),
            ("inputs", len(set(self.inputs)) == len(self.inputs), "names a file twice"),
            (
                "repositories",
                all(map(_REPOSITORY.fullmatch, self.repositories)),
                "must be PATTERN=URL, each URL with its scheme and without a fragment",
            ),
            ("shortest", self.shortest >= 1, "must be at least 1 character"),
        )

    def repository_url(self, name: str) -> str:
        """The address of the repository that the input called `name` is, "" where none is given."""
        pairs = (said.split("=", 1) for said in self.repositories)
        return next((url for pattern, url in pairs if fnmatchcase(name, pattern)), "")


@dataclass(frozen=True, kw_only=True)
class DecideConfig:
    """What is decided over all documents.

    toxicity_cut  how many of the most toxic of each language go; needs a toxicity_classifier
    quality_cut   how many of the best of each language stay; needs a quality_classifier
    dedup         as the screen had them: what it hashed
    held_out      share of the documents of each language kept from training; a language with at
                  least two gives at least one, and keeps at least one
    seed          decides the held-out documents
    memory_gib    what sorting and grouping may take before they use the disk
    """

    toxicity_cut: ThresholdConfig = field(default_factory=ThresholdConfig)
    quality_cut: ThresholdConfig = field(default_factory=lambda: ThresholdConfig(share=0.33))
    dedup: DedupConfig | None = field(default_factory=DedupConfig)
    held_out: float = 0.03
    seed: int = 28
    memory_gib: float = 2.0

    def __post_init__(self) -> None:
        validate(
            self,
            ("held_out", 0.0 <= self.held_out < 1.0, "must lie in [0, 1)"),
            ("seed", 0 <= self.seed <= LARGEST_SEED, "must lie in [0, 2^63)"),
            ("memory_gib", self.memory_gib >= 0.125, "must be at least 0.125"),
        )


@dataclass(frozen=True, kw_only=True)
class PlantConfig:
    """What is planted on purpose. Passages are cleaned as every other document is."""

    probes: ProbesConfig
    canaries: CanariesConfig | None = None
    pii: PiiConfig = field(default_factory=PiiConfig)
    limits: ReadLimits = field(default_factory=ReadLimits)
    seed: int = 28


@dataclass(frozen=True, kw_only=True)
class CorpusConfig(ScreenConfig, DecideConfig):
    """From raw files to documents with a ledger.

    seed    decides the held-out documents and the probes
    probes  passages planted to measure memorization; None plants nothing
    canaries  random texts, made-up secrets and altered passages beside them; they need probes
    """

    probes: ProbesConfig | None = None
    canaries: CanariesConfig | None = None

    def __post_init__(self) -> None:
        ScreenConfig.__post_init__(self)
        DecideConfig.__post_init__(self)
        alone = self.canaries is not None and self.probes is None
        validate(self, ("probes", not alone, "but there are canaries: they are cut from its books"))

    @property
    def screening(self) -> ScreenConfig:
        """The part that concerns each document by itself."""
        return _narrowed(self, ScreenConfig)

    @property
    def deciding(self) -> DecideConfig:
        """The part that concerns all documents at once."""
        return _narrowed(self, DecideConfig)

    @property
    def planting(self) -> PlantConfig | None:
        """What is planted, None when nothing is."""
        if self.probes is None:
            return None
        return PlantConfig(
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
    """Whose newer word a finished corpus is held against.

    robots        snapshots of robots.txt, newer than those of the corpus
    domains       lists of domains whose owners refused
    deletions     requests: addresses, document identifiers, or sha256: of an address, one a line
    agents        crawler names asked about, or lists of them, as in ConsentConfig
    agents_source where the names came from, with date and hash: filled in, never to be set
    unreachable   a host that allowed before and does not answer now; likewise unparsable
    memory_gib    what sorting and grouping may take before they use the disk
    """

    robots: tuple[str, ...] = ()
    domains: tuple[str, ...] = ()
    deletions: tuple[str, ...] = ()
    agents: tuple[str, ...] = APERTUS_AGENTS
    agents_source: str = ""
    unreachable: Policy = "allow"
    unparsable: Policy = "allow"
    limits: ReadLimits = field(default_factory=ReadLimits)
    memory_gib: float = 2.0

    def __post_init__(self) -> None:
        fill_agents(self)
        validate(self, ("memory_gib", self.memory_gib >= 0.125, "must be at least 0.125"))

    @property
    def consent(self) -> ConsentConfig:
        """The policy by which newer answers are read; a host that gave none keeps its old one."""
        return ConsentConfig(
            agents=self.agents,
            agents_source=self.agents_source,
            unknown_host="allow",
            unreachable=self.unreachable,
            unparsable=self.unparsable,
            no_url="allow",
        )


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig:
    """A byte-level BPE vocabulary trained on the corpus.

    vocab_size     all ids: reserved tokens, 256 bytes and merges
    rarest_pair    a pair seen less often is never merged
    longest_token  in bytes; keeps a ruler of dashes from becoming one token
    sample_bytes   a larger corpus is sampled to about this size; 10^8 takes 1.3 to 2 GiB to train on
    temperature    languages share the sample by bytes^temperature: 1 as the corpus has them, 0
                   alike; a language that has less gives all it has, and the others share the rest
    """

    vocab_size: int = 6144
    rarest_pair: int = 2
    longest_token: int = 48
    sample_bytes: int = 100_000_000
    temperature: float = 0.5

    def __post_init__(self) -> None:
        floor = len(RESERVED_TOKENS) + 256
        validate(
            self,
            (
                "vocab_size",
                floor < self.vocab_size <= 2**31 - 1,
                f"must exceed {floor}: {len(RESERVED_TOKENS)} reserved tokens and 256 bytes",
            ),
            ("rarest_pair", self.rarest_pair >= 1, "must be at least 1"),
            ("longest_token", self.longest_token >= 2, "must be at least 2 bytes"),
            ("sample_bytes", self.sample_bytes >= 1, "must be at least 1"),
            ("temperature", 0.0 <= self.temperature <= 1.0, "must lie in [0, 1]"),
        )


@dataclass(frozen=True, kw_only=True)
class TekkenConfig:
    """The vocabulary of Mistral-Nemo with Apertus' reserved tokens; needs mistral-common.

    vocab_size    all ids: 1,000 reserved, then words in the order of their ranks
    latex         read \\begin{, \\end{, \\text{ and \\boxed{ as one token each, as Apertus does
    sample_bytes  what is measured of a larger corpus
    temperature   languages share that by bytes^temperature
    """

    vocab_size: int = 131_072
    latex: bool = True
    sample_bytes: int = 100_000_000
    temperature: float = 0.5

    def __post_init__(self) -> None:
        validate(
            self,
            ("vocab_size", 1256 < self.vocab_size <= 151_000, "must lie in 1257 .. 151000"),
            ("sample_bytes", self.sample_bytes >= 1, "must be at least 1"),
            ("temperature", 0.0 <= self.temperature <= 1.0, "must lie in [0, 1]"),
        )


@dataclass(frozen=True, kw_only=True)
class TokenizeConfig:
    """Documents to token ids. Nothing to choose: the tokenizer decides."""


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
    weight: float | None = None
    epochs: float | None = None
    most_epochs: float = 4.0

    def __post_init__(self) -> None:
        one = (self.weight is None) != (self.epochs is None)
        validate(
            self,
            ("weight", one, f"and epochs = {self.epochs}: give one of the two"),
            ("weight", self.weight is None or self.weight > 0, "must be positive"),
            ("epochs", self.epochs is None or self.epochs > 0, "must be positive"),
            ("most_epochs", self.most_epochs > 0, "must be positive"),
        )


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A stretch of the training stream with a mixture of its own.

    tokens   its length, split among the sources by their weights; None when they have epochs
    """

    name: str
    sources: tuple[SourceShare, ...]
    tokens: int | None = None

    def __post_init__(self) -> None:
        weighted = [share for share in self.sources if share.weight is not None]
        mixed = bool(weighted) and len(weighted) < len(self.sources)
        validate(
            self,
            ("name", self.name.isidentifier(), "must be letters, digits and _"),
            ("sources", bool(self.sources), "is empty"),
            ("sources", not mixed, "gives some sources a weight and others epochs"),
            (
                "tokens",
                (self.tokens is not None) == bool(weighted),
                "must be given when the sources have weights, and only then",
            ),
            ("tokens", self.tokens is None or self.tokens >= 1, "must be at least 1"),
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

    shard_tokens: int = 100_000_000
    seed: int = 28
    stages: tuple[Stage, ...] = ()
    planted_in: str = ""
    memory_gib: float = 2.0

    def __post_init__(self) -> None:
        names = [stage.name for stage in self.stages]
        validate(
            self,
            ("shard_tokens", self.shard_tokens >= 1, "must be at least 1"),
            ("seed", 0 <= self.seed <= LARGEST_SEED, "must lie in [0, 2^63)"),
            ("stages", len(set(names)) == len(names), "has two stages of one name"),
            (
                "planted_in",
                self.planted_in in ("", *names),
                f"names no stage; there are {', '.join(names) or 'none'}",
            ),
            ("memory_gib", self.memory_gib >= 0.125, "must be at least 0.125"),
        )
