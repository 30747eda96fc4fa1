"""Configuration of the corpus: inputs, consent, document filters, global filters, canaries.

Torch-free and light: the command line reads these classes to print a recipe.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from typing import ClassVar, TypeVar

from stamm.base.config import validate
from stamm.base.user_code import NAMES_CODE, is_reference
from stamm.corpus.canaries.config import CanariesConfig, InjectionConfig, ProbesConfig
from stamm.corpus.classifiers.config import ThresholdConfig
from stamm.corpus.consent.config import ConsentConfig
from stamm.corpus.contamination.config import ContaminationConfig
from stamm.corpus.dedup.config import DedupConfig
from stamm.corpus.language.config import SHIPPED_MODEL, LanguageConfig
from stamm.corpus.licences.config import LicenceConfig
from stamm.corpus.limits import LARGEST_SEED, FieldNames, ReadLimits
from stamm.corpus.pii.config import PiiConfig
from stamm.corpus.quality.config import SHIPPED_THRESHOLDS, QualityConfig

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

    FORMER_KEYS: ClassVar = {  # of version 0.1
        "duplicates": "dedup",
        "toxicity_head": "toxicity_classifier",
        "quality_head": "quality_classifier",
    }

    inputs: tuple[str, ...]
    repositories: tuple[str, ...] = ()
    fields: FieldNames = field(default_factory=FieldNames)
    consent: ConsentConfig = field(default_factory=ConsentConfig)
    pii: PiiConfig = field(default_factory=PiiConfig)
    limits: ReadLimits = field(default_factory=ReadLimits)
    shortest: int = 1
    letters_lost: float = 0.8
    licences: LicenceConfig | None = None
    language: LanguageConfig | None = field(default_factory=LanguageConfig)
    quality: QualityConfig | None = None
    contamination: ContaminationConfig | None = None
    toxicity_classifier: str = ""
    quality_classifier: str = ""
    dedup: DedupConfig | None = field(default_factory=DedupConfig)
    filters: tuple[str, ...] = field(default=(), metadata=NAMES_CODE)

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
            ("letters_lost", 0.0 <= self.letters_lost <= 1.0, "must lie in [0, 1]"),
            (
                "filters",
                all(map(is_reference, self.filters)),
                "must name Python classes: mine.py:MyFilter or package.module:MyFilter",
            ),
            ("filters", len(set(self.filters)) == len(self.filters), "names a filter twice"),
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
class GlobalFilterConfig:
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

    FORMER_KEYS: ClassVar = {  # of version 0.1
        "duplicates": "dedup",
    }

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
