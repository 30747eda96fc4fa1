"""judge/judge.json, charter/summary.json and charter/ratings.jsonl: judges, and their ratings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from stamm.base.schema import FieldError


@dataclass(frozen=True, kw_only=True)
class OrderedShare:
    """Pairs that a judge ordered rightly.

    right, ties, pairs   counts; a tie is not right
    low, high            95 % Wilson interval of right / pairs, as if pairs were independent
    """

    right: int
    ties: int = 0
    pairs: int
    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 <= self.right <= self.pairs:
            raise FieldError("right", "from 0 to pairs")

    @property
    def share(self) -> float:
        """right / pairs; NaN without pairs."""
        return self.right / self.pairs if self.pairs else float("nan")


@dataclass(frozen=True, kw_only=True)
class ChainStep:
    """A place in the chains: the degradation applied last, and the ratings of the texts there."""

    name: str
    rated: int
    mean_rating: float | None = None


@dataclass(frozen=True, kw_only=True)
class JudgeFile:
    """judge/judge.json: validation of a judge on chains of progressively degraded answers.

    judge             all that decides its replies; identity_sha256 is its hash
    articles          of the charter that the ratings are by
    pointwise_*       pairs of a chain ordered by the mean of their ratings
    pairwise_*        pairs ordered by a comparison in both orders of presentation; None: not asked
    first_preferred   mean probability of the answer that is presented first: 0.5 without position bias
    unrated           texts and comparisons without a result, by reason
    replies           stored, with the tokens that the judge counted
    unknown_keys      replies by key of their JSON whose meaning is not known
    min_ordered       share that the run demands of all pairs; 0: none
    """

    SCHEMA: ClassVar[int] = 1

    judge: Mapping[str, object]
    identity_sha256: str
    charter: str
    charter_sha256: str
    articles: tuple[int, ...]
    good_answers_sha256: str
    chains: int
    skipped: int = 0
    steps: tuple[ChainStep, ...]
    pointwise_adjacent: OrderedShare
    pointwise_all: OrderedShare
    pairwise_adjacent: OrderedShare | None = None
    pairwise_all: OrderedShare | None = None
    first_preferred: float | None = None
    unrated: Mapping[str, int] = field(default_factory=dict)
    replies: int
    prompt_tokens: int = 0
    completion_tokens: int = 0
    unknown_keys: Mapping[str, int] = field(default_factory=dict)
    min_ordered: float = 0.0
    passed: bool


@dataclass(frozen=True, kw_only=True)
class RatingLine:
    """A line of charter/ratings.jsonl: the ratings of one answer.

    file, row   of the answer, from 1
    id          the row's own; untrusted
    prompt      number of its prompt, from 0
    scores      1 to 9, by number of the article
    masses      probability of the digits together, by number of the article
    mean        of the scores; None for an unrated answer, of which `reason` is the reason
    judge       `identity_sha256` of the judge
    """

    file: str
    row: int
    id: str = ""
    prompt: int
    scores: Mapping[str, float] = field(default_factory=dict)
    masses: Mapping[str, float] = field(default_factory=dict)
    mean: float | None = None
    reason: str = ""
    judge: str


@dataclass(frozen=True, kw_only=True)
class CharterSummary:
    """charter/summary.json: answers rated by a charter, and the rewards made of it.

    input, rewards, ratings   path and SHA-256 of the files
    rows                      rows with an answer; `bad_rows` could not be read
    unrated                   rows without a rating, by reason
    prompts                   distinct prompts; `lone_prompts` have a single rated answer, whose reward
                              holds no information
    comparisons               asked for, in both orders; `failed_comparisons` had no result and were
                              decided by the ratings
    first_preferred, unknown_keys   as in JudgeFile
    article_means             mean score by number of the article
    """

    SCHEMA: ClassVar[int] = 1

    judge: Mapping[str, object]
    identity_sha256: str
    charter: str
    charter_sha256: str
    articles: Mapping[str, str]
    input: Mapping[str, str]
    ratings: Mapping[str, str]
    rewards: Mapping[str, str]
    rows: int
    bad_rows: int = 0
    rated: int
    unrated: Mapping[str, int] = field(default_factory=dict)
    prompts: int
    lone_prompts: int = 0
    comparisons: int = 0
    failed_comparisons: int = 0
    first_preferred: float | None = None
    article_means: Mapping[str, float] = field(default_factory=dict)
    replies: int
    prompt_tokens: int = 0
    completion_tokens: int = 0
    unknown_keys: Mapping[str, int] = field(default_factory=dict)
