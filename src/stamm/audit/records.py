"""audit/ beside memorization.json: the grid, membership scores, safety; and a user's passages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stamm.base.schema import FieldError
from stamm.statistics.estimates import MeanInterval


@dataclass(frozen=True, kw_only=True)
class PassageLine:
    """A line of a user's file of passages. Untrusted.

    repeats    occurrences in the training text; 0: never, a control
    group       passages with the same group are compared with each other alone in membership scores;
               "": those of the same language
    probe_id   "": its line number
    """

    text: str
    repeats: int
    language: str = ""
    group: str = ""
    probe_id: str = ""

    def __post_init__(self) -> None:
        if self.repeats < 0:
            raise FieldError("repeats", "0 or more")


@dataclass(frozen=True, kw_only=True)
class GridMeasures:
    """Means over passages. exact_match: the first match_tokens tokens are right; Wilson interval."""

    rouge_l: MeanInterval
    longest_common_span_share: MeanInterval
    exact_match: MeanInterval
    type_token_ratio: MeanInterval


@dataclass(frozen=True, kw_only=True)
class GridCell:
    """Passages of one number of repeats and language ("": all) at one point of the grid."""

    prefix_tokens: int
    offset_tokens: int
    language: str
    repeats: int
    passages: int
    nll_nats: MeanInterval
    true_type_token_ratio: MeanInterval
    greedy: GridMeasures
    sampled: GridMeasures
    nll_minus_control: MeanInterval | None = None
    rouge_l_minus_control: MeanInterval | None = None


@dataclass(frozen=True, kw_only=True)
class ExtractionRate:
    """Share of passages that `samples` samples contain with a chance of at least `chance`."""

    repeats: int
    samples: int
    chance: float
    passages: int
    share: MeanInterval


@dataclass(frozen=True, kw_only=True)
class GridFile:
    """audit/grid.json: memorization by prefix length, offset, repeats and language.

    points       measured
    left_out     points that do not fit into the passage or the context, or that a rule excludes
    as_published rules of the published audit that were applied
    excluded     number of passages left out by identifier
    extraction   of the shortest prefix and offset
    """

    SCHEMA: ClassVar[int] = 1

    model_sha256: str | None = None
    new_tokens: int
    match_tokens: int
    temperature: float
    top_k: int
    top_p: float
    seed: int
    as_published: tuple[str, ...]
    excluded: int
    points: int
    left_out: int
    cells: tuple[GridCell, ...]
    extraction: tuple[ExtractionRate, ...]


@dataclass(frozen=True, kw_only=True)
class MembershipScore:
    """AUC of one membership score: planted passages against controls.

    repeats   None: of any number
    """

    score: str
    repeats: int | None = None
    auc: MeanInterval


@dataclass(frozen=True, kw_only=True)
class MembershipFile:
    """audit/membership.json: how well scores separate planted passages from those never planted.

    passages, controls   with scores
    reference_sha256     of the reference model's weights; None without one
    """

    SCHEMA: ClassVar[int] = 1

    model_sha256: str | None = None
    reference_sha256: str | None = None
    min_k: float
    passages: int
    controls: int
    areas: tuple[MembershipScore, ...]


@dataclass(frozen=True, kw_only=True)
class AnswerLine:
    """A line of a user's file of answers, such as completions.jsonl of `stamm sample`. Untrusted.

    completion   text, or a list of messages with "content"
    probe        group of the prompt, "safe" or "unsafe" in XSTest
    label        the same, in answers that `stamm sample` did not write: it does not keep this column
    """

    completion: object
    language: str = ""
    probe: str = ""
    label: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.completion, str) and not _contents(self.completion):
            raise FieldError("completion", "a text or a list of messages")

    def text(self) -> str:
        """The answer."""
        if isinstance(self.completion, str):
            return self.completion
        return "\n".join(_contents(self.completion))


def _contents(messages: object) -> list[str]:
    if not isinstance(messages, list):
        return []
    contents = [message.get("content") for message in messages if isinstance(message, dict)]
    return [text for text in contents if isinstance(text, str)]


@dataclass(frozen=True, kw_only=True)
class Toxicity:
    """Scores of a toxicity classifier for texts of one kind and language.

    kind    "truth", "greedy" (continuations of passages) or "answers"
    score   mean probability of toxicity at even odds
    toxic   share with a score of at least 0.5
    """

    kind: str
    language: str
    texts: int
    score: MeanInterval
    toxic: MeanInterval


@dataclass(frozen=True, kw_only=True)
class Refusals:
    """Share of refusals among answers to prompts of one label.

    share   None in languages other than English, whose refusals are not recognised
    """

    label: str
    language: str
    answers: int
    share: MeanInterval | None


@dataclass(frozen=True, kw_only=True)
class SafetyFile:
    """audit/safety.json: toxicity of continuations and answers, refusals among answers.

    classifier   identity of the toxicity classifier; None without one
    answers      in the user's file; 0 without one
    """

    SCHEMA: ClassVar[int] = 1

    model_sha256: str | None = None
    classifier: str | None = None
    answers: int
    toxicity: tuple[Toxicity, ...]
    refusals: tuple[Refusals, ...]
