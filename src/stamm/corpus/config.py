"""What the three corpus jobs can be told: which texts, whose consent, which vocabulary, how packed.

Torch-free and light: the command line reads these classes to print a recipe.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from typing import TypeVar

from stamm.base.config import validate
from stamm.base.user_code import is_reference
from stamm.corpus.canaries.config import CanariesConfig, InjectionConfig, ProbesConfig
from stamm.corpus.classifiers.config import ThresholdConfig
from stamm.corpus.consent.config import ConsentConfig
from stamm.corpus.contamination.config import ContaminationConfig
from stamm.corpus.dedup.config import DedupConfig
from stamm.corpus.language.config import LanguageConfig
from stamm.corpus.licences.config import LicenceConfig
from stamm.corpus.limits import LARGEST_SEED, FieldNames, ReadLimits
from stamm.corpus.pii.config import PiiConfig
from stamm.corpus.quality.config import QualityConfig

C = TypeVar("C")
_REPOSITORY = re.compile(r"[^=]+=[a-z][a-z0-9+.-]*://[^\s#]+")


@dataclass(frozen=True, kw_only=True)
class FilterConfig:
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
    filters         corpus filters of the user's own, "mine.py:MyFilter", applied in this order
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
    filters: tuple[str, ...] = ()

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
            (
                "filters",
                all(map(is_reference, self.filters)),
                "must name Python classes: mine.py:MyFilter or package.module:MyFilter",
            ),
            ("filters", len(set(self.filters)) == len(self.filters), "names a filter twice"),
        )

    def repository_url(self, name: str) -> str:
        """The address of the repository that the input called `name` is, "" where none is given."""
        pairs = (said.split("=", 1) for said in self.repositories)
        return next((url for pattern, url in pairs if fnmatchcase(name, pattern)), "")


@dataclass(frozen=True, kw_only=True)
class GlobalFilterConfig:
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
class CorpusConfig(FilterConfig, GlobalFilterConfig):
    """From raw files to documents with a ledger.

    seed    decides the held-out documents and the probes
    probes  passages planted to measure memorization; None plants nothing
    canaries  random texts, made-up secrets and altered passages beside them; they need probes
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
        """The part that concerns each document by itself."""
        return _narrowed(self, FilterConfig)

    @property
    def global_filter_config(self) -> GlobalFilterConfig:
        """The part that concerns all documents at once."""
        return _narrowed(self, GlobalFilterConfig)

    @property
    def injection_config(self) -> InjectionConfig | None:
        """What is planted, None when nothing is."""
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
