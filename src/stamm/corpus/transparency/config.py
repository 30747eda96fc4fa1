"""Statements about a corpus that the ledger lacks: provider, kinds of sources, claims."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Literal

from stamm.base.bounds import AtLeastOne, Text
from stamm.base.config import validate
from stamm.corpus.limits import MemoryGib

Kind = Literal["public", "licensed", "private", "crawled", "user", "service", "synthetic", "other"]

_LONGEST = 10_000
_MONTH = re.compile(r"[0-9]{4}-(0[1-9]|1[0-2])")
_DAY = re.compile(rf"{_MONTH.pattern}-(0[1-9]|[12][0-9]|3[01])")


@dataclass(frozen=True, kw_only=True)
class SourceKind:
    """The kind of some sources, which is a section of the template.

    source   pattern for the ledger's `source` ("fineweb*"); the first that matches counts
    kind     public (2.1), licensed (2.2.1), private (2.2.2), crawled (2.3), user (2.4, what users
             gave the model), service (2.4, what they gave other services of the provider),
             synthetic (2.5), other (2.6)
    link     address of the dataset
    """

    source: Text
    kind: Kind
    link: str = ""

    def __post_init__(self) -> None:
        validate(
            self,
            ("source", len(self.source) <= 200, "is longer than 200 characters"),
            ("link", len(self.link) <= 2000, "is longer than 2,000 characters"),
        )


@dataclass(frozen=True, kw_only=True)
class EvidenceConfig:
    """Answers that the ledger lacks. Missing ones are open questions in the documents.

    provider, contact         who places the model on the market, and how to reach them
    representative            the authorised representative in the Union, or why there is none
    model                     versioned names of the models
    dependencies              the model that this one was made from, or that there is none
    placed                    day on which the model was placed on the Union market: 2026-08-02
    version, updated          of the summary itself; updated as 2026-08-02
    sme                       small or medium-sized enterprise: fewer domains must be listed
    content                   types of content ("fiction, laws, manuals")
    sources                   what kind each source is of
    collected_from            months between which the crawlers of 2.3 collected: 2024-01
    collected_until
    latest                    claim: month of the latest acquisition of any training data
    continuous                whether training on newer data continues
    languages                 claim: number of languages (with scripts) in the training data
    crawlers                  names of crawlers of the provider, or on its behalf
    crawler_purpose           their purpose
    crawler_behaviour         how they treat robots.txt, paywalls and captchas
    public, licensed, private, crawled, user, service, synthetic, other
                              claims: whether data of this kind was used
    opt_outs_removed          claim: whether documents were removed because of an opt-out
    personal_data_removed     claim: whether personal data was replaced
    signatory                 whether the provider signed the Code of Practice
    generators                models that made the synthetic data
    services                  services that the user data was taken from
    opt_outs, illegal_content, comments
                              measures and remarks, as text of the provider
    licence                   of the corpus itself, in the spelling of the Hugging Face Hub
    memory_gib                memory of sorting and grouping, beyond which they use the disk
    """

    provider: str = ""
    contact: str = ""
    representative: str = ""
    model: str = ""
    dependencies: str = ""
    placed: str = ""
    version: str = ""
    updated: str = ""
    sme: bool = False
    content: str = ""
    sources: tuple[SourceKind, ...] = ()
    collected_from: str = ""
    collected_until: str = ""
    latest: str = ""
    continuous: bool | None = None
    languages: AtLeastOne | None = None
    crawlers: tuple[str, ...] = ()
    crawler_purpose: str = ""
    crawler_behaviour: str = ""
    public: bool | None = None
    licensed: bool | None = None
    private: bool | None = None
    crawled: bool | None = None
    user: bool | None = None
    service: bool | None = None
    synthetic: bool | None = None
    other: bool | None = None
    opt_outs_removed: bool | None = None
    personal_data_removed: bool | None = None
    signatory: bool | None = None
    generators: str = ""
    services: str = ""
    opt_outs: str = ""
    illegal_content: str = ""
    comments: str = ""
    licence: str = ""
    memory_gib: MemoryGib = 1.0

    def __post_init__(self) -> None:
        texts = [f.name for f in fields(self) if isinstance(getattr(self, f.name), str)]
        months = ("collected_from", "collected_until", "latest")
        validate(
            self,
            *((n, len(getattr(self, n)) <= _LONGEST, "is longer than 10,000") for n in texts),
            *((n, _is(_MONTH, getattr(self, n)), "is not a month such as 2024-03") for n in months),
            *(
                (n, _is(_DAY, getattr(self, n)), "is not a day such as 2026-08-02")
                for n in ("placed", "updated")
            ),
            ("sources", len(self.sources) <= 1000, "has more than 1,000 patterns"),
            ("crawlers", all(self.crawlers), "has an empty name"),
            (
                "collected_until",
                not (self.collected_from and self.collected_until)
                or self.collected_from <= self.collected_until,
                f"comes before collected_from = {self.collected_from}",
            ),
        )


def _is(pattern: re.Pattern[str], text: str) -> bool:
    return not text or pattern.fullmatch(text) is not None
