"""Files that alignment and its judges write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from stamm.base.errors import visible
from stamm.base.schema import FieldError
from stamm.corpus.records import SetCoverage
from stamm.runs.records import InputFile
from stamm.statistics.estimates import MeanInterval

KINDS = ("chat", "preference", "rated")
_MOST_NAMED = 5


@dataclass(frozen=True, kw_only=True)
class PreparedSplit:
    """A Parquet file of encoded answers.

    examples                  rows of the data; a preference pair is one example with two answers
    supervised_tokens         tokens of the loss
    longest                   tokens of the longest answer, prompt included
    answers_with_reward       and with at least one reference reward
    """

    file: str
    sha256: str
    examples: int
    answers: int
    tokens: int
    supervised_tokens: int
    longest: int
    answers_with_reward: int = 0
    answers_with_ref_rewards: int = 0


@dataclass(frozen=True, kw_only=True)
class PreparedSource:
    """Rows of one source under one licence; "" where the rows state none. Untrusted text."""

    source: str
    licence: str
    kept: int
    dropped: int
    supervised_tokens: int


@dataclass(frozen=True, kw_only=True)
class PreparedPrompt:
    """A prompt of the data.

    ids        of the prompt, up to where the assistant begins to write
    question   the last message of the user, cut. Untrusted text
    """

    split: str
    file: str
    row: int
    question: str
    ids: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class PreparedPrompts:
    """prompts.json: prompts with different questions, at most 8 of each split, in the order of the rows."""

    SCHEMA: ClassVar[int] = 1

    prompts: tuple[PreparedPrompt, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PreparedShare:
    """A source of a mixture.

    share               asked for: its weight, divided by the sum of the weights
    read, kept          rows; those that the weights leave out are among the dropped ones
    epochs              times that its rows are read
    examples, answers, supervised_tokens   of both splits, as often as they are read
    """

    source: str
    share: float
    read: int
    kept: int
    epochs: float
    examples: int
    answers: int
    supervised_tokens: int


@dataclass(frozen=True, kw_only=True)
class PreparedFile:
    """A file of the configuration, as it was read.

    truncated_at   row at which it ends in the middle; None: it is whole
    """

    name: str
    sha256: str
    read: int
    kept: int
    truncated_at: int | None = None


@dataclass(frozen=True, kw_only=True)
class PreparedDecontamination:
    """Evaluation sets that were searched for, and rows dropped by set.

    gram_words, share   the rule: an n-gram of that length, and that share of the words
    contaminated        rows that contain an item of each set; a row may count for several
    """

    gram_words: int
    share: float
    sets: Mapping[str, SetCoverage]
    contaminated: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PreparedSummary:
    """summary.json of prepared data: read = kept + sum(dropped), in rows.

    kind               "chat", "preference" or "rated"
    context            tokens of the longest answer that is kept
    chat_format        name of the chat format, and the SHA-256 of all that decides the ids
    licences           rows kept by licence
    refused_licences   as configured
    sources            at most 1,000 pairs of source and licence, in order of first occurrence;
                       "(others)" has the rest
    decontamination    None: not configured
    mixture            its sources; empty: not configured
    unknown_keys       columns, and keys of messages ("messages: mood"), that were not used: rows by key
    causes             the most frequent details of dropped rows that cannot be used: rows by detail
    """

    SCHEMA: ClassVar[int] = 1

    kind: str
    context: int
    chat_format: str
    chat_format_sha256: str
    tokenizer_sha256: str
    read: int
    kept: int
    dropped: Mapping[str, int]
    files: tuple[PreparedFile, ...]
    splits: Mapping[str, PreparedSplit]
    licences: Mapping[str, int]
    refused_licences: tuple[str, ...] = ()
    sources: tuple[PreparedSource, ...] = ()
    decontamination: PreparedDecontamination | None = None
    mixture: tuple[PreparedShare, ...] = ()
    unknown_keys: Mapping[str, int] = field(default_factory=dict)
    causes: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise FieldError("kind", f"one of {', '.join(KINDS)}")
        if not {"train", "held_out"} <= self.splits.keys():
            raise FieldError("splits", "an object with train and held_out")
        if self.read != self.kept + sum(self.dropped.values()):
            raise FieldError("read", "kept + dropped")

    def truncation(self) -> str:
        """`truncation_sentence` of its files."""
        rows = {file.name: file.truncated_at for file in self.files}
        return truncation_sentence({name: row for name, row in rows.items() if row is not None})


def truncation_sentence(files: Mapping[str, int]) -> str:
    """One line on files that end in the middle; "" without any.

    files   the row at which each ends, by name, which is untrusted text
    """
    if not files:
        return ""
    shown = [
        f"{visible(name, 100)} from row {row:,} on" for name, row in [*files.items()][:_MOST_NAMED]
    ]
    rest_note = f" and {len(files) - _MOST_NAMED:,} more" if len(files) > _MOST_NAMED else ""
    count = "1 file ends" if len(files) == 1 else f"{len(files):,} files end"
    return f"{count} in the middle, and rows are lost: {', '.join(shown)}{rest_note}."


@dataclass(frozen=True, kw_only=True)
class SelectionSummary:
    """Prompts whose sampled answers became training examples: prompts = kept + sum(dropped).

    examples     rows that were written
    references   smallest and largest number of reference rewards of a prompt; (0, 0) without any
    """

    SCHEMA: ClassVar[int] = 1

    prompts: int
    kept: int
    dropped: Mapping[str, int]
    examples: int
    references: tuple[int, ...]
    sha256: str


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


@dataclass(frozen=True)
class BadRow:
    """A row that cannot be read or scored: file, row from 1, and the reason. Untrusted text.

    cause   "bad_row", "empty_answer" where an answer has no content, "truncated_file" for the row at
            which a file ends in the middle, or "no_reward"
    """

    file: str
    row: int
    reason: str
    cause: str = "bad_row"

    def line(self) -> str:
        """The file, the row and the reason, in one line."""
        return f"{self.file}, row {self.row}: {self.reason}"


@dataclass(frozen=True, kw_only=True)
class ScoreManifest:
    """NAME.manifest.json: a file of rewards.

    reward             name of the reward
    config             resolved, as `stamm.base.config.to_plain` writes it
    reads              files that decide the reward: the user's code, a JSON schema, model weights
    input, output      the file of answers, and the file with their rewards
    rows, answers      rows with rewards, and their answers: a pair has two
    mean_reward        of all answers
    agreement          share of the pairs whose chosen answer has the larger reward, a tie counting
                       1/2; None without pairs
    distinct_rewards   number of different values
    prompts            different prompts
    tied_pairs         share of the pairs of answers to one prompt with equal rewards; None without any
    constant_prompts   share of the prompts with several answers that all have one reward
    length_correlation   Spearman's, of reward and characters of the answer; None if one is constant
    num_bad_rows       rows without a reward; `bad_rows` lists the first 1,000
    """

    SCHEMA: ClassVar[int] = 2

    kind: str = "score"
    reward: str
    config: object = None
    reads: Mapping[str, InputFile]
    input: InputFile
    output: InputFile
    rows: int
    answers: int = 0
    mean_reward: float | None
    agreement: float | None = None
    distinct_rewards: int
    prompts: int = 0
    tied_pairs: float | None = None
    constant_prompts: float | None = None
    length_correlation: float | None = None
    num_bad_rows: int
    bad_rows: tuple[BadRow, ...]


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """Settings that were tried, as on the command line, and their mean reward on validation prompts."""

    settings: tuple[str, ...]
    mean_reward: float


@dataclass(frozen=True, kw_only=True)
class ChosenSettings:
    """Settings of one objective.

    settings     of the best candidate
    candidates   all that were tried, in order
    """

    settings: tuple[str, ...]
    candidates: tuple[Candidate, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ChosenFile:
    """chosen.json by objective."""

    SCHEMA: ClassVar[int] = 1

    arms: Mapping[str, ChosenSettings] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ReferenceSummary:
    """Identity of reference log-probabilities.

    sha256               of log_probs.parquet
    data_sha256          of the prepared examples, in whose order they are
    weights_sha256       of the reference model
    chat_format_sha256   of all that decides the ids
    mean_nats_per_token  mean negative log-probability of the answers' tokens
    held_out_sha256, held_out_data_sha256   of the held-out answers' file and rows; "" without any

    The counts and the mean are those of the answers that are trained on.
    """

    SCHEMA: ClassVar[int] = 1

    sha256: str
    data_sha256: str
    weights_sha256: str
    chat_format_sha256: str
    answers: int
    tokens: int
    mean_nats_per_token: float
    held_out_sha256: str = ""
    held_out_data_sha256: str = ""


@dataclass(frozen=True, kw_only=True)
class HeldOutShare:
    """A share of pairs, None without any, and its 95 % Wilson interval, as if pairs were independent."""

    share: float | None
    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high <= 1:
            raise FieldError("low", "a share of at most high")
        if self.share is not None and not 0 <= self.share <= 1:
            raise FieldError("share", "in 0 to 1")


@dataclass(frozen=True, kw_only=True)
class RewardAccuracyFile:
    """accuracy.json of a reward model.

    pairs           held-out pairs of answers
    accuracy        share whose chosen answer has the larger reward, a tie counting 1/2
    longer          the same of a rule that prefers the answer of more tokens
    ties            pairs whose two rewards are equal
    mean_margin     mean of the chosen minus the rejected reward; None without pairs
    loss_nats       mean of -log sigmoid(chosen - rejected); None without pairs. log 2 is chance
    data_sha256     of the held-out pairs
    model_sha256    of the decoder's weights
    head_sha256     of head.safetensors
    """

    SCHEMA: ClassVar[int] = 1

    pairs: int
    accuracy: HeldOutShare
    longer: HeldOutShare
    ties: int
    mean_margin: float | None
    loss_nats: float | None
    data_sha256: str
    model_sha256: str
    head_sha256: str


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
