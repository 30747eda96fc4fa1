"""Whether a derived activation may be written: within its budgets, against the integral."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from stamm.activations.cache import record_judged
from stamm.activations.conformance.budgets import budget
from stamm.activations.conformance.golden import value_sets
from stamm.activations.conformance.implementations import StammImplementation
from stamm.activations.conformance.inputs import SAMPLED
from stamm.activations.conformance.judge import judge
from stamm.activations.conformance.reachable import quadrature_problem, reachable_values
from stamm.activations.conformance.reference import truth_errors
from stamm.activations.conformance.verdict import ConformanceVerdict
from stamm.activations.derivation.formulas import refused_in_one_line
from stamm.activations.spec import Spec
from stamm.activations.spec.parameters import Identity
from stamm.base.errors import DataError

_POINTS = 200
_FEW_POINTS, _FEW_EXPONENTS, _FEW_INPUTS = 48, 12, 2000  # at the other settings of the parameters
_SHOWN = 240  # characters of a problem


def check_formulas(spec: Spec) -> None:
    """Hold the float64 kernel against the integral at many digits, at every exponent of float32.

    f, f' and every slope in a parameter are compared, at the initial values of the parameters and
    at moved ones; at fewer inputs at the ends of every parameter's range, where it moves a kink, and at
    random. The integral itself is compared with quadrature of the stated pieces.

    Raises   DataError that names the quantity, its error and the input.
    Checked  tests/unit/activations/test_acceptance.py
    """
    sets = [{**spec.initial_values(), **of} for of in value_sets(spec).values()]
    settings = [(of, _POINTS, 1, False) for of in sets]
    settings += [(of, _FEW_POINTS, _FEW_EXPONENTS, True) for of in reachable_values(spec)]
    for values, points, every, ends in settings:
        try:
            with refused_in_one_line(spec, _text(values)):
                wrong = quadrature_problem(spec, values)
                errors = truth_errors(spec, values, points=points, every=every, ends=ends)
        except DataError as error:
            raise _refusal(spec, [error.what], values) from None
        problems = [wrong] if wrong else []
        problems += [e.line() for e in errors if not e.good]
        if problems:
            raise _refusal(spec, problems, values)


def accepted(spec: Spec, *, count: int = SAMPLED) -> ConformanceVerdict:
    """The verdict over stamm's own module at the initial values.

    Where squares overflow the float32 in which bfloat16 is computed, and nothing else is wrong,
    inputs beyond 2**62 are left out of that dtype, and the verdict's budget reports it.

    count    inputs of float32
    Raises   DataError when a budget does not hold, at the initial values or at moved ones.
    Checked  tests/unit/activations/test_acceptance.py
    """
    sets = [({**spec.initial_values(), **of}, count, False) for of in value_sets(spec).values()]
    sets += [(of, min(count, _FEW_INPUTS), True) for of in reachable_values(spec)]
    made = StammImplementation()

    def verdicts(*, squares: bool = False) -> Iterator[ConformanceVerdict]:
        for full, inputs, ends in sets:
            with refused_in_one_line(spec, _text(full)):
                verdict = judge(spec, made, full, count=inputs, squares=squares, ends=ends)
            if not verdict.passed:
                raise _refusal(spec, verdict.problems, full)
            yield verdict

    try:
        verdict, *_ = verdicts()
    except DataError:
        verdict, *_ = verdicts(squares=True)
    record_judged(spec.content_hash)
    return verdict


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


def _text(values: Mapping[str, float]) -> str:
    at = ", ".join(f"{name} = {value:.6g}" for name, value in values.items())
    return "compared with the integral" + (f" at {at}" if at else "")


def _refusal(spec: Spec, problems: Sequence[str], values: Mapping[str, float]) -> DataError:
    more = f" ({len(problems) - 1} more such problems)" if len(problems) > 1 else ""
    free = [p.name for p in spec.trainable if isinstance(p.bijection, Identity)]
    held = f"; or hold {free[0]} positive, as in {free[0]}=1:softplus" if free else ""
    return DataError(
        f"{spec.name} does not hold its accuracy budget, and nothing is written:"
        f" {problems[0][:_SHOWN]}{more}",
        where=_text(values),
        fix="State the gradient in another form, on two pieces, or with its known integral" + held,
    )
