"""Arguments and results of transforms: numbers, formulas or parameters in, a changed spec out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from stamm.activations.spec import Piece, Spec
from stamm.activations.spec.expressions import VARIABLE, parse, symbols
from stamm.activations.spec.parameters import Parameter
from stamm.activations.transforms.parts import Samples
from stamm.base.errors import ConfigError

Number = float | str | Parameter
Continuity = Literal["continuous", "jump", "singular"]


def made(spec: Spec, **changes: object) -> Spec:
    """The spec with changes, without the fields that describe only the original."""
    plain: dict[str, object] = {"compat": None, "aliases": (), "notes": "", "peers": ()}
    return replace(spec, **{**plain, **changes})  # type: ignore[arg-type]


def number_text(number: Number, spec: Spec) -> str:
    """A number, formula or parameter as the text of a formula.

    Raises   ConfigError when it is not finite or depends on x.
    """
    if isinstance(number, Parameter):
        return number.name
    if isinstance(number, str):
        if VARIABLE in symbols(parse(number, where=spec.where)):
            raise ConfigError(f"{number!r} depends on x", where=spec.where, fix="Use a number")
        return number
    if not math.isfinite(number):
        raise ConfigError(f"{number!r} is not finite", where=spec.where)
    return str(int(number)) if number == int(number) else repr(float(number))


def with_new(spec: Spec, given: Sequence[Number]) -> tuple[Parameter, ...]:
    """The spec's parameters after those that are given, each once.

    Raises   ConfigError when a name is taken.
    """
    new = distinct([number for number in given if isinstance(number, Parameter)])
    names = [p.name for p in spec.parameters]
    for parameter in new:
        if parameter.name in names:
            raise ConfigError(
                f"{spec.name} has a parameter {parameter.name!r} already",
                where=spec.where,
                fix="Give the new parameter another name",
            )
    return (*new, *spec.parameters)


def distinct(parameters: Sequence[Parameter]) -> tuple[Parameter, ...]:
    """Each parameter once, in order."""
    return tuple(dict.fromkeys(parameters))


def samples_of(parameters: tuple[Parameter, ...], spec: Spec) -> Samples:
    """Values at which the order of knots is decided: those that training may reach among them."""
    nothing = Spec(
        name=spec.name,
        title="",
        pieces=(Piece(where="all x", formula="0"),),
        parameters=parameters,
        source=spec.source,
    )
    return [*nothing.sample_values(), *nothing.stress_values()]


def roughest(*kinds: Continuity) -> Continuity:
    """The continuity of a combination of functions."""
    if "singular" in kinds:
        return "singular"
    return "jump" if "jump" in kinds else "continuous"
