"""Whether a derived activation may be written: within its budgets, against the integral."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stamm.activations.conformance.budgets import budget
from stamm.activations.conformance.golden import value_sets
from stamm.activations.conformance.implementations import StammImplementation
from stamm.activations.conformance.inputs import SAMPLED
from stamm.activations.conformance.judge import judge
from stamm.activations.conformance.reference import truth_errors
from stamm.activations.conformance.verdict import ConformanceVerdict
from stamm.activations.spec import Spec
from stamm.activations.spec.parameters import Identity
from stamm.base.errors import DataError

_POINTS = 200
_SHOWN = 240  # characters of a problem


def check_formulas(spec: Spec) -> None:
    """Hold the float64 kernel against the integral at many digits, at every exponent of float32.

    f, f' and every slope in a parameter are compared, at the initial values of the parameters and
    at moved ones.

    Raises   DataError that names the quantity, its error and the input.
    Checked  tests/unit/activations/test_acceptance.py
    """
    for values in value_sets(spec).values():
        full = {**spec.initial_values(), **values}
        problems = [e.line() for e in truth_errors(spec, full, points=_POINTS) if not e.good]
        if problems:
            raise _refusal(spec, problems, full)


def accepted(spec: Spec, *, count: int = SAMPLED) -> ConformanceVerdict:
    """The verdict over stamm's own module at the initial values.

    Where squares overflow the float32 in which bfloat16 is computed, and nothing else is wrong,
    inputs beyond 2**62 are left out of that dtype, and the verdict's budget reports it.

    count    inputs of float32
    Raises   DataError when a budget does not hold, at the initial values or at moved ones.
    Checked  tests/unit/activations/test_acceptance.py
    """
    sets = [{**spec.initial_values(), **values} for values in value_sets(spec).values()]
    verdicts = [judge(spec, StammImplementation(), full, count=count) for full in sets]
    if not all(verdict.passed for verdict in verdicts):
        verdicts = [
            judge(spec, StammImplementation(), full, count=count, squares=True) for full in sets
        ]
    for verdict, full in zip(verdicts, sets, strict=True):
        if not verdict.passed:
            raise _refusal(spec, verdict.problems, full)
    return verdicts[0]


def accuracy_texts(verdict: ConformanceVerdict) -> dict[str, str]:
    """The largest error of each dtype, and which inputs are excluded."""
    texts = {}
    for of in verdict.dtypes:
        worst = [(m.quantity, m.worst.largest) for m in of.quantities if m.worst is not None]
        errors = ", ".join(
            f"{quantity.replace('slope_in_', 'slope in ')} {error:.3g} ulp"
            for quantity, error in worst
        )
        reason = [of.budget_reason] if of.budget_reason != budget("", of.dtype).reason else []
        texts[of.dtype] = "; ".join([f"at most {errors}", *reason])
    return texts


def _refusal(spec: Spec, problems: Sequence[str], values: Mapping[str, float]) -> DataError:
    more = f" ({len(problems) - 1} more such problems)" if len(problems) > 1 else ""
    at = ", ".join(f"{name} = {value:.6g}" for name, value in values.items())
    free = [p.name for p in spec.trainable if isinstance(p.bijection, Identity)]
    held = f"; or hold {free[0]} positive, as in {free[0]}=1:softplus" if free else ""
    return DataError(
        f"{spec.name} does not hold its accuracy budget, and nothing is written:"
        f" {problems[0][:_SHOWN]}{more}",
        where="compared with the integral" + (f" at {at}" if at else ""),
        fix="State the gradient in another form, on two pieces, or with its known integral" + held,
    )
