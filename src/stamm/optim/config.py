"""Configuration of optimizers: AdamW, AdEMAMix, Muon, and a user's own. No torch here."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from stamm.base.bounds import Natural, NotNegative, within
from stamm.base.config import Bounded, validate
from stamm.base.user_code import NAMES_CODE, is_reference, keyword_options, options_checks

Beta = Annotated[float, within("[0, 1)")]
# From the smallest of float32's normal numbers: below them eps may be 0, and 0 / 0 is NaN.
Eps = Annotated[float, within("[1e-37, inf)")]


@dataclass(frozen=True, kw_only=True)
class GroupRule:
    """Learning rate and weight decay of the parameters that a pattern matches.

    pattern        regular expression, searched in the parameter's name; the first matching rule
                   applies, and a rule that applies to no parameter is an error
    lr_factor      learning rate as a multiple of the schedule's; 0 freezes the parameters
    weight_decay   None: the value without the rule
    """

    pattern: str
    lr_factor: NotNegative = 1.0
    weight_decay: NotNegative | None = None

    def __post_init__(self) -> None:
        validate(
            self,
            ("pattern", _compiles(self.pattern), "must be a regular expression, and not empty"),
        )


@dataclass(frozen=True, kw_only=True)
class AdamW(Bounded):
    """Decoupled weight decay (Loshchilov and Hutter 2019, arXiv 1711.05101).

    shape_lr_factor   learning rate of trainable activation shapes, as a multiple of the schedule's
    groups            rules by parameter name
    """

    beta1: Beta = 0.9
    beta2: Beta = 0.95
    eps: Eps = 1e-8
    weight_decay: NotNegative = 0.1
    shape_lr_factor: NotNegative = 1.0
    groups: tuple[GroupRule, ...] = ()

    @property
    def moments(self) -> int:
        """Moment tensors kept per parameter."""
        return 2


@dataclass(frozen=True, kw_only=True)
class AdEMAMix:
    """Adam with a second, slow average of the gradient (arXiv 2409.03137), as in Apertus.

    alpha                 weight of the slow average after its warm-up
    alpha_warmup_steps    steps over which alpha rises from 0, linearly; None: all steps; 0: alpha is
                          constant
    beta3_warmup_steps    steps over which beta3 rises from beta1, linearly in half-life; likewise
    shape_lr_factor       as in `AdamW`
    groups                as in `AdamW`
    implementation        "fused": one pass over memory, or an error with the reason. "foreach":
                          torch's foreach functions, about twenty passes. "auto": fused where it can
                          be built. All give the same bits, on every machine
    """

    beta1: Annotated[float, within("(0, 1)")] = 0.9
    beta2: Beta = 0.999
    beta3: Beta = 0.9999
    alpha: NotNegative = 8.0
    alpha_warmup_steps: Natural | None = None
    beta3_warmup_steps: Natural | None = None
    eps: Eps = 1e-8
    weight_decay: NotNegative = 0.1
    shape_lr_factor: NotNegative = 1.0
    groups: tuple[GroupRule, ...] = ()
    implementation: Literal["auto", "foreach", "fused"] = "auto"

    def __post_init__(self) -> None:
        validate(
            self,
            ("beta3", self.beta1 <= self.beta3 <= _LARGEST_BETA3, "must lie in [beta1, 1 - 1e-7]"),
            ("implementation", self.implementation in _FORMS, f"must be one of {_FORMS}"),
        )

    @property
    def moments(self) -> int:
        """Moment tensors kept per parameter."""
        return 3

    def steps_to_full_update(self) -> int | None:
        """Steps without a gradient after which the slow average alone moves a weight by the learning rate.

        k steps after a single gradient its update is alpha (1 - beta3) / sqrt(1 - beta2) (beta3 / sqrt(beta2))^k
        learning rates. With beta3 above sqrt(beta2) that grows, until eps stops it: rows of rare tokens in
        the embedding and output matrices then run away. None: it falls.

        Source   docs/log/2026-11-24-ademamix-rare-tokens.md (measured)
        Checked  tests/unit/optim/test_ademamix.py
        """
        ratio = self.beta3 / math.sqrt(self.beta2) if self.beta2 else math.inf
        if ratio <= 1 or not self.alpha:
            return None
        first = self.alpha * (1 - self.beta3) / math.sqrt(1 - self.beta2)
        return max(math.ceil(-math.log(first) / math.log(ratio)), 1)

    def alpha_at(self, step: int, total_steps: int) -> float:
        """alpha * min(step / warm-up, 1) for the step numbered from 1; alpha without a warm-up."""
        warmup = total_steps if self.alpha_warmup_steps is None else self.alpha_warmup_steps
        return self.alpha if step >= warmup else self.alpha * (step / warmup)

    def beta3_at(self, step: int, total_steps: int) -> float:
        """beta3 of the step numbered from 1: its half-life grows linearly from beta1's to beta3's.

        half_life(b) = ln(1/2) / ln(b) - 1, and back b = (1/2)^(1 / (half_life + 1))
        """
        warmup = total_steps if self.beta3_warmup_steps is None else self.beta3_warmup_steps
        if step >= warmup:
            return self.beta3
        share = step / warmup
        start, end = _half_life(self.beta1), _half_life(self.beta3)
        beta = math.pow(0.5, 1.0 / ((1.0 - share) * start + share * end + 1.0))
        return min(beta, self.beta3)


@dataclass(frozen=True, kw_only=True)
class Muon:
    """Orthogonalised momentum for the matrices of the layers, AdamW for everything else.

    momentum          of the average of gradients that is orthogonalised
    nesterov          whether the newest gradient counts once more in what is orthogonalised
    iterations        Newton-Schulz steps, in bfloat16
    rate              a matrix of A x B learns at the schedule's rate times
                      "match_rms_adamw"   0.2 sqrt(max(A, B)): its updates have the size of AdamW's,
                                          so one peak and one decay, AdamW's, serve both
                      "original"          sqrt(max(1, A / B)): needs its own peak, around 0.02; a
                                          rule in `groups` can slow the rest
    beta1, beta2, eps of AdamW
    shape_lr_factor   as in `AdamW`
    groups            as in `AdamW`; a rule does not move a parameter from one method to the other
    Edge              the blocks of a structured matrix are stored below each other and
                      orthogonalised as the one matrix that they are stored as
    Source            Jordan et al. 2024 (kellerjordan.github.io/posts/muon); the default of `rate`
                      Liu et al. 2025 (arXiv 2502.16982, section 2.2)
    """

    momentum: Beta = 0.95
    nesterov: bool = True
    iterations: Annotated[int, within("[1, 100)")] = 5
    rate: Literal["match_rms_adamw", "original"] = "match_rms_adamw"
    weight_decay: NotNegative = 0.1
    beta1: Beta = 0.9
    beta2: Beta = 0.95
    eps: Eps = 1e-8
    shape_lr_factor: NotNegative = 1.0
    groups: tuple[GroupRule, ...] = ()

    def __post_init__(self) -> None:
        validate(self, ("rate", self.rate in _RATES, f"must be one of {_RATES}"))

    @property
    def moments(self) -> int:
        """Moment tensors kept per parameter, at most: matrices of layers keep 1 (`Group.moments`)."""
        return 2


@dataclass(frozen=True, kw_only=True)
class CustomOptimizer:
    """A user's optimizer: a subclass of torch.optim.Optimizer, or a function that returns one.

    reference   "mine.py:MyOptimizer" or "package.module:Name" (docs/extending/optimizer.md)
    options     keyword arguments of the class, each "name=value" with a Python literal or a string
    weight_decay   of matrices; norms, biases and activation shapes have 0
    shape_lr_factor   as in `AdamW`
    groups      as in `AdamW`
    state_per_parameter   numbers of 32 bits that it keeps per parameter, for `stamm plan`; None:
                measured on a small matrix
    """

    REFERENCE_KEY: ClassVar = "reference"

    reference: str = field(metadata=NAMES_CODE)
    options: tuple[str, ...] = ()
    weight_decay: NotNegative = 0.1
    shape_lr_factor: NotNegative = 1.0
    groups: tuple[GroupRule, ...] = ()
    state_per_parameter: NotNegative | None = None

    def __post_init__(self) -> None:
        validate(
            self,
            ("reference", is_reference(self.reference), "is not of the form mine.py:MyOptimizer"),
            *options_checks(self.options),
        )

    def keywords(self) -> dict[str, Any]:
        """The options as keyword arguments."""
        return keyword_options(self.options)


OptimizerConfig = AdamW | AdEMAMix | Muon | CustomOptimizer

_LARGEST_BETA3 = 1 - 1e-7  # beyond it the guard in _half_life makes half-lives infinite
_FORMS = ("auto", "foreach", "fused")
_RATES = ("match_rms_adamw", "original")


def _compiles(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError):
        return False
    return bool(pattern)


def _half_life(beta: float) -> float:
    # 1e-8 keeps the logarithm away from 0; the reference (apple/ml-ademamix) has the same guard.
    return math.log(0.5) / math.log(beta + 1e-8) - 1.0
