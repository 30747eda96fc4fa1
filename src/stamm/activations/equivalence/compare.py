"""Rediscovery of known activations: a spec is fitted to each in double precision, then proved equal."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Literal

import numpy as np

from stamm.activations import catalog
from stamm.activations.equivalence.curves import (
    LINE,
    POINTS,
    ROOT_WEIGHTS,
    Array,
    Target,
    knots_of,
    line_of,
    project,
    search,
    values_of,
    weighted_line,
    without_line,
)
from stamm.activations.equivalence.proof import AffineClaim, exactly, prove
from stamm.activations.spec import Gated, Spec
from stamm.base.errors import ConfigError

MOST_PARAMETERS = 4  # with more, almost any curve can be approximated, which proves nothing
SMALLEST, LARGEST = 0.1, 10.0  # of input scales: beyond, every bend looks like a square or a step
_SCALES = (0.2, 0.4, 0.7, 1.0, 1.5, 2.3, 4.0, -0.3, -0.7, -1.5, -4.0)
_SHIFTS = (0.0, -1.5, 1.5)
_STARTS = np.array(list(itertools.product(_SCALES, _SHIFTS)))
_COARSE = 2  # every second point is enough to choose starts
_COARSE_LINE = weighted_line(_COARSE)
_HOPELESS = 0.9  # a start this far is not searched,
_FIRST_LEG = 5  # steps after which a search is continued only
_NEARING = 0.1  # where the distance is below this
_PROMISING = 0.25  # parameters are fitted with the map only below this distance
_STEPS = 30
_EXACT = 1e-6  # a fit this near is given to the proof
_VANISHING = 1e-4
_BIGGEST_PARAMETER = 1e3

Numbers = Sequence[float] | Array


@dataclass(frozen=True)
class Match:
    """A fit that was found.

    numbers    a, b and the known spec's parameters
    searched   which of the numbers were fitted
    mapped     whether c, d and e were fitted too; otherwise they are 1, 0 and 0
    distance   relative L2 norm of the residual
    """

    numbers: tuple[float, ...]
    searched: tuple[bool, ...]
    mapped: bool
    distance: float = math.inf


class SpecComparison:
    """One new spec at given parameter values against one known one."""

    def __init__(self, target: Target, known: Spec) -> None:
        """Nothing is computed yet."""
        self.target = target
        self.known = known
        self.names = [p.name for p in known.parameters]
        self.initial = tuple(known.initial_values().values())

    def finding(self, epsilon: float) -> Finding | None:
        """The strongest finding, or None."""
        best: Match | None = None
        for match in self._matches():
            if match.distance < _EXACT:
                proved = self._proved(match)
                if proved is not None:
                    return proved
            if best is None or match.distance < best.distance * 0.99:
                best = match
        if best is None or not best.distance <= epsilon:
            return None
        return self._near(best)

    def _matches(self) -> Iterator[Match]:
        """Fits from special to general: as it is, other parameters, an affine map, both."""
        shaped = 0 < len(self.names) <= MOST_PARAMETERS
        still = tuple(False for _ in self.names)
        moving = tuple(shaped for _ in self.names)
        starts = [tuple(values.values()) for values in self.known.sample_values()]
        yield self._searched(Match((1.0, 0.0, *self.initial), (False, False, *still), False))
        if shaped:
            for start in starts:
                yield self._searched(Match((1.0, 0.0, *start), (False, False, *moving), False))
        if self.target.straight:
            return
        mapped = self._mapped(self.initial)
        yield from mapped[:1]
        if shaped:
            for start in starts:
                near = mapped if start == self.initial else self._mapped(start)
                for match in near[:2]:
                    if match.distance < _PROMISING:
                        yield self._searched(replace(match, searched=(True, True, *moving)))

    def _mapped(self, parameters: tuple[float, ...]) -> list[Match]:
        """Affine maps of the known function at the given parameters, the nearest first."""
        free = (True, True, *(False for _ in parameters))
        done: list[Match] = []
        for start in self._starts(parameters):
            match = self._searched(Match((*start, *parameters), free, True), steps=_FIRST_LEG)
            if _EXACT < match.distance < _NEARING:
                match = self._searched(match)
            done.append(match)
            if match.distance < _EXACT:
                break
        # Many functions are their own mirror images up to a line: positive input scales are preferred.
        return sorted(done, key=lambda m: m.distance * (1.0 if m.numbers[0] > 0 else 1.01))

    def _starts(self, parameters: tuple[float, ...]) -> list[tuple[float, float]]:
        """The best input scales and shifts of a coarse grid, two positive and one negative."""
        values = dict(zip(self.names, parameters, strict=True))
        starts = np.array([*_STARTS.tolist(), *self._aligned(values)])
        points = starts[:, :1] * POINTS[::_COARSE] + starts[:, 1:]
        models = values_of(self.known, points.ravel(), values).reshape(points.shape)
        target = without_line(self.target.curve[::_COARSE], _COARSE_LINE)
        size = max(float(np.linalg.norm(target)), 1e-300)
        ranked = sorted(
            (float(np.linalg.norm(project(model, _COARSE_LINE, target)[1])) / size, scale, shift)
            for model, (scale, shift) in zip(
                models * ROOT_WEIGHTS[::_COARSE], starts.tolist(), strict=True
            )
        )
        upright = [(a, b) for distance, a, b in ranked if a > 0 and distance < _HOPELESS]
        mirrored = [(a, b) for distance, a, b in ranked if a < 0 and distance < _HOPELESS]
        return upright[:2] + mirrored[:1]

    def _aligned(self, values: dict[str, float]) -> Iterator[tuple[float, float]]:
        """Maps that bring two neighbouring knots of the known function onto two of the new one."""
        new = knots_of(self.target.spec, self.target.values)
        old = knots_of(self.known, values)
        for (m, n), (k, h) in itertools.product(itertools.pairwise(new), itertools.pairwise(old)):
            for first, last in ((k, h), (h, k)):
                scale = (last - first) / (n - m) if n > m else 0.0
                if SMALLEST <= abs(scale) <= LARGEST:
                    yield scale, first - scale * m

    def _searched(self, start: Match, *, steps: int = _STEPS) -> Match:
        """The nearest match from a start, moving only the numbers that are `searched`."""
        whole = np.array(start.numbers)
        places = [i for i, moving in enumerate(start.searched) if moving]
        rest = self._rest_of_map if start.mapped else self._difference

        def filled(part: Array) -> Array:
            full = whole.copy()
            full[places] = part
            return full

        def allowed(part: Array) -> bool:
            full = filled(part)
            upright = full[0] * whole[0] > 0 and SMALLEST <= abs(full[0]) <= LARGEST
            return bool(upright) and abs(full[1]) <= LARGEST and self._allowed(full[2:])

        if not places:
            return replace(start, distance=float(np.linalg.norm(rest(whole))))
        begin = whole[places].tolist()
        best, distance = search(lambda part: rest(filled(part)), begin, allowed, steps=steps)
        return replace(start, numbers=tuple(filled(best).tolist()), distance=distance)

    def _model(self, numbers: Numbers) -> Array:
        values = dict(zip(self.names, map(float, numbers[2:]), strict=True))
        curve = values_of(self.known, numbers[0] * POINTS + numbers[1], values)
        return curve * ROOT_WEIGHTS

    def _difference(self, numbers: Numbers) -> Array:
        """The residual with c, d and e at 1, 0 and 0."""
        rest = (self.target.curve - self._model(numbers)) / self.target.size
        finite = np.isfinite(rest).all() and np.abs(rest).max() < 1e6
        return rest if finite else np.full_like(rest, 1e3)

    def _rest_of_map(self, numbers: Numbers) -> Array:
        """The residual with the best c, d and e."""
        return project(self._model(numbers), LINE, self.target.bend)[1] / self.target.size

    def _allowed(self, parameters: Numbers) -> bool:
        """Whether parameter values meet their constraints; fixed ones may take any value."""
        values = dict(zip(self.names, map(float, parameters), strict=True))
        if any(abs(value) > _BIGGEST_PARAMETER for value in values.values()):
            return False
        for parameter in self.known.parameters:
            name = parameter.above_name
            bound = values[name] if name else float(parameter.above or 0)
            if parameter.trainable and parameter.broken(values[parameter.name], bound):
                return False
        return True

    def _simplified(self, match: Match, *, slack: float) -> Match:
        """The match with as many numbers as possible at 1, at 0 or where they start.

        slack   how much farther away, as a factor, it may be for that
        """
        wishes = [
            (i, 0.0) for i, value in enumerate(match.numbers) if i > 1 and abs(value) < _VANISHING
        ]
        wishes += [(0, math.copysign(1.0, match.numbers[0])), (1, 0.0)]
        wishes += [(i + 2, value) for i, value in enumerate(self.initial)]
        for index, wish in wishes:
            if not match.searched[index]:
                continue
            start = replace(
                match,
                numbers=tuple(wish if i == index else v for i, v in enumerate(match.numbers)),
                searched=tuple(free and i != index for i, free in enumerate(match.searched)),
            )
            if not self._allowed(start.numbers[2:]):
                continue
            tried = self._searched(start)
            if tried.distance <= max(slack * match.distance, 1e-9):
                match = tried
        return match

    def _linear(self, match: Match) -> tuple[float, float, float]:
        """c, d and e of a match."""
        if not match.mapped:
            return 1.0, 0.0, 0.0
        model = self._model(match.numbers)
        c = project(model, LINE, self.target.bend)[0]
        return c, *line_of(self.target.curve - c * model)

    def _proved(self, match: Match) -> Finding | None:
        """The match as an equality, first with simple numbers, or None."""
        new = exactly(self.target.spec, self.target.values)
        simple = self._simplified(match, slack=3.0)
        for tried in (simple, replace(simple, searched=match.searched)):
            c, d, _ = self._linear(tried)
            free = (*tried.searched[:2], tried.mapped, tried.mapped, *tried.searched[2:])
            numbers = [*tried.numbers[:2], c, d, *tried.numbers[2:]]
            solution = prove(AffineClaim(new, self.known, free), numbers)
            if solution is not None:
                return self._equal(*solution)
        return None

    def _equal(self, numbers: Sequence[Any], constant: Any) -> Finding:
        a, b, c, d, *parameters = (float(value) for value in numbers)
        affine = Affine(
            input_scale=a, input_shift=b, output_scale=c, linear=d, constant=float(constant)
        )
        kind: Kind = "same function" if affine.is_identity else "affine map of"
        return self._finding(kind, affine, parameters, 0.0)

    def _near(self, match: Match) -> Finding:
        match = self._simplified(match, slack=1.001)
        c, d, e = self._linear(match)
        a, b, *parameters = match.numbers
        affine = Affine(input_scale=a, input_shift=b, output_scale=c, linear=d, constant=e)
        return self._finding("within epsilon of", affine, parameters, match.distance)

    def _finding(
        self, kind: Kind, affine: Affine, parameters: Sequence[float], distance: float
    ) -> Finding:
        return Finding(
            name=self.known.name,
            kind=kind,
            map=affine,
            parameters=dict(zip(self.names, parameters, strict=True)),
            distance=distance,
        )


EPSILON = 1e-3


def rediscover(
    spec: Spec, *, epsilon: float = EPSILON, among: Sequence[Spec] | None = None
) -> list[Finding]:
    """The known activations that a spec equals, up to an affine map, or nearly equals.

    f(x) = c*g(a x + b) + d x + e is fitted for every known g, with any values of g's parameters.
    Equal means agreement to 30 digits at about fifty points; near means within epsilon after the
    best such map, in relative L2 distance under N(0, 1). The distance ignores straight lines: it is
    relative to the part of f that is not a straight line.

    among    the known specs; those of the catalogue when None
    Edge     a spec with two inputs is compared with such specs only, by the function of its gate.
             Known specs with more than four parameters are taken at their initial values. Input
             scales between 1/10 and 10 are searched.
    Raises   ConfigError when epsilon is not a number of at least 0.
    Checked  tests/unit/activations/test_known_functions.py
    """
    if not epsilon >= 0:
        raise ConfigError(f"epsilon is {epsilon!r}", where="rediscover", fix="Use 0 or more")
    known = [k for k in (catalog.ENTRIES if among is None else among) if _comparable(spec, k)]
    targets = [Target(spec, values) for values in spec.sample_values()]
    findings = []
    for other in known:
        if other.content_hash == spec.content_hash:
            findings.append(Finding(name=other.name, kind="same spec"))
            continue
        finding = SpecComparison(targets[0], other).finding(epsilon)
        if finding is not None:
            findings.append(_generalised(finding, targets[1:], other))
    return sorted(findings, key=_rank)


def _comparable(spec: Spec, known: Spec) -> bool:
    """Whether two specs take the same inputs in the same way."""
    if isinstance(spec.arity, Gated) and isinstance(known.arity, Gated):
        return spec.arity.up == known.arity.up
    return type(spec.arity) is type(known.arity)


def _generalised(finding: Finding, targets: Sequence[Target], known: Spec) -> Finding:
    """The finding as far as it holds at other parameter values of the new spec too."""
    if finding.kind == "within epsilon of":
        return replace(finding, always=not targets)
    kind: Kind = finding.kind
    fixed = [p.name for p in known.parameters if not p.trainable]
    freed: set[str] = set()
    for target in targets:
        other = SpecComparison(target, known).finding(0.0)
        if other is None:
            return replace(finding, always=False)
        kind = max(kind, other.kind, key=KINDS.index)
        now, before = other.parameters, finding.parameters
        freed |= {name for name in fixed if not math.isclose(now[name], before[name])}
    return replace(finding, kind=kind, freed=tuple(sorted(freed)))


def _rank(finding: Finding) -> tuple[int, bool, float, int, str]:
    """Sort key: strength, then findings that always hold, then distance, then simplicity."""
    changed = sum(value != getattr(Affine(), name) for name, value in vars(finding.map).items())
    numbers = changed + len(finding.parameters)
    kind = KINDS.index(finding.kind)
    return kind, not finding.always, finding.distance, numbers, finding.name


Kind = Literal["same spec", "same function", "affine map of", "within epsilon of"]
KINDS: tuple[Kind, ...] = ("same spec", "same function", "affine map of", "within epsilon of")
_UNITS = (
    ("", 1.0),
    ("sqrt(2)", math.sqrt(2)),
    ("pi", math.pi),
    ("sqrt(pi)", math.sqrt(math.pi)),
    ("sqrt(2*pi)", math.sqrt(2 * math.pi)),
    ("log(2)", math.log(2)),
)
_DENOMINATOR = 1000


@dataclass(frozen=True, kw_only=True)
class Affine:
    """f(x) = output_scale * g(input_scale * x + input_shift) + linear * x + constant."""

    input_scale: float = 1.0
    input_shift: float = 0.0
    output_scale: float = 1.0
    linear: float = 0.0
    constant: float = 0.0

    @property
    def is_identity(self) -> bool:
        """Whether it is the identity map."""
        return self == Affine()

    def formula(self, name: str) -> str:
        """The map written out, such as 1/2*silu(2*x) - x."""
        inner = _term(self.input_scale, "x") + _added(self.input_shift, "")
        text = _term(self.output_scale, f"{name}({inner})")
        return text + _added(self.linear, "x") + _added(self.constant, "")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One known activation that a spec is equal to, or near.

    name         the known entry
    kind         how strong the finding is; all but the last are proved to 30 digits
    map          the affine map from the known function to the new one
    parameters   the known entry's parameter values
    distance     relative L2 distance under N(0, 1) of the parts that are not a straight line; 0
                 when equal
    always       whether it was found at every set of parameter values tried, not at the initial
                 ones alone
    freed        parameters that the known entry keeps fixed, but that move with the trained ones of
                 the new spec
    """

    name: str
    kind: Kind
    map: Affine = field(default_factory=Affine)
    parameters: Mapping[str, float] = field(default_factory=dict)
    distance: float = 0.0
    always: bool = True
    freed: tuple[str, ...] = ()

    def sentence(self, subject: str = "f") -> str:
        """The finding in one sentence, with readable numbers."""
        if self.kind == "same spec":
            return f"{subject} is the spec of {self.name}: the content hashes are equal."
        given = ", ".join(f"{name} = {readable(v)}" for name, v in self.parameters.items())
        with_values = f", with {given}" if given else ""
        when = "" if self.always else " Seen at the initial parameter values only."
        if self.freed:
            when += f" Fixed in {self.name}, trained here: {', '.join(self.freed)}."
        written = f"{subject}(x) = {self.map.formula(self.name)}"
        if self.kind == "same function":
            return f"{subject} is the function {self.name}{with_values}.{when}"
        if self.kind == "affine map of":
            return f"{subject} is an affine map of {self.name}: {written}{with_values}.{when}"
        near = written.replace(" = ", " ~ ", 1)
        return (
            f"{subject} is within {self.distance:.3g} (relative L2 distance under N(0, 1), straight"
            f" lines aside) of {self.name}: {near}{with_values}."
        )


def readable(value: float) -> str:
    """A number as a small fraction, or one times a known constant, or to six digits."""
    if value == 0:
        return "0"
    for name, unit in _UNITS:
        for inverse in (False, True) if name else (False,):
            share = value * unit if inverse else value / unit
            near = Fraction(share).limit_denominator(_DENOMINATOR if not name else 12)
            if near and abs(near) < 1e6 and abs(float(near) / share - 1) < 1e-13:
                return _spelled(near, name, inverse)
    return f"{value:.6g}"


def _spelled(near: Fraction, name: str, inverse: bool) -> str:
    over = [str(near.denominator)] if near.denominator != 1 else []
    if inverse:
        over.append(name)
    unit = "" if inverse else name
    sign = "-" if near < 0 else ""
    size = abs(near.numerator)
    top = unit if size == 1 and unit else f"{size}*{unit}" if unit else str(size)
    if not over:
        return sign + top
    return f"{sign}{top}/{over[0]}" if len(over) == 1 else f"{sign}{top}/({'*'.join(over)})"


def _term(factor: float, term: str) -> str:
    """factor * term, without a factor of 1."""
    if factor in (1.0, -1.0):
        return term if factor > 0 else f"-{term}"
    return f"{readable(factor)}*{term}"


def _added(factor: float, term: str) -> str:
    """ " + factor*term", or nothing for 0."""
    if factor == 0:
        return ""
    size = readable(abs(factor)) if not term else _term(abs(factor), term)
    return f" {'+' if factor > 0 else '-'} {size}"
