"""The judge: errors of an implementation against the exact values, in ulp, by input interval."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from stamm.activations.cache import known_kernel_source
from stamm.activations.conformance.exact import (
    CONDITION_TEXT,
    FULL,
    FUNCTION,
    SLOPE,
    UP_SLOPE,
    ExactValues,
    exact_quantities,
    exponents,
    inputs,
    knots,
    mixed_ups,
    parameter_slope,
    raw_slopes,
    without_vanishing_slopes,
)
from stamm.activations.conformance.implementations import Bound, Implementation, observe
from stamm.activations.conformance.ulp import (
    at_range_ends,
    budget,
    dtype_name,
    neighbours,
    parameter_budget,
    without_squares,
)
from stamm.activations.conformance.verdict import (
    MIXED,
    ConformanceVerdict,
    DtypeVerdict,
    Fact,
    QuantityErrors,
    Row,
    errors_of,
    gather,
    missing_slopes,
    problems_of,
)
from stamm.activations.derivation.derive import derive
from stamm.activations.derivation.formulas import Derived
from stamm.activations.derivation.parametric import POINTS
from stamm.activations.derivation.tables import TableUse, TabulatedIntegral, tables_of, tables_read
from stamm.activations.describe import shipped_source
from stamm.activations.spec import Gated, Spec
from stamm.activations.spec.gradient_checks import value_of

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_ROOM = 2.0**8
_BINADES = range(-8, 6)
_PER_BINADE, _PER_BINADE_SAMPLED = 2**14, 2**11
_CALLS = ("primitives.tabulated(", "primitives.integrated(")  # calls of a kernel with a table


def judge(
    spec: Spec,
    implementation: Implementation,
    values: Mapping[str, float] | None = None,
    *,
    dtypes: Sequence[torch.dtype] = DTYPES,
    quantities: Sequence[str] | None = None,
    count: int = FULL,
    squares: bool = False,
    ends: bool = False,
) -> ConformanceVerdict:
    """Compare an implementation with the exact values, at every 16-bit input and `count` float32.

    Besides those `count`, float32 is judged at two inputs of every exponent, of both signs, from the
    smallest subnormal number to the largest finite one, at multiples of 1/8 up to 64, and at an even
    grid of numbers between 2^-8 and 2^6 in magnitude.

    values       effective values of the trainable parameters; the initial ones by default
    quantities   "function", "slope", "up_slope" (gated), "slope_in_NAME"; all by default
    squares      leave out of bfloat16 the inputs whose squares overflow float32
    ends         the values are ends of ranges: bfloat16 may overflow earlier, by their powers, and
                 slopes in parameters that nearly vanish are not judged
    Edge         an output without a gradient in its inputs is a problem; slopes in parameters that the
                 implementation does not give are listed as not judged.
                 The exact values belong to the parameters as the implementation stores them, so a
                 stored number that was rounded is not an error of the function. Slopes in parameters
                 that are stored raw are slopes in the stored numbers. The exact values are those
                 of the float64 kernel, which `truth_check` compares with the integral.
    Raises       DataError when the implementation raises, or returns another shape or dtype;
                 ConfigError for values that the spec refuses.
    Checked      tests/unit/activations/test_conformance_judge.py
    """
    full = {**spec.initial_values(), **(values or {})}
    verdicts = [
        _of_dtype(spec, implementation, full, dtype, quantities, count, squares, ends)
        for dtype in dtypes
    ]
    return ConformanceVerdict(
        spec=spec.name,
        content_hash=spec.content_hash,
        implementation=implementation.name,
        judged_where=CONDITION_TEXT,
        dtypes=tuple(verdicts),
        tables=tabulated(spec),
    )


def exact_stored(spec: Spec, bound: Bound, x: Tensor, up: Tensor | None) -> dict[str, ExactValues]:
    """The exact quantities at the bound's values; slopes in its stored numbers where it has these."""
    exact = exact_quantities(spec, bound.values, x, up)
    if bound.holds == "raw" and bound.leaves:
        raw = {name: leaf.reshape(-1)[0].item() for name, leaf in bound.leaves.items()}
        mixed = {
            parameter_slope(name): _mixture(exact, weights)
            for name, weights in raw_slopes(spec, raw).items()
        }
        exact.update(mixed)
    return exact


def _mixture(exact: Mapping[str, ExactValues], weights: Mapping[str, float]) -> ExactValues:
    parts = [(exact[parameter_slope(name)], weight) for name, weight in weights.items()]
    values = torch.stack([part.values * weight for part, weight in parts]).sum(0)
    size = torch.stack([part.values.abs() * max(1.0, abs(w)) for part, w in parts]).amax(0)
    if len(parts) == 1:
        return ExactValues(values, parts[0][0].condition, size)
    # The condition number of terms that cancel: their magnitudes over that of their sum.
    sensitive = torch.stack([(p.values * w).abs() * (p.condition + 1) for p, w in parts]).sum(0)
    ratio = sensitive / values.abs()
    return ExactValues(values, torch.where(torch.isnan(ratio), 0.0, ratio).to(values.dtype), size)


def _of_dtype(
    spec: Spec,
    implementation: Implementation,
    values: Mapping[str, float],
    dtype: torch.dtype,
    quantities: Sequence[str] | None,
    count: int,
    squares: bool,
    ends: bool,
) -> DtypeVerdict:
    bound = implementation.bind(spec, values, dtype)
    limit, wider = (rule(spec.name, dtype_name(dtype)) for rule in (budget, parameter_budget))
    if squares and dtype == torch.bfloat16:
        limit = without_squares(limit)
    limit = at_range_ends(limit) if ends else limit
    x = judged_inputs(spec, bound.values, dtype, count)
    x = x[~(x.abs() > limit.reach)]
    settings: list[tuple[str, Tensor | None]] = [("", None)]
    if isinstance(spec.arity, Gated):
        settings = [("", torch.ones_like(x)), (MIXED, mixed_ups(len(x), dtype))]
    at_knots, ambiguous = near_knots(spec, bound.values, x)
    measured = []
    absent: dict[str, None] = {}
    for suffix, up in settings:
        exact = exact_stored(spec, bound, x.double(), None if up is None else up.double())
        exact = without_vanishing_slopes(exact, x.double()) if ends else exact
        names = [n for n in exact if quantities is None or n in quantities]
        seen = observe(implementation.name, bound, x, up, names)
        for name in names:
            if name not in seen:
                absent[name] = None
                continue
            rows = _rows(name, x, seen, exact[name], at_knots, ambiguous, limit.room)
            measured.append(QuantityErrors(quantity=name + suffix, rows=rows))
    facts = _facts(spec, implementation.name, bound, dtype, limit.ulp)
    missing, not_judged = missing_slopes(list(absent))
    return DtypeVerdict(
        dtype=dtype_name(dtype),
        budget_ulp=limit.ulp,
        budget_reason=limit.reason,
        parameter_budget_ulp=wider.ulp,
        inputs=len(x),
        values=tuple(bound.values.items()),
        quantities=tuple(measured),
        facts=facts,
        problems=(*missing, *problems_of(measured, facts, limit.ulp, wider.ulp)),
        not_judged=tuple(not_judged),
    )


def judged_inputs(
    spec: Spec, values: Mapping[str, float], dtype: torch.dtype, count: int
) -> Tensor:
    """`inputs` with a number of every exponent, and, of float32, an even grid in the binades in use."""
    x = inputs(spec, values, dtype, count=count)
    more = exponents(dtype)
    if dtype == torch.float32:
        # Powers of two and multiples of 1/8, which programs compare with; none is in the grid.
        powers = 2.0 ** torch.arange(-149.0, 128.0, dtype=torch.float64)
        eighths = torch.arange(1, 513) / 8
        round_numbers = torch.unique(torch.cat([powers.float(), eighths]))
        more = torch.unique(torch.cat([more, round_numbers, -round_numbers]))
        more = torch.cat([more, _grid(_PER_BINADE if count >= FULL else _PER_BINADE_SAMPLED)])
    return torch.sort(torch.cat([x, more[~torch.isin(more, x)]]), stable=True)[0]


def _grid(per_binade: int) -> Tensor:
    """`per_binade` evenly spaced float32 numbers of each binade from 2^-8 to 2^6, of both signs.

    An error in a short interval is then seen wherever trained networks have inputs: log-uniform
    inputs leave gaps of a thousandth.
    """
    steps = torch.arange(per_binade, dtype=torch.float64) / per_binade
    # The last bit is set: no point is one of those that a multiple of a power of two always hits.
    sizes = torch.cat([2.0**power * (1.0 + steps + 2.0**-23) for power in _BINADES]).float()
    return torch.cat([-sizes, sizes])


def _rows(
    name: str,
    x: Tensor,
    seen: Mapping[str, Tensor],
    exact: ExactValues,
    at_knots: Tensor,
    ambiguous: Tensor,
    room: float,
) -> tuple[Row, ...]:
    kept = ~ambiguous
    if name not in (FUNCTION, SLOPE, UP_SLOPE):
        # A parameter's gradient is a sum: a single term that overflows does not count.
        # Its slope in the stored number may overflow on the way, by the factor of the constraint.
        kept = kept & (exact.size * _ROOM < torch.finfo(seen[name].dtype).max)
    chosen = ExactValues(exact.values[kept], exact.condition[kept])
    result = seen[name][kept]
    return gather(x[kept], result, chosen, at_knots=at_knots[kept], room=room)


def near_knots(spec: Spec, values: Mapping[str, float], x: Tensor) -> tuple[Tensor, Tensor]:
    """Which inputs lie on or beside a knot, and for which of them the piece is a matter of rounding.

    A knot that float32 cannot hold is rounded when computing in float32: within that
    rounding either piece may be taken, which shows where f or its gradient jumps.
    """
    points = torch.tensor(knots(spec, values), dtype=torch.float64)
    beside = torch.isin(x, neighbours(points.to(x.dtype)))
    doubtful = points[points != points.float().double()]
    if spec.continuity == "continuous" and not spec.jumps:
        doubtful = doubtful[:0]
    distance = (x.double()[:, None] - doubtful).abs()
    ambiguous = (distance <= 4 * torch.finfo(torch.float32).eps * doubtful.abs()).any(-1)
    return beside, ambiguous


def _facts(
    spec: Spec, name: str, bound: Bound, dtype: torch.dtype, allowed: float
) -> tuple[Fact, ...]:
    """f at the anchor and f' at plus and minus 0 and at the knots that the dtype can hold."""
    at, height = (value_of(text, bound.values) for text in spec.anchor)
    points = [0.0, -0.0, *(k for k in knots(spec, bound.values) if k != 0)]
    x = torch.tensor([at, *points], dtype=torch.float64)
    held = x.to(dtype).double() == x
    up = torch.ones_like(x) if isinstance(spec.arity, Gated) else None
    exact = exact_quantities(spec, bound.values, x, up)
    short = x.to(dtype)
    seen = observe(name, bound, short, None if up is None else up.to(dtype), [FUNCTION, SLOPE])
    facts = []
    ending = " (up = 1)" if up is not None else ""
    plain = not isinstance(spec.arity, Gated) or spec.arity.up is None  # else h(1) is a factor
    if plain and at == 0 and torch.tensor(height, dtype=torch.float64).to(dtype).item() == height:
        start = seen[FUNCTION][0].item()
        claim = f"f(0) = {height:g}{ending}"
        facts.append(Fact(claim=claim, expected=height, found=start, holds=start == height))
    if SLOPE in seen:
        slope = seen[SLOPE]
        errors, finite = errors_of(slope, exact[SLOPE].values)
        for i in range(1, len(x)):
            expected = exact[SLOPE].values[i].item()
            if not held[i] or expected != expected or abs(expected) == torch.inf:
                continue
            claim = f"f'({x[i].item():g}) = {expected:.6g}, by the piece that owns it{ending}"
            good = bool(finite[i]) and errors[i].item() <= allowed
            facts.append(Fact(claim=claim, expected=expected, found=slope[i].item(), holds=good))
    return tuple(facts)


def table_sentences(derived: Derived) -> tuple[str, ...]:
    """One sentence for every table that the function is read from; nothing where there is none.

    Checked  tests/unit/activations/test_tabulated.py
    """
    outer = derived.stable.function
    inner = () if derived.up is None else derived.up.function
    read = any(
        b.formula.has(TabulatedIntegral)
        for branches in derived.stable.parameter_slopes
        for b in branches
    )
    slopes = "its slope in x is exact" if read else "its slopes are exact"
    # `tables_of` goes through the same branches in the same order.
    places = ["f" for b in outer for _ in tables_read(b.formula)]
    places += ["h(up)" for b in inner for _ in tables_read(b.formula)]
    made_once = tuple(
        f"{name} rests on {_table_text(use)}; {slopes}"
        for name, use in zip(places, tables_of(derived), strict=True)
    )
    return made_once + tuple(
        f"the integral of {i.kind.gradient} is a table that each call makes for its parameters:"
        f" {cells} cells, {POINTS * (cells + 2 * POINTS)} values of it for each set of parameters, then"
        f" {POINTS + 1} numbers read for each element; there is no fused kernel"
        for i in derived.integrands
        if (cells := len(i.left["edges"]) + len(i.right["edges"]) - 2)
    )


def tabulated(spec: Spec) -> tuple[str, ...]:
    """`table_sentences` of a spec; one whose kernel is at hand and reads no table is not derived."""
    source = shipped_source(spec) or known_kernel_source(spec.content_hash)
    if source is not None and not any(call in source for call in _CALLS):
        return ()
    return table_sentences(derive(spec))


def _table_text(use: TableUse) -> str:
    where = "" if use.where == "all x" else f" for {use.where}"
    nodes = f"a table of {use.cells} cells on [{use.low:g}, {use.high:g}]"
    return f"{nodes}{where}, within {_rounded_up(use.bound)} of |f| + |x f'|, or 1e-18, before rounding"


def _rounded_up(bound: float) -> str:
    """One digit, never less than the bound: 7e-7."""
    exponent = math.floor(math.log10(bound))
    digit = math.ceil(bound / 10.0**exponent)
    return f"{digit}e{exponent}" if digit < 10 else f"1e{exponent + 1}"
