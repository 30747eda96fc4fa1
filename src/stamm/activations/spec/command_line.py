"""Parses a Spec from command-line arguments, and matches it with the catalogue.

    "x > 0: 2*a*x + b"  "x <= 0: a*(exp(x) - 1) + b"  --parameter a=0.8:softplus  b=0.5:fixed

Every formula goes through the parser of the formula language; nothing is evaluated as Python.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from stamm.activations.spec import Gated, Piece, Plain, Spec
from stamm.activations.spec.expressions import VARIABLE, parse, parse_interval, symbols
from stamm.activations.spec.parameters import (
    Absolute,
    Between,
    Bijection,
    Exp,
    Fixed,
    Identity,
    Parameter,
    Softplus,
)
from stamm.base.errors import ConfigError, visible

Continuity = Literal["continuous", "jump", "singular"]
CONTINUITIES: tuple[Continuity, ...] = ("continuous", "jump", "singular")
SOURCE = "stated on the command line"
EVERYWHERE = "all x"
_PARAMETER = re.compile(r"\s*(?P<name>\w+)\s*=(?P<initial>[^:]*):(?P<kind>.*)", re.DOTALL)
_KIND = re.compile(r"(?P<kind>[a-z]+)\s*(?:>(?P<above>[^(]+)|\((?P<range>[^()]*)\))?")
_ONE_SIDED: Mapping[str, type[Softplus | Exp | Absolute]] = {
    "softplus": Softplus,
    "exp": Exp,
    "absolute": Absolute,
}
_WAYS = "softplus, exp, absolute (each also as softplus>LOW), between(LOW,HIGH), identity, fixed"


def spec_from_arguments(
    pieces: Sequence[str],
    parameters: Sequence[str] = (),
    *,
    name: str = "",
    anchor: str = "0=0",
    continuity: Continuity = "continuous",
    gated: Literal[1, 2] | None = None,
) -> Spec:
    """The Spec that command-line arguments define.

    pieces       "WHERE: GRADIENT" or "WHERE: GRADIENT | INTEGRAL"; without a colon it holds for
                 all x
    parameters   "NAME=INITIAL:HOW", HOW as in `parse_parameter`, in the order kernels take them
    name         by default from the first digits of the content hash, "activation_1a2b3c4d"
    anchor       "X0=F(X0)", both formulas in the parameters
    gated        the order of y = f(gate) * up, or None for y = f(x)
    Raises       ConfigError that quotes the argument and shows how to write it; for a name in a
                 formula that is not declared, how to declare it.
    Checked      tests/unit/activations/test_user_spec.py
    """
    if not pieces:
        raise ConfigError("no piece of a gradient is given", fix="Write one: 'all x: tanh(x)'")
    stated = tuple(parse_piece(word) for word in pieces)
    declared = tuple(parse_parameter(word) for word in parameters)
    start, equals, height = anchor.partition("=")
    if not equals or not start.strip() or not height.strip():
        raise ConfigError(
            f"{anchor!r} does not fix a value of the function", where="--anchor", fix="Write 0=1/2"
        )
    check_declared(stated, (start, height), declared)
    spec = Spec(
        name=name or "activation",
        title=f"{name or 'An activation'}, stated on the command line",
        pieces=stated,
        parameters=declared,
        anchor=(start.strip(), height.strip()),
        continuity=continuity,
        arity=Plain() if gated is None else Gated(order=gated),
        source=SOURCE,
    )
    return spec if name else replace(spec, name=f"activation_{spec.content_hash[:8]}")


def parse_piece(word: str) -> Piece:
    """The piece in "x > 0: 2*a*x + b", "x<=0: exp(x) | exp(x)" or "tanh(x)".

    Raises   ConfigError that quotes an invalid condition or formula.
    """
    where, rest = word.split(":", 1) if ":" in word else (EVERYWHERE, word)
    formula, bar, integral = rest.partition("|")
    if not formula.strip() or (bar and not integral.strip()):
        raise ConfigError(
            f"{word!r} lacks a formula", where="a piece", fix="Write 'x > 0: 2*a*x + b'"
        )
    described = f"piece {word!r}"
    parse_interval(where, where=described)
    for text in (formula, integral):
        if text.strip():
            parse(text.strip(), where=described, words=True)
    return Piece(where=_spelled(where), formula=formula.strip(), integral=integral.strip())


def parse_parameter(word: str) -> Parameter:
    """The parameter in "a=0.8:softplus", "a=0.8:softplus>b", "t=0.5:between(0,1)", "c=1:fixed".

    softplus, exp, absolute   above 0, or above the number or parameter after ">"
    between(LOW,HIGH)         inside an open range
    identity                  trainable, without a constraint
    fixed                     a constant

    Raises   ConfigError that quotes the argument and lists the constraints.
    """
    wrong = ConfigError(
        f"{word!r} does not declare a parameter",
        where="--parameter",
        fix=f"Write NAME=INITIAL:HOW, as in a=0.8:softplus. HOW is one of: {_WAYS}",
    )
    match = _PARAMETER.fullmatch(word)
    kind = _KIND.fullmatch(match["kind"].strip()) if match else None
    if match is None or kind is None:
        raise wrong
    return Parameter(
        name=match["name"],
        initial=_number(match["initial"], word),
        bijection=_bijection(kind, word),
    )


def same_statement(first: Spec, second: Spec) -> bool:
    """Whether two specs have the same gradient, up to spacing and order.

    Names, texts, known integrals and another library's order of evaluation are ignored; names of
    parameters are compared.
    """
    return _statement(first) == _statement(second)


def known_entry(spec: Spec, entries: Iterable[Spec]) -> Spec | None:
    """The entry that computes the same as `spec`: the same hash, or the same gradient."""
    entries = tuple(entries)
    for same in (lambda e: e.content_hash == spec.content_hash, lambda e: same_statement(e, spec)):
        entry = next(filter(same, entries), None)
        if entry is not None:
            return entry
    return None


def _bijection(match: re.Match[str], word: str) -> Bijection:
    kind, above, limits = match["kind"], match["above"], match["range"]
    if kind in _ONE_SIDED and limits is None:
        return _ONE_SIDED[kind](above=above.strip() if above else "0")
    if kind == "between" and limits is not None and limits.count(",") == 1:
        low, high = limits.split(",")
        return Between(low=_number(low, word), high=_number(high, word))
    if above is None and limits is None and kind in ("identity", "fixed"):
        return Identity() if kind == "identity" else Fixed()
    raise ConfigError(
        f"{match[0]!r} is not a constraint of a parameter",
        where=f"--parameter {word}",
        fix=f"Use one of: {_WAYS}",
    )


def _number(text: str, word: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(
            f"{visible(text.strip(), 40)!r} is not a number", where=f"--parameter {word}"
        ) from None


def check_declared(
    pieces: Sequence[Piece], anchor: Sequence[str], parameters: Sequence[Parameter]
) -> None:
    """Check that each name in the formulas is x or a parameter.

    Raises   ConfigError that names those which are not.
    """
    texts = [text for p in pieces for text in (p.formula, p.integral) if text] + list(anchor)
    for piece in pieces:
        interval = parse_interval(piece.where)
        texts += [bound for bound in (interval.low, interval.high) if bound]
    declared = {VARIABLE, *(p.name for p in parameters)}
    free = sorted(
        {name for text in texts for name in symbols(parse(text.strip(), words=True))} - declared
    )
    if not free:
        return
    several = len(free) > 1
    examples = " ".join(f"--parameter {name}=1:identity" for name in free)
    raise ConfigError(
        f"the {'names' if several else 'name'} {', '.join(map(repr, free))}"
        f" {'are' if several else 'is'} used in the formulas and not declared",
        where="the pieces",
        fix=f"Declare each, as in {examples}. Instead of identity: {_WAYS}",
    )


def _spelled(where: str) -> str:
    """A condition in one spelling, "x > 0", so that spaces do not change the identity."""
    text = where.strip()
    return text if text == EVERYWHERE else ast.unparse(ast.parse(text, mode="eval"))


def _statement(spec: Spec) -> dict[str, Any]:
    """The content of a spec, without spacing and order."""
    arity = spec.arity
    up = arity.up if isinstance(arity, Gated) else None
    return {
        "pieces": _trees(spec.pieces),
        "parameters": sorted(map(repr, spec.parameters)),
        "anchor": [_tree(text) for text in spec.anchor],
        "continuity": spec.continuity,
        "jumps": sorted((_tree(jump.at), _tree(jump.by)) for jump in spec.jumps),
        "surrogate": _trees(spec.surrogate),
        "arity": (arity.order, arity.layout) if isinstance(arity, Gated) else None,
        "up": None if up is None else (_trees(up.pieces), [_tree(text) for text in up.anchor]),
    }


def _trees(pieces: Sequence[Piece]) -> list[tuple[str, str]]:
    return sorted((repr(parse_interval(p.where)), _tree(p.formula)) for p in pieces)


def _tree(text: str) -> str:
    return ast.dump(parse(text))
