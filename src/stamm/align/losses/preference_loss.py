"""The interface of preference losses: a frozen dataclass of settings, what it reads, and its formula.

The built-in ones are written against this interface, and a user's `mine.py:MyLoss` is used like them
(docs/extending/preference_loss.md). No torch here: configurations import it.

Letters: B answers, P pairs, N reference rewards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeVar

from stamm import losses
from stamm.base.config import nearest, validate
from stamm.base.errors import ConfigError, DataError
from stamm.base.user_code import (
    NAMES_CODE,
    code_files,
    guarded,
    is_reference,
    keyword_options,
    load_reference,
    options_checks,
)

if TYPE_CHECKING:
    from torch import Tensor

    from stamm.align.data.encoded import EncodedAnswer, EncodedExamples

Needs = Literal["nothing", "labels", "rewards", "ref_rewards", "own_ref_rewards"]
T = TypeVar("T")
ROUNDING = 1e-4
"""Nats: packed and padded passes in float32 give sums of log-probabilities that differ by less."""


@dataclass(frozen=True, kw_only=True)
class LossInputs:
    """The answers of a micro-batch as a loss reads them; pairs are answers 2i (chosen) and 2i + 1.

    log_prob_B       log-probability under the policy in nats, differentiable, float64
    reference_B      under the reference policy; NaN without `NEEDS_REFERENCE`
    reward_B         rewards, or what `labels` gave; NaN: not rated
    ref_reward_BN    rewards of reference completions, filled up with NaN
    length_B         tokens of the answer
    num_examples     pairs, or single answers
    kl               KL to the reference policy, estimated once for the step from answers to other
                     prompts, at least 0; NaN without `NEEDS_MISMATCHED`
    """

    log_prob_B: Tensor
    reference_B: Tensor
    reward_B: Tensor
    ref_reward_BN: Tensor
    length_B: Tensor
    num_examples: int
    kl: float = math.nan

    def log_ratio(self) -> Tensor:
        """log-probability under the policy less that under the reference, (B,)."""
        return self.log_prob_B - self.reference_B


@dataclass(frozen=True)
class ExampleLosses:
    """The loss of each example, and metrics: a value for each example, averaged over a step.

    Both have the shape (num_examples,): a pair has one.
    """

    loss: Tensor
    metrics: Mapping[str, Tensor]

    def check(self, num_examples: int) -> None:
        """Check shapes and names: the mean over a wrong shape would be wrong without an error.

        Raises   ConfigError
        """
        for name, value in {"the loss": self.loss, **self.metrics}.items():
            if tuple(value.shape) != (num_examples,):
                raise ConfigError(
                    f"{name} has the shape {tuple(value.shape)}, and there are {num_examples} examples",
                    fix="Return one number for each example",
                )
        for name in self.metrics:
            if not name.startswith("reward/"):
                raise ConfigError(
                    f"a metric is called {name!r}", fix='Begin its name with "reward/"'
                )


@dataclass(frozen=True, kw_only=True)
class PreferenceLoss:
    """A loss on the log-probabilities of answers.

    ROWS               kinds of rows that it is trained on: pairs of a chosen and a rejected answer,
                       rated answers, or both
    SINGLE_ANSWERS     each answer of a pair is an example of its own
    NEEDS_REFERENCE    reads log-probabilities under the reference policy, which a step stores before
    NEEDS_MISMATCHED   reads `LossInputs.kl`
    """

    ROWS: ClassVar[tuple[Literal["preference", "rated"], ...]] = ("preference",)
    SINGLE_ANSWERS: ClassVar[bool] = False
    NEEDS_REFERENCE: ClassVar[bool] = True
    NEEDS_MISMATCHED: ClassVar[bool] = False

    @property
    def needs(self) -> Needs:
        """Columns that each row must have beside its answers."""
        return "nothing"

    @property
    def min_references(self) -> int:
        """Fewest reference rewards of a row, with `needs` of them."""
        return 1

    @property
    def closed_form_beta(self) -> float | None:
        """beta, where the optimum is the reference policy tilted by exp(quantile / beta); else None."""
        return None

    def check(self, data: EncodedExamples) -> None:
        """Check that prepared examples have what the loss reads.

        Raises   DataError naming the first example that does not
        """

    def fitted(self, data: EncodedExamples) -> tuple[Self, tuple[str, ...]]:
        """The loss with the settings that follow from the data, and remarks for the user."""
        return self, ()

    def labels(self, data: EncodedExamples, *, check: bool = True) -> list[float] | None:
        """A number for each answer in place of its reward; None: rewards are read.

        check   refuse data that cannot be trained on, such as labels that are all the same
        """
        return None

    def losses(self, answers: LossInputs) -> ExampleLosses:
        """The loss of each pair, or of each answer, in float64."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class OwnPreferenceLoss:
    """A loss of your own: a subclass of `PreferenceLoss` in your file.

    reference   "mine.py:MyLoss" (docs/extending/preference_loss.md)
    options     values of its fields, each "name=value" with a Python literal or a string
    """

    REFERENCE_KEY: ClassVar = "reference"

    reference: str = field(metadata=NAMES_CODE)
    options: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        validate(
            self,
            (
                "reference",
                ":" in self.reference and is_reference(self.reference),
                "is not of the form mine.py:MyLoss",
            ),
            *options_checks(self.options),
        )

    @property
    def name(self) -> str:
        """Name of the class; nothing is loaded."""
        return self.reference.rpartition(":")[2]

    def loaded(self) -> UserLoss:
        """The user's loss with these options.

        Raises   ConfigError when it cannot be loaded, is not a preference loss, or refuses an option
        """
        kind: Any = load_reference(self.reference, None, "a preference loss")
        if not (isinstance(kind, type) and issubclass(kind, PreferenceLoss)):
            raise ConfigError(
                f"train.loss.reference = {self.reference!r} is not a subclass of PreferenceLoss",
                fix="Derive it from stamm.align.losses.preference_loss.PreferenceLoss",
            )
        known = sorted(f.name for f in fields(kind))
        options = keyword_options(self.options)
        for name in options:
            if name not in known:
                raise ConfigError(
                    f"train.loss.options: {self.reference} has no field {name!r}",
                    fix=nearest(name, known),
                )
        file = next(iter(code_files([self.reference]).values()), Path(self.reference))
        return UserLoss(inner=guarded(file, lambda: kind(**options)), file=file)

    def with_values(self, loss: PreferenceLoss) -> OwnPreferenceLoss:
        """A copy with the field values of `loss` that differ, as Python literals.

        Raises   ConfigError for a value that is not a Python literal, which no record can hold
        """
        before = self.loaded().inner
        values = {f.name: getattr(loss, f.name) for f in fields(loss)}
        changed = {k: v for k, v in values.items() if v != getattr(before, k)}
        for name, value in changed.items():
            if keyword_options([f"{name}={value!r}"])[name] != value:
                raise ConfigError(
                    f"{self.reference} chose {name} = {value!r}, which is not a Python literal",
                    fix="Choose numbers, texts, booleans, None, or tuples of them",
                )
        kept = [option for option in self.options if option.partition("=")[0] not in changed]
        return replace(self, options=(*kept, *(f"{k}={v!r}" for k, v in changed.items())))


def _of_inner(name: str) -> Any:
    """A property that is read of the inner loss of a `UserLoss`."""
    return property(lambda loss: loss._guarded(lambda: getattr(loss.inner, name)))


@dataclass(frozen=True, kw_only=True)
class UserLoss(PreferenceLoss):
    """A user's loss: an exception in it becomes a one-line error, and its results are checked."""

    inner: PreferenceLoss
    file: Path

    def __post_init__(self) -> None:
        for name in ("ROWS", "SINGLE_ANSWERS", "NEEDS_REFERENCE", "NEEDS_MISMATCHED"):
            object.__setattr__(self, name, getattr(self.inner, name))

    needs = _of_inner("needs")
    min_references = _of_inner("min_references")
    closed_form_beta = _of_inner("closed_form_beta")

    def check(self, data: EncodedExamples) -> None:
        """As the inner loss."""
        self._guarded(lambda: self.inner.check(data))

    def fitted(self, data: EncodedExamples) -> tuple[Self, tuple[str, ...]]:
        """As the inner loss."""
        inner, remarks = self._guarded(lambda: self.inner.fitted(data))
        return replace(self, inner=inner), remarks

    def labels(self, data: EncodedExamples, *, check: bool = True) -> list[float] | None:
        """As the inner loss."""
        return self._guarded(lambda: self.inner.labels(data, check=check))

    def losses(self, answers: LossInputs) -> ExampleLosses:
        """As the inner loss; shapes and names are checked."""

        def work() -> ExampleLosses:
            computed = self.inner.losses(answers)
            computed.check(answers.num_examples)
            return computed

        return self._guarded(work)

    def _guarded(self, work: Callable[[], T]) -> T:
        result: T = guarded(self.file, work, (DataError,))
        return result


def pair_metrics(score_B: Tensor) -> dict[str, Tensor]:
    """Scores of the chosen and rejected answers of pairs, and whether they are in order.

    A difference of rounding errors is a tie, as all are before the first update: 1/2.
    """
    score_B = score_B.detach()
    chosen, rejected = score_B[0::2], score_B[1::2]
    accuracy = losses.bradley_terry_accuracy(chosen, rejected)
    return {
        "reward/chosen_log_ratio": chosen,
        "reward/rejected_log_ratio": rejected,
        "reward/accuracy": accuracy.masked_fill((chosen - rejected).abs() <= ROUNDING, 0.5),
    }


def lacking(name: str, answer: EncodedAnswer, what: str) -> DataError:
    """The error about an answer that lacks a reward."""
    identifier = f" (id {answer.id[:80]!r})" if answer.id else ""
    return DataError(
        f"{name} needs rewards, and example {answer.example}{identifier} has {what}",
        fix="`stamm score` adds rewards; the columns are in docs/alignment/data.md",
    )
