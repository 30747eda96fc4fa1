"""The rediscovery detector: is a new activation a known one, up to scales, shifts and a line?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from stamm.activations import catalog
from stamm.activations.equivalence.compare import SpecComparison
from stamm.activations.equivalence.finding import KINDS, Affine, Finding, Kind
from stamm.activations.equivalence.target import Target
from stamm.activations.spec import Gated, Spec
from stamm.base.errors import ConfigError

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
    found = []
    for other in known:
        if other.content_hash == spec.content_hash:
            found.append(Finding(name=other.name, kind="same spec"))
            continue
        finding = SpecComparison(targets[0], other).finding(epsilon)
        if finding is not None:
            found.append(_generalised(finding, targets[1:], other))
    return sorted(found, key=_rank)


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
    """Strong before weak, what always holds first, near before far, simple before involved."""
    changed = sum(value != getattr(Affine(), name) for name, value in vars(finding.map).items())
    numbers = changed + len(finding.parameters)
    kind = KINDS.index(finding.kind)
    return kind, not finding.always, finding.distance, numbers, finding.name
