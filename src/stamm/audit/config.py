"""Configuration of the memorization audit. No torch here."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from stamm.base.bounds import AtLeastOne, Natural, Positive, PositiveShare, Threads, within
from stamm.base.config import Bounded, validate
from stamm.corpus.classifiers.config import CLASSIFIER_FILES

Published = Literal["offset_bucket", "low_type_token_ratio"]


@dataclass(frozen=True, kw_only=True)
class GridConfig:
    """Continuations over prefix length x offset, greedy and sampled. Points that do not fit into a
    passage or the context are left out and counted.

    prefixes        tokens of the passage shown
    offsets         tokens of the passage skipped before them
    match_tokens    tokens that must all be right for an exact match
    temperature, top_k, top_p   of the sampled continuations, and of the distribution for which the
                    probability of extraction is computed. Hayes et al. take top_k=40; the audit of
                    Apertus top_k=0 top_p=0.9
    seed            of the sampled continuations
    as_published    rules of the audit of Apertus that change its result. "offset_bucket": passages
                    with 3 repeats have no points with an offset (its loader rejects them);
                    "low_type_token_ratio": passages are left out where the truth has a type-token
                    ratio below 0.4
    excluded        identifiers of passages to leave out, as its list of 21 contaminated ones

    Source   swiss-ai/apertus_memorization, scripts/submit_offset_experiment.sh and
             utils/exclude_noises.py; Hayes et al. 2024, arXiv 2410.19482
    """

    prefixes: tuple[AtLeastOne, ...] = (50, 100, 250, 500, 1000, 2000, 3000, 4000, 5000)
    offsets: tuple[Natural, ...] = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
    match_tokens: AtLeastOne = 50
    temperature: Positive = 1.0
    top_k: Natural = 40
    top_p: PositiveShare = 1.0
    seed: Annotated[int, within("[0, 2^64)")] = 42
    as_published: tuple[Published, ...] = ()
    excluded: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        validate(
            self,
            ("prefixes", _rising(self.prefixes), "must rise"),
            ("offsets", _rising(self.offsets), "must rise"),
        )


@dataclass(frozen=True, kw_only=True)
class AuditConfig(Bounded):
    """Continuations of planted passages, compared with the true text.

    prefix_tokens   tokens of the passage shown after <s>. 50 is the shortest of Apertus' audit
                    and the usual choice in the literature (Carlini et al. 2023, arXiv 2202.07646)
    new_tokens      tokens continued and compared
    candidates      texts drawn as a made-up canary is, never planted, among which it is ranked;
                    exposure is at most log2(candidates + 1) bits
    grid            None: prefix_tokens without an offset alone
    min_k           share of the least likely tokens in the membership scores min-k % and min-k %++
    passages        JSONL of passages to audit in place of those planted in the corpus, a
                    `PassageLine` each: text, repeats and, where known, language, group, probe_id
    reference       run, arm or Hugging Face folder for reference-calibrated membership scores; a
                    model that did not see the passages (`stamm audit` alone)
    toxicity_classifier   folder of a classifier (`stamm run corpus.classifier`) that scores the true
                    and the greedy continuations, and the answers; "": none
    answers         JSONL of answers to probe prompts, an `AnswerLine` each, such as completions.jsonl of
                    `stamm sample`; their refusals are counted. "": none
    redact          store lengths and SHA-256 in place of the texts of passages and continuations
    batch_tokens    tokens of one forward pass, padding included
    threads         CPU threads; part of the configuration because sums depend on it
    """

    prefix_tokens: AtLeastOne = 50
    new_tokens: AtLeastOne = 100
    candidates: Annotated[int, within("[1, 1000000]")] = 255
    grid: GridConfig | None = field(default_factory=GridConfig)
    min_k: PositiveShare = 0.2
    passages: str = ""
    reference: str = ""
    toxicity_classifier: str = ""
    answers: str = ""
    redact: bool = False
    batch_tokens: AtLeastOne = 8192
    threads: Threads = 2

    def files(self) -> dict[str, Path]:
        """The user's files that an audit reads: passages, answers, and a classifier's."""
        folder = self.toxicity_classifier
        classifier = [f"{folder}/{name}" for name in CLASSIFIER_FILES] if folder else []
        return {name: Path(name) for name in (self.passages, self.answers, *classifier) if name}

    def unread(self) -> tuple[str, ...]:
        """Fields that the others leave unread: passages of one's own have no made-up canaries."""
        return ("candidates",) if self.passages else ()


def _rising(values: tuple[int, ...]) -> bool:
    return bool(values) and all(a < b for a, b in itertools.pairwise(values))
