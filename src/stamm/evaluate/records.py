"""evaluate/: results of evaluation tasks, and the memorization audit in audit/."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from stamm.base.schema import FieldError
from stamm.statistics.clustered_ratio import ClusteredRatio
from stamm.statistics.estimates import MeanInterval


@dataclass(frozen=True, kw_only=True)
class MetricValue:
    """One metric of an evaluation task.

    smallest_difference_from_chance   that is shown with power 0.8
    """

    value: float
    standard_error: float | None = None
    interval_95: tuple[float, ...] | None = None
    chance: float | None = None
    smallest_difference_from_chance: float | None = None


@dataclass(frozen=True, kw_only=True)
class GroupValue:
    """Main metric of a task over the items of one group."""

    items: int
    value: float
    standard_error: float | None = None
    interval_95: tuple[float, ...] | None = None
    chance: float | None = None


@dataclass(frozen=True, kw_only=True)
class LanguageFairness:
    """Fairness of a model over the languages of a task, by the task's main metric.

    mean          over languages, each counted once
    best, worst   languages with the best and the worst value
    gini          Gini coefficient of the values: 0 where all are equal; None for negative values
    """

    languages: int
    mean: float
    best: str
    best_value: float
    worst: str
    worst_value: float
    gini: float | None = None


@dataclass(frozen=True, kw_only=True)
class TaskFile:
    """evaluate/NAME.json of any task; a task adds keys of its own. Names are untrusted.

    model_sha256   of the model's weights; None in files that did not record it
    num_items      items that the metrics are computed from
    settings_sha256   hash of the settings that the items and their scores depend on, beside the model;
                      "" in earlier files

    Of tasks from files (docs/evaluation.md):
    identity       hash of everything that the result depends on
    metric         the main metric
    lower_is_better   of the main metric, where its name does not say so
    source, license, data_sha256   of the data file, as its description names them
    shots, chat    examples before each question; whether it was asked in the chat format
    limit          items that were chosen by hash; None for all
    stop_ids       tokens that end an answer, of a task with answers
    groups         by field and its value, such as "language"
    fairness       over languages; None for fewer than two
    blind          blind baselines: answers_only, longest, shortest, unigram, majority, majority_text
    strongest_blind       the best of them
    sighted_minus_blind   main metric minus the strongest blind baseline, item by item
    solved_blind   items that a blind baseline other than the most frequent answer solves
    warning        why the score may not measure what the task is for; "" for none
    rejected       rows that could not be asked, by reason
    truncated      items whose context was cut to fit into the model's
    unanswered     items whose answer could not be extracted in time, counted as wrong
    contamination  which items are in the run's training text, as a sentence; "" in earlier files
    contaminated   items found there; None where that is not known
    """

    SCHEMA: ClassVar[int] = 1
    OPEN: ClassVar[bool] = True

    task: str = ""
    model_sha256: str | None = None
    num_items: int = 0
    settings_sha256: str = ""
    metrics: Mapping[str, MetricValue] = field(default_factory=dict)
    identity: str = ""
    metric: str = ""
    lower_is_better: bool = False
    source: str = ""
    license: str = ""
    data_sha256: str = ""
    shots: int = 0
    chat: bool = False
    limit: int | None = None
    stop_ids: tuple[int, ...] = ()
    groups: Mapping[str, Mapping[str, GroupValue]] = field(default_factory=dict)
    fairness: LanguageFairness | None = None
    blind: Mapping[str, MetricValue] = field(default_factory=dict)
    strongest_blind: str = ""
    sighted_minus_blind: MetricValue | None = None
    solved_blind: int = 0
    warning: str = ""
    rejected: Mapping[str, int] = field(default_factory=dict)
    truncated: int = 0
    unanswered: int = 0
    contamination: str = ""
    contaminated: int | None = None


@dataclass(frozen=True, kw_only=True)
class ItemLine:
    """A line of evaluate/NAME_items.jsonl of a task from a file.

    line       of the data file: two models are compared item by item
    rejected   why the row could not be asked; "" for an item
    values     metrics of the item
    weight     of the item in a metric: 1, or the bytes of a text
    weights    of the item in metrics with another weight: its number of instructions
    texts      hashes of the choices
    answer     right answer of a completion or last word, as it is compared; "" for other tasks
    """

    line: int
    rejected: str = ""
    groups: Mapping[str, str] = field(default_factory=dict)
    cluster: str = ""
    weight: float = 1.0
    weights: Mapping[str, float] = field(default_factory=dict)
    chance: float | None = None
    values: Mapping[str, float] = field(default_factory=dict)
    blind: Mapping[str, float] = field(default_factory=dict)
    label: int = -1
    texts: tuple[str, ...] = ()
    answer: str = ""
    truncated: bool = False
    unanswered: bool = False


@dataclass(frozen=True, kw_only=True)
class TextLoss:
    """Loss on a set of held-out documents.

    nats            summed over tokens
    loss_nats       nats / tokens
    bits_per_byte   nats / (ln 2 * bytes): comparable across vocabularies
    """

    documents: int
    tokens: int
    bytes: int
    loss_nats: float
    bits_per_byte: float
    nats: float | None = None
    loss_nats_standard_error: float | None = None


@dataclass(frozen=True, kw_only=True)
class HeldOutFile(TaskFile):
    """evaluate/held_out.json: loss on the held-out split, over all and by language.

    context   tokens that the model attends to at once
    overlap   tokens of a window that were scored in the previous one
    rule      which tokens are scored
    """

    OPEN: ClassVar[bool] = False

    context: int
    overlap: int
    rule: str = ""
    overall: TextLoss
    languages: Mapping[str, TextLoss]

    @property
    def loss_nats(self) -> float:
        """Nats per token over all held-out documents."""
        return self.overall.loss_nats

    @property
    def bits_per_byte(self) -> float:
        """Bits per byte of text over all held-out documents."""
        return self.overall.bits_per_byte


@dataclass(frozen=True, kw_only=True)
class DocumentLoss:
    """A line of evaluate/held_out_documents.jsonl: negative log-likelihood of one document.

    tokens   scored tokens: all but the <s>
    bytes    of its text, in UTF-8
    """

    document_id: str
    language: str = ""
    tokens: int
    bytes: int = 0
    nats: float


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """An accuracy over pairs and its standard error, in [0, 1].

    field   of grammar, of one paradigm; "" elsewhere
    """

    pairs: int
    accuracy: float
    standard_error: float
    field: str = ""

    def __post_init__(self) -> None:
        if self.standard_error < 0:
            raise FieldError("standard_error", "at least 0")


@dataclass(frozen=True, kw_only=True)
class BlimpFile(TaskFile):
    """evaluate/blimp.json: accuracy on grammatical minimal pairs, over all and in groups.

    chance      accuracy of guessing
    paradigms   {} in files that did not record them
    """

    OPEN: ClassVar[bool] = False

    language: str = ""
    pairs_per_paradigm: int
    pairs: int
    accuracy: float
    standard_error: float
    chance: float
    fields: Mapping[str, Accuracy]
    phenomena: Mapping[str, Accuracy] = field(default_factory=dict)
    paradigms: Mapping[str, Accuracy] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.standard_error < 0:
            raise FieldError("standard_error", "at least 0")

    def scores(self) -> dict[str, Accuracy]:
        """Accuracies of "overall" and of the fields, with standard errors over paradigms.

        Pairs of a paradigm resemble one another, so the recorded errors, over pairs, are too small;
        they are kept where fewer than two paradigms are recorded.
        """
        whole = Accuracy(
            pairs=self.pairs, accuracy=self.accuracy, standard_error=self.standard_error
        )
        by_field = {"overall": whole, **self.fields}
        for name, score in by_field.items():
            ratio = ClusteredRatio()
            for pairs, correct in self.of_field(name).values():
                ratio.add(correct, pairs)
            if ratio.standard_error is not None:
                by_field[name] = replace(score, standard_error=ratio.standard_error)
        return by_field

    def of_field(self, field: str) -> dict[str, tuple[int, float]]:
        """Pairs and correct answers by paradigm, of one field or of all ("overall")."""
        return {
            name: (paradigm.pairs, paradigm.pairs * paradigm.accuracy)
            for name, paradigm in self.paradigms.items()
            if field in ("overall", paradigm.field)
        }


@dataclass(frozen=True, kw_only=True)
class PassageDifferences:
    """Every measure of planted passages minus that of other passages."""

    rouge_l: MeanInterval | None = None
    longest_common_span_tokens: MeanInterval | None = None
    longest_common_span_share: MeanInterval | None = None
    exact_prefix_tokens: MeanInterval | None = None
    type_token_ratio: MeanInterval | None = None
    true_type_token_ratio: MeanInterval | None = None
    nll_nats: MeanInterval


@dataclass(frozen=True, kw_only=True)
class RepeatBucket:
    """Planted passages that occur in the training stream `repeats` times (0: the control).

    rouge_l          F1 of produced against true tokens
    nll_nats         mean negative log-likelihood of a true token, given all before it
    exact_prefix_tokens          tokens until the model first departs from the truth
    longest_common_span_tokens   longest run of tokens that occurs in both
    extracted        passages reproduced token by token; None in files that did not count them
    exposure_bits    of made-up texts; None for others
    minus_control    difference to passages never seen; None for the control itself
    minus_exact      difference of varied copies to exact ones; None for others
    """

    repeats: int
    passages: int
    extracted: int | None = None
    rouge_l: MeanInterval
    longest_common_span_tokens: MeanInterval
    longest_common_span_share: MeanInterval | None = None
    exact_prefix_tokens: MeanInterval
    type_token_ratio: MeanInterval | None = None
    true_type_token_ratio: MeanInterval | None = None
    nll_nats: MeanInterval
    exposure_bits: MeanInterval | None = None
    minus_control: PassageDifferences | None = None
    minus_exact: PassageDifferences | None = None

    @property
    def nll_minus_control(self) -> MeanInterval | None:
        """Nats per true token minus those of passages never seen."""
        return self.minus_control.nll_nats if self.minus_control else None

    @property
    def nll_minus_exact(self) -> MeanInterval | None:
        """Nats per true token of varied copies minus those of exact ones."""
        return self.minus_exact.nll_nats if self.minus_exact else None


@dataclass(frozen=True, kw_only=True)
class CanaryResult:
    """Canaries of one kind.

    beside       the kind with exact copies that it is compared with; None without one
    candidates   texts among which each canary is ranked; 0 without exposure
    skipped      canaries too short to measure
    """

    kind: str
    beside: str | None = None
    candidates: int
    skipped: int
    buckets: tuple[RepeatBucket, ...]


@dataclass(frozen=True, kw_only=True)
class MemorizationFile:
    """audit/memorization.json: how much of planted passages is reproduced, fewest repeats first.

    model_sha256   of the model's weights; None in files that did not record it
    interval       how the confidence intervals are computed
    skipped        passages too short to measure
    withdrawn      probes and canaries that a replay removed from the corpus
    """

    SCHEMA: ClassVar[int] = 1

    model_sha256: str | None = None
    prefix_tokens: int
    new_tokens: int
    batch_tokens: int = 0
    threads: int = 0
    candidates: int = 0
    interval: str
    passages: int = 0
    skipped: int = 0
    withdrawn: int = 0
    buckets: tuple[RepeatBucket, ...]
    canaries: tuple[CanaryResult, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ContinuationLine:
    """A line of audit/continuations.jsonl: prompt, true and produced text. All untrusted."""

    probe_id: str
    repeats: int
    prefix: str
    truth: str
    produced: str
    rouge_l: float
    nll_nats: float | None = None
