"""What the judge says: facts, rows and problems, as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stamm.activations.conformance.exact import FUNCTION, SLOPE, UP_SLOPE
from stamm.activations.conformance.intervals import Row

MIXED = " (mixed up)"  # ends the names of quantities that are taken at up inputs of both signs


@dataclass(frozen=True, kw_only=True)
class Fact:
    """One exact value that must come out: f at the anchor, the slope at a knot or at 0."""

    claim: str
    expected: float
    found: float
    holds: bool


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The rows of one quantity."""

    quantity: str
    rows: tuple[Row, ...]

    @property
    def judged(self) -> tuple[Row, ...]:
        """The rows in which the budget holds."""
        return tuple(row for row in self.rows if row.judged)

    @property
    def worst(self) -> Row | None:
        """The judged row with the largest error, or None where nothing is judged."""
        return max(self.judged, key=lambda row: row.largest, default=None)


@dataclass(frozen=True, kw_only=True)
class OfDtype:
    """What was found in one dtype: `problems` says, in words, what broke the budget."""

    dtype: str
    budget_ulp: float
    budget_reason: str
    parameter_budget_ulp: float
    inputs: int
    values: tuple[tuple[str, float], ...]
    quantities: tuple[Measured, ...]
    facts: tuple[Fact, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What the judge found; plain data, for `base.config.to_plain`.

    implementation   as it was named
    judged_where     which inputs are held to the budget, in words
    tables           what f is read from, a sentence for each table
    dtypes           one entry a dtype
    """

    spec: str
    content_hash: str
    implementation: str
    judged_where: str
    dtypes: tuple[OfDtype, ...]
    tables: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether every budget and every fact held."""
        return not self.problems

    @property
    def problems(self) -> tuple[str, ...]:
        """What did not hold, with the dtype in front."""
        return tuple(f"{of.dtype}: {text}" for of in self.dtypes for text in of.problems)


def problems_of(
    measured: Sequence[Measured], facts: Sequence[Fact], budget_ulp: float, wider_ulp: float
) -> list[str]:
    """What broke a budget or a fact, in words.

    wider_ulp   the budget of slopes in parameters
    """
    found = []
    for of in measured:
        worst = of.worst
        own = of.quantity.removesuffix(MIXED) in (FUNCTION, SLOPE, UP_SLOPE)
        allowed = budget_ulp if own else wider_ulp
        if worst is not None and worst.largest > allowed:
            found.append(
                f"{of.quantity} is {worst.largest:.3g} ulp off at x = {worst.worst_at:.9g}"
                f" ({worst.place}), budget {allowed:g}"
            )
        broken = sum(row.not_finite for row in of.rows)
        if broken:
            place = next(row.place for row in of.rows if row.not_finite)
            found.append(f"{of.quantity} is NaN or infinite at {broken} inputs ({place})")
        reversed_rows = [row for row in of.judged if row.wrong_sign]
        if reversed_rows:
            worst = max(reversed_rows, key=lambda row: row.wrong_sign)
            found.append(
                f"{of.quantity} has the wrong sign at {worst.wrong_sign:.1%} of the inputs in"
                f" {worst.place}"
            )
    found += [f"{f.claim}, but {f.found:.6g} came back" for f in facts if not f.holds]
    return found
