"""A spec whose parameters have other names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from stamm.activations.spec import Jump, Piece, Spec
from stamm.activations.spec.expressions import parse, parse_interval, symbols
from stamm.activations.spec.parameters import Absolute, Exp, Parameter, Softplus
from stamm.activations.transforms.parts import Part, pieces_of
from stamm.activations.transforms.rewriting import substituted


def renamed(spec: Spec, names: Mapping[str, str]) -> Spec:
    """The spec with parameters renamed wherever they occur: formulas, knots, bounds, anchor.

    names    old name -> new name; what is not in it keeps its name
    Edge     without names the spec itself is returned; otherwise its `compat` is dropped.
    Raises   ConfigError when a new name is already used or not a valid name.
    """
    if not names:
        return spec
    return replace(
        spec,
        pieces=_pieces(spec.pieces, names),
        parameters=tuple(_parameter(p, names) for p in spec.parameters),
        anchor=(_text(spec.anchor[0], names), _text(spec.anchor[1], names)),
        jumps=tuple(Jump(at=_text(j.at, names), by=_text(j.by, names)) for j in spec.jumps),
        surrogate=_pieces(spec.surrogate, names),
        compat=None,
    )


def _text(text: str, names: Mapping[str, str]) -> str:
    """The formula with names replaced; the same text where none of them occurs."""
    return substituted(text, names) if symbols(parse(text)) & set(names) else text


def _pieces(pieces: Sequence[Piece], names: Mapping[str, str]) -> tuple[Piece, ...]:
    done: list[Piece] = []
    for piece in pieces:
        ends = parse_interval(piece.where)
        part = Part(
            low=None if ends.low is None else _text(ends.low, names),
            low_closed=ends.low_closed,
            high=None if ends.high is None else _text(ends.high, names),
            high_closed=ends.high_closed,
            formula=_text(piece.formula, names),
            integral=_text(piece.integral, names) if piece.integral else "",
        )
        done += pieces_of([part])
    return tuple(done)


def _parameter(parameter: Parameter, names: Mapping[str, str]) -> Parameter:
    bijection = parameter.bijection
    if isinstance(bijection, Softplus | Exp | Absolute):
        bijection = replace(bijection, above=names.get(bijection.above, bijection.above))
    return Parameter(
        name=names.get(parameter.name, parameter.name),
        initial=parameter.initial,
        bijection=bijection,
    )
