"""Comparison of one spec with one known spec: fitted in double precision, then proved."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stamm.activations.equivalence.curves import Array, curve
from stamm.activations.equivalence.finding import Affine, Finding, Kind
from stamm.activations.equivalence.fit import project, search
from stamm.activations.equivalence.proof import AffineClaim, exactly, prove
from stamm.activations.equivalence.target import (
    LINE,
    POINTS,
    ROOT_WEIGHTS,
    Target,
    line_of,
    weighted_line,
    without_line,
)
from stamm.activations.spec import Spec

MOST_PARAMETERS = 4  # with more, almost any curve can be approximated, which proves nothing
SMALLEST, LARGEST = 0.1, 10.0  # of input scales: beyond, every bend looks like a square or a step
_SCALES = (0.2, 0.4, 0.7, 1.0, 1.5, 2.3, 4.0, -0.3, -0.7, -1.5, -4.0)
_SHIFTS = (0.0, -1.5, 1.5)
_STARTS = np.array(list(itertools.product(_SCALES, _SHIFTS)))
_COARSE = 2  # every second point is enough to choose starts
_COARSE_LINE = weighted_line(_COARSE)
_HOPELESS = 0.9  # no start is worth a search from here on,
_FIRST_LEG = 5  # and after so many steps of a search
_NEARING = 0.1  # none that has not come this near
_PROMISING = 0.25  # parameters are fitted beside the map only from here on
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
        models = curve(self.known).function(points.ravel(), values).reshape(points.shape)
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
        new = curve(self.target.spec).knots(self.target.values)
        old = curve(self.known).knots(values)
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
        found, distance = search(lambda part: rest(filled(part)), begin, allowed, steps=steps)
        return replace(start, numbers=tuple(filled(found).tolist()), distance=distance)

    def _model(self, numbers: Numbers) -> Array:
        values = dict(zip(self.names, map(float, numbers[2:]), strict=True))
        found = curve(self.known).function(numbers[0] * POINTS + numbers[1], values)
        return found * ROOT_WEIGHTS

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
        for place, wish in wishes:
            if not match.searched[place]:
                continue
            start = replace(
                match,
                numbers=tuple(wish if i == place else v for i, v in enumerate(match.numbers)),
                searched=tuple(free and i != place for i, free in enumerate(match.searched)),
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
        found = Affine(
            input_scale=a, input_shift=b, output_scale=c, linear=d, constant=float(constant)
        )
        kind: Kind = "same function" if found.is_identity else "affine map of"
        return self._finding(kind, found, parameters, 0.0)

    def _near(self, match: Match) -> Finding:
        match = self._simplified(match, slack=1.001)
        c, d, e = self._linear(match)
        a, b, *parameters = match.numbers
        found = Affine(input_scale=a, input_shift=b, output_scale=c, linear=d, constant=e)
        return self._finding("within epsilon of", found, parameters, match.distance)

    def _finding(
        self, kind: Kind, found: Affine, parameters: Sequence[float], distance: float
    ) -> Finding:
        return Finding(
            name=self.known.name,
            kind=kind,
            map=found,
            parameters=dict(zip(self.names, parameters, strict=True)),
            distance=distance,
        )
