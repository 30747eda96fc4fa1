"""answers/alignment.json: answers of an aligned model against those of the model it started from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from stamm.base.schema import FieldError
from stamm.runs.schemas.evaluation import MeanInterval


@dataclass(frozen=True, kw_only=True)
class AnswerChange:
    """A measure of the start model's answers, of the aligned model's, and the paired difference."""

    before: MeanInterval
    after: MeanInterval
    difference: MeanInterval


@dataclass(frozen=True, kw_only=True)
class SampleAnswer:
    """Answers of both models to the prompt of a row. Texts are untrusted.

    held_out   whether the row was kept from training
    question   the last message of the user
    """

    file: str
    row: int
    held_out: bool
    question: str
    before: str
    after: str


@dataclass(frozen=True, kw_only=True)
class SampleAnswersFile:
    """sample_answers.json: answers before and after fine-tuning, of the most likely tokens."""

    SCHEMA: ClassVar[int] = 1

    start_sha256: str
    model_sha256: str
    max_new_tokens: int
    answers: tuple[SampleAnswer, ...]


@dataclass(frozen=True, kw_only=True)
class DistributionBin:
    """Shares of answers in one bin; low = high for a reward with few distinct values."""

    low: float
    high: float
    before: float
    after: float


@dataclass(frozen=True, kw_only=True)
class RewardChange:
    """One reward before and after alignment.

    column           name of the reward ("reward")
    quantile         of a reward among those of fresh reference completions of the same prompt
    win_rate         share of pairs of an aligned and a start answer to the same prompt that the
                     aligned one wins; a tie counts as half
    win_p_value      two-sided, of "the win rate is one half", by the bootstrap
    ties             share of pairs with equal rewards
    rewards          distribution of rewards
    quantiles        distribution of ranks among the references, level for the start model
    """

    column: str
    reward: AnswerChange
    quantile: AnswerChange
    win_rate: MeanInterval
    win_p_value: float
    ties: float
    rewards: tuple[DistributionBin, ...]
    quantiles: tuple[DistributionBin, ...]

    def __post_init__(self) -> None:
        if not 0 <= self.win_p_value <= 1:
            raise FieldError("win_p_value", "between 0 and 1")


@dataclass(frozen=True, kw_only=True)
class KlEstimate:
    """KL(pi || pi_ref) in nats of an answer, sampled from the aligned model pi.

    With d = log pi(y|x) - log pi_ref(y|x) of a sampled answer y:
    k1          mean of d: unbiased
    k3          mean of exp(-d) - 1 + d: unbiased, never negative; None where it overflows
    per_token   sum of d / sum of tokens
    recoded     share of answers whose sampled tokens were not recorded, and whose text has another
                number of tokens when it is encoded again; the estimate takes these
    """

    k1: MeanInterval
    k3: MeanInterval | None = None
    per_token: MeanInterval
    recoded: float


@dataclass(frozen=True, kw_only=True)
class CurvePoint:
    """Optimum of the quantile reward at one beta: KL to the start model, and mean quantile."""

    beta: float
    kl: float
    quantile: float


@dataclass(frozen=True, kw_only=True)
class OptimumGap:
    """Distance of an arm to the closed-form curve of KL against mean quantile.

    best_quantile   of the curve at the arm's KL
    below           best_quantile minus the arm's mean quantile
    excess_kl       the arm's KL minus that of the curve at its mean quantile; None where the curve
                    has none
    target          optimum of the beta that it was trained with; None where it is not known
    """

    best_quantile: float
    below: MeanInterval
    excess_kl: float | None = None
    target: CurvePoint | None = None


@dataclass(frozen=True, kw_only=True)
class LengthBin:
    """Mean tokens of the answers whose quantile lies in [low, high); None without an answer."""

    low: float
    high: float
    before: MeanInterval | None = None
    after: MeanInterval | None = None


@dataclass(frozen=True, kw_only=True)
class MemorizationChange:
    """Planted passages with `repeats` occurrences: cost of the true continuation minus control, in
    nats per token, and Rouge-L."""

    repeats: int
    before: MeanInterval
    after: MeanInterval
    rouge_before: float
    rouge_after: float


@dataclass(frozen=True, kw_only=True)
class AnswerPair:
    """Answers of both models to one prompt. Texts are cut and untrusted."""

    id: str
    prompt: str
    before: str
    after: str
    reward_before: float
    reward_after: float
    quantile_before: float
    quantile_after: float


@dataclass(frozen=True, kw_only=True)
class AlignmentFile:
    """answers/alignment.json: measures of one arm, over test prompts and seeds.

    seeds            of the aligned models, as the inputs name them
    model_sha256     of the weights, by seed
    reference_sha256 of the start model's weights
    sha256           of the files of completions, by input
    prompts          that both models answered
    answers          answers of a prompt by the start model that are compared with the aligned ones
    references       further answers of a prompt by the start model: quantiles are taken among them
    aligned          answers of a prompt by the aligned model
    left_out         counts of prompts and answers that were left out, by what they are
    method           how the intervals are computed
    rewards          the reward that was trained on, and others that were not
    tokens, stopped, distinct_4   length, share ended by a stop token, share of distinct 4-grams
    length_slope     tokens an answer grows by from quantile 0 to 1, within a prompt; None where
                     all answers to each prompt have one quantile
    bits_per_byte    of held-out text; None where one of the models was not evaluated
    example_rule     how the examples were chosen
    """

    SCHEMA: ClassVar[int] = 1

    seeds: tuple[str, ...]
    model_sha256: Mapping[str, str]
    reference_sha256: str
    chat_format: str
    chat_format_sha256: str
    sha256: Mapping[str, str]
    prompts: int
    answers: int
    references: int
    aligned: int
    left_out: Mapping[str, int] = field(default_factory=dict)
    confidence: float
    method: str
    tie_rule: str
    beta: float | None = None
    rewards: tuple[RewardChange, ...]
    kl: KlEstimate
    optimum: OptimumGap
    curve: tuple[CurvePoint, ...]
    tokens: AnswerChange
    stopped: AnswerChange
    distinct_4: AnswerChange
    length_slope: AnswerChange | None = None
    length_bins: tuple[LengthBin, ...]
    bits_per_byte: AnswerChange | None = None
    memorization: tuple[MemorizationChange, ...] = ()
    examples: tuple[AnswerPair, ...]
    example_rule: str

    def __post_init__(self) -> None:
        if not self.rewards:
            raise FieldError("rewards", "at least one")
        if not 0 < self.confidence < 1:
            raise FieldError("confidence", "between 0 and 1")
