"""Transforms that rewrite the stated gradient of a Spec: no integral is needed.

Each returns a Spec like any other, with its own derivatives, parameter gradients, kernel and
certificate. Known integrals, jumps and surrogates are transformed too; other libraries' orders of
evaluation are dropped, since they belong to another function.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stamm.activations.spec import Jump, Piece, Spec
from stamm.activations.transforms.gates import check_one_input
from stamm.activations.transforms.numbers import Number, made, number_text, samples_of, with_new
from stamm.activations.transforms.parts import (
    above,
    below,
    mapped,
    moved,
    order,
    parts_of,
    pieces_of,
)
from stamm.activations.transforms.rewriting import minus, plus, times
from stamm.base.errors import ConfigError


def affine(
    spec: Spec,
    *,
    input_scale: Number = 1,
    input_shift: Number = 0,
    output_scale: Number = 1,
    linear: Number = 0,
    constant: Number = 0,
    name: str,
    title: str,
    aliases: tuple[str, ...] = (),
) -> Spec:
    """output_scale * f(input_scale * x + input_shift) + linear * x + constant.

    Each number is a number, a formula in the spec's parameters such as "1/3", or a Parameter,
    which the new spec then has.

    Edge     a negative input scale mirrors the pieces, including which piece owns each knot.
    Raises   ConfigError when the input scale is 0 or its sign depends on the parameters, and when
             a parameter's name is already used.
    Checked  tests/unit/activations/test_transforms.py
    """
    check_one_input(spec)
    given = (input_scale, input_shift, output_scale, linear, constant)
    parameters = with_new(spec, given)
    scale, shift, height, slope, rise = (number_text(number, spec) for number in given)
    samples = samples_of(parameters, spec)
    side = order(scale, "0", samples, where=spec.where)
    if side == 0:
        raise ConfigError(
            f"the input scale {scale} of {spec.name} is 0, which leaves a constant",
            where=spec.where,
            fix="Use another scale",
        )
    rising = side > 0

    def through(pieces: Sequence[Piece]) -> tuple[Piece, ...]:
        parts = parts_of(pieces, samples)
        return pieces_of(
            mapped(parts, scale=scale, shift=shift, height=height, linear=slope, rising=rising)
        )

    start = moved(spec.anchor[0], scale, shift)
    value = plus(plus(times(height, spec.anchor[1]), times(slope, start)), rise)
    step = height if rising else minus("0", height)
    return made(
        spec,
        name=name,
        title=title,
        aliases=aliases,
        pieces=through(spec.pieces),
        parameters=parameters,
        anchor=(start, value),
        jumps=tuple(Jump(at=moved(j.at, scale, shift), by=times(step, j.by)) for j in spec.jumps),
        surrogate=through(spec.surrogate) if spec.surrogate else (),
        continuity=spec.continuity,
        source=f"{spec.source}; an affine map of {spec.name}",
    )


def scale(
    spec: Spec, *, input_scale: Number = 1, output_scale: Number = 1, name: str, title: str
) -> Spec:
    """output_scale * f(input_scale * x)."""
    return affine(spec, input_scale=input_scale, output_scale=output_scale, name=name, title=title)


def reflect(spec: Spec, *, name: str, title: str) -> Spec:
    """f(-x)."""
    return affine(spec, input_scale=-1, name=name, title=title)


def concave(spec: Spec, *, name: str, title: str) -> Spec:
    """-f(-x): convex becomes concave, rising stays rising.

    Source   Runje and Shankaranarayana 2022, Constrained Monotonic Neural Networks (2205.11775)
    """
    mirrored = affine(spec, input_scale=-1, output_scale=-1, name=name, title=title)
    return replace(mirrored, source=f"{spec.source}; the concave counterpart of {spec.name}")


def saturate(spec: Spec, *, name: str, title: str) -> Spec:
    """f(x + 1) - f(1) for x <= 0, and f(1) - f(1 - x) for x > 0: bounded where f is so on the left.

    Both sides have the slope f'(1) at 0, so the gradient stays continuous there.

    Raises   ConfigError when f itself jumps at 1.
    Source   Runje and Shankaranarayana 2022, Constrained Monotonic Neural Networks (2205.11775)
    """
    check_one_input(spec)
    samples = samples_of(spec.parameters, spec)
    where = spec.where
    sides = [order(jump.at, "1", samples, where=where) for jump in spec.jumps]
    if 0 in sides:
        raise ConfigError(f"{spec.name} jumps at 1, where the two halves are joined", where=where)

    def halves(pieces: Sequence[Piece]) -> tuple[Piece, ...]:
        parts = parts_of(pieces, samples)
        left = mapped(parts, scale="1", shift="1", height="1", linear="0", rising=True)
        right = mapped(parts, scale="-1", shift="1", height="-1", linear="0", rising=False)
        return pieces_of(
            [
                *below(left, "0", samples, owned=True, where=where),
                *above(right, "0", samples, owned=False, where=where),
            ]
        )

    kept = [jump for jump, side in zip(spec.jumps, sides, strict=True) if side < 0]
    return made(
        spec,
        name=name,
        title=title,
        pieces=halves(spec.pieces),
        anchor=("0", "0"),
        jumps=(
            *(Jump(at=minus(jump.at, "1"), by=jump.by) for jump in kept),
            *(Jump(at=minus("1", jump.at), by=jump.by) for jump in kept),
        ),
        surrogate=halves(spec.surrogate) if spec.surrogate else (),
        source=f"{spec.source}; the saturated form of {spec.name}",
    )


def surrogate(spec: Spec, pieces: Sequence[Piece], *, name: str, title: str) -> Spec:
    """f forward, and `pieces` instead of its gradient backward, declared as a surrogate gradient.

    Source   HeLU (2411.10573) is the rectifier with the shifted step 1 for x > -alpha.
    """
    return made(
        spec,
        name=name,
        title=title,
        surrogate=tuple(pieces),
        source=f"{spec.source}; {spec.name} with a surrogate backward pass",
    )
