"""Transforms that cut a gradient at new knots or add several: leak, clip, mix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stamm.activations.spec import Jump, Piece, Spec
from stamm.activations.spec.expressions import VARIABLE
from stamm.activations.spec.parameters import Parameter
from stamm.activations.transforms.gates import check_one_input
from stamm.activations.transforms.numbers import (
    Number,
    distinct,
    made,
    number_text,
    roughest,
    samples_of,
    with_new,
)
from stamm.activations.transforms.parts import Part, above, added, below, order, parts_of, pieces_of
from stamm.activations.transforms.renaming import renamed
from stamm.activations.transforms.rewriting import plus, times
from stamm.base.errors import ConfigError


def leak(spec: Spec, slope: Number, *, name: str, title: str) -> Spec:
    """f(x) + slope * x for x <= 0, and f(x) for x > 0.

    Raises   ConfigError when the anchor's side of 0 depends on the parameters.
    """
    check_one_input(spec)
    parameters = with_new(spec, (slope,))
    amount = number_text(slope, spec)
    samples = samples_of(parameters, spec)
    leaking = [
        Part(high="0", high_closed=True, formula="1", integral=VARIABLE),
        Part(low="0", formula="0"),
    ]

    def leaky(pieces: Sequence[Piece]) -> tuple[Piece, ...]:
        terms = [("1", parts_of(pieces, samples)), (amount, leaking)]
        return pieces_of(added(terms, samples, where=spec.where))

    start, height = spec.anchor
    if order(start, "0", samples, where=spec.where) < 0:
        height = plus(height, times(amount, start))
    return made(
        spec,
        name=name,
        title=title,
        pieces=leaky(spec.pieces),
        parameters=parameters,
        anchor=(start, height),
        surrogate=leaky(spec.surrogate) if spec.surrogate else (),
        continuity=roughest(spec.continuity, "jump"),
        source=f"{spec.source}; {spec.name} with a leak below 0",
    )


def clip(
    spec: Spec, *, low: Number | None = None, high: Number | None = None, name: str, title: str
) -> Spec:
    """f(min(max(x, low), high)): the input saturates. None leaves a side open.

    Edge     at the ends themselves the gradient is that of f.
    Raises   ConfigError when the range is empty, when the anchor or a jump of f lies on or beyond
             an end, and when the order of knots depends on the parameters.
    """
    check_one_input(spec)
    ends = [end for end in (low, high) if end is not None]
    if not ends:
        raise ConfigError("clip needs low, high or both", where=spec.where)
    parameters = with_new(spec, ends)
    samples = samples_of(parameters, spec)
    least, most = (None if end is None else number_text(end, spec) for end in (low, high))
    where = spec.where
    if least and most and order(least, most, samples, where=where) >= 0:
        raise ConfigError(f"the range from {least} to {most} is empty", where=where)

    def beyond(knot: str) -> bool:
        past = most is not None and order(knot, most, samples, where=where) > 0
        return past or (least is not None and order(knot, least, samples, where=where) < 0)

    if beyond(spec.anchor[0]):
        raise ConfigError(
            f"{spec.name} is known at x = {spec.anchor[0]}, which is clipped away",
            where=where,
            fix="Move its anchor inside the range first (transforms.reanchor)",
        )
    for jump in spec.jumps:
        if any(end and order(jump.at, end, samples, where=where) == 0 for end in (least, most)):
            raise ConfigError(f"{spec.name} jumps at {jump.at}, an end of the range", where=where)

    def inside(pieces: Sequence[Piece]) -> tuple[Piece, ...]:
        parts = parts_of(pieces, samples)
        if least is not None:
            parts = above(parts, least, samples, owned=True, where=where)
            parts = [Part(high=least, formula="0"), *parts]
        if most is not None:
            parts = below(parts, most, samples, owned=True, where=where)
            parts = [*parts, Part(low=most, formula="0")]
        return pieces_of(parts)

    return made(
        spec,
        name=name,
        title=title,
        pieces=inside(spec.pieces),
        parameters=parameters,
        jumps=tuple(jump for jump in spec.jumps if not beyond(jump.at)),
        surrogate=inside(spec.surrogate) if spec.surrogate else (),
        continuity=roughest(spec.continuity, "jump"),
        source=f"{spec.source}; {spec.name} with its input clipped",
    )


def mix(weights: Mapping[Spec, Number], *, name: str, title: str) -> Spec:
    """The weighted sum of functions: sum of weight * f, on the common refinement of their knots.

    Parameters that have the same name in several specs stay independent: each is renamed to
    parameter_spec, as alpha_xsilu.

    Raises   ConfigError when the functions are known at different places, or their knots' order
             depends on the parameters.
    """
    if not weights:
        raise ConfigError("mix needs at least one function")
    for spec in weights:
        check_one_input(spec)
    taken = [p.name for spec in weights for p in spec.parameters]
    taken += [w.name for w in weights.values() if isinstance(w, Parameter)]
    specs = [
        renamed(
            spec,
            {p.name: f"{p.name}_{spec.name}" for p in spec.parameters if taken.count(p.name) > 1},
        )
        for spec in weights
    ]
    where = f"spec {name!r}"
    given = list(weights.values())
    new = distinct([w for w in given if isinstance(w, Parameter)])
    parameters = (*new, *(p for spec in specs for p in spec.parameters))
    amounts = [number_text(w, spec) for w, spec in zip(given, specs, strict=True)]
    samples = samples_of(parameters, specs[0])
    start = specs[0].anchor[0]
    for spec in specs[1:]:
        if order(spec.anchor[0], start, samples, where=where) != 0:
            raise ConfigError(
                f"{specs[0].name} is known at x = {start}, {spec.name} at x = {spec.anchor[0]}",
                where=where,
                fix="Give them the same place first (transforms.reanchor)",
            )

    def total(lists: Sequence[Sequence[Piece]]) -> tuple[Piece, ...]:
        terms = [
            (amount, parts_of(pieces, samples))
            for amount, pieces in zip(amounts, lists, strict=True)
        ]
        return pieces_of(added(terms, samples, where=where))

    height = "0"
    for amount, spec in zip(amounts, specs, strict=True):
        height = plus(height, times(amount, spec.anchor[1]))
    backward = [spec.surrogate or spec.pieces for spec in specs]
    return Spec(
        name=name,
        title=title,
        pieces=total([spec.pieces for spec in specs]),
        parameters=parameters,
        anchor=(start, height),
        continuity=roughest(*(spec.continuity for spec in specs)),
        jumps=tuple(
            Jump(at=jump.at, by=times(amount, jump.by))
            for amount, spec in zip(amounts, specs, strict=True)
            for jump in spec.jumps
        ),
        surrogate=total(backward) if any(spec.surrogate for spec in specs) else (),
        source=f"A mixture of {', '.join(spec.name for spec in specs)}; "
        + "; ".join(dict.fromkeys(spec.source for spec in specs)),
    )
