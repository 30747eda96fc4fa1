"""Families of gradients: what `stamm search` proposes. No torch and no SymPy here.

A family is plain data, and so are its candidates: the same family always has the same candidates,
with the same names.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, ClassVar

from stamm.activations import catalog
from stamm.activations.catalog.registry import named_activation, spec_of
from stamm.activations.describe import shipped
from stamm.activations.spec import Gated, Piece, Spec
from stamm.activations.spec.command_line import Continuity, parse_parameter
from stamm.activations.spec.expressions import parse, parse_interval, symbols
from stamm.activations.spec.gates import expand
from stamm.activations.spec.parameters import Identity, Parameter, Softplus
from stamm.base.bounds import AtLeastOne, Finite, distinct, not_empty
from stamm.base.config import validate
from stamm.base.errors import ConfigError

SOURCE = "proposed by stamm search"
LARGEST = 500  # candidates of a search


@dataclass(frozen=True, kw_only=True)
class Pieces:
    """Gradients of two pieces: every `right` (x > 0) with every `left` (x <= 0).

    parameters   as on the command line of `stamm derive`: "alpha_p=0.8:softplus". A candidate has
                 those that its formulas name, and those that bound them
    continuity   "continuous": pairs that do not meet at 0 are refused
    """

    right: Annotated[tuple[str, ...], not_empty()]
    left: Annotated[tuple[str, ...], not_empty()]
    parameters: tuple[str, ...] = ()
    continuity: Continuity = "continuous"

    def __post_init__(self) -> None:
        validate(self)
        for word in self.parameters:
            parse_parameter(word)

    def proposals(self) -> Iterator[Proposal]:
        """Pairs in the order of `right`, then of `left`."""
        declared = [parse_parameter(word) for word in self.parameters]
        for (i, right), (j, left) in itertools.product(enumerate(self.right), enumerate(self.left)):
            yield _proposal(
                f"pieces_{i}_{j}",
                (Piece(where="x > 0", formula=right), Piece(where="x <= 0", formula=left)),
                declared,
                self.continuity,
            )


@dataclass(frozen=True, kw_only=True)
class Linear:
    """Gradients that are sums of basis functions with free coefficients, c0*g0(x) + c1*g1(x) + ...

    terms     numbers of functions in a sum; every subset of the basis of such a size is a candidate
    initial   of each coefficient; coefficients are not constrained
    """

    basis: Annotated[tuple[str, ...], distinct("has a function twice")]
    terms: tuple[AtLeastOne, ...] = (2,)
    initial: Finite = 0.5

    def __post_init__(self) -> None:
        validate(
            self,
            (
                "terms",
                bool(self.terms) and all(1 <= n <= len(self.basis) for n in self.terms),
                f"must lie in [1, {len(self.basis)}], the size of the basis",
            ),
        )

    def proposals(self) -> Iterator[Proposal]:
        """Subsets in the order of `terms`, then of `basis`."""
        for count in self.terms:
            for chosen in itertools.combinations(range(len(self.basis)), count):
                formula = " + ".join(f"c{i}*({self.basis[i]})" for i in chosen)
                coefficients = [
                    Parameter(name=f"c{i}", initial=self.initial, bijection=Identity())
                    for i in chosen
                ]
                name = "linear_" + "_".join(map(str, chosen))
                yield _proposal(name, (Piece(where="all x", formula=formula),), coefficients)


@dataclass(frozen=True, kw_only=True)
class Integrals:
    """Expanded integrals of catalogue entries g: f' = alpha*g(x) + beta, as xIELU is that of ELU.

    beta   added to g, fixed: the slope at 0 where g(0) = 0
    """

    of: tuple[str, ...]
    beta: Finite = 0.5

    def __post_init__(self) -> None:
        validate(self)
        _check_entries(self.of)

    def proposals(self) -> Iterator[Proposal]:
        """One candidate for each entry, from the function that ships with it."""
        for entry in self.of:
            spec = catalog.get(entry)
            pieces = tuple(
                Piece(
                    where=piece["where"],
                    formula=f"alpha_g*({_in_language(piece['formula'])}) + {self.beta!r}",
                )
                for piece in shipped(spec.name).get("function", [])
            )
            alpha = Parameter(name="alpha_g", initial=0.8, bijection=Softplus())
            yield _proposal(f"integral_{spec.name}", pieces, [*spec.parameters, alpha])


@dataclass(frozen=True, kw_only=True)
class Expanded:
    """Catalogue entries x*G(x) whose gate's range is widened to (-alpha, 1 + alpha), alpha learned."""

    of: tuple[str, ...]

    def __post_init__(self) -> None:
        _check_entries(self.of)

    def proposals(self) -> Iterator[Proposal]:
        """One candidate for each entry."""
        for entry in self.of:
            spec = catalog.get(entry)
            name = f"expanded_{spec.name}"
            title = f"{spec.name} with an expanded gate"
            try:
                made = expand(spec, of="self_gated", name=name, title=title)
            except ConfigError as error:
                yield Proposal(name=name, refused=error.line())
            else:
                yield Proposal(name=name, spec=made)


@dataclass(frozen=True, kw_only=True)
class Listed:
    """Activations by name, or your own: entries of the catalogue, file.py:NAME, derived/NAME."""

    activations: tuple[str | Spec, ...]

    def __post_init__(self) -> None:
        named = tuple(named_activation(activation) for activation in self.activations)
        object.__setattr__(self, "activations", named)
        gated = [
            spec.name
            for activation in named
            if isinstance((spec := spec_of(activation)).arity, Gated)
        ]
        validate(
            self,
            (
                "activations",
                not gated,
                f"has two inputs: {gated[:1]}; a search takes functions of one",
            ),
        )

    def proposals(self) -> Iterator[Proposal]:
        """The activations in their order."""
        for activation in self.activations:
            spec = spec_of(activation)
            yield Proposal(name=spec.name, spec=spec)


Family = Pieces | Linear | Integrals | Expanded | Listed


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A candidate: its spec, or why its gradient is refused."""

    name: str
    spec: Spec | None = None
    refused: str = ""


@cache
def proposals(families: tuple[Family, ...]) -> tuple[Proposal, ...]:
    """All candidates, in the order of the families; one that repeats an earlier one is refused.

    Raises   ConfigError for more than `LARGEST` candidates, or two candidates of one name.
    Checked  tests/unit/search/test_families.py
    """
    proposed: list[Proposal] = []
    first: dict[str, str] = {}
    for family in families:
        for proposal in family.proposals():
            if proposal.spec is not None:
                same = first.setdefault(proposal.spec.content_hash, proposal.name)
                if same != proposal.name:
                    proposal = Proposal(name=proposal.name, refused=f"is the same as {same}")
            proposed.append(proposal)
            if len(proposed) > LARGEST:
                raise ConfigError(
                    f"the families have more than {LARGEST} candidates",
                    where="families",
                    fix="Propose fewer: each is derived, certified and trained",
                )
    names = [proposal.name for proposal in proposed]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(
            f"two candidates are called {twice[0]!r}",
            where="families",
            fix="Join families of one kind, or name your own activations differently",
        )
    return tuple(proposed)


def _proposal(
    name: str,
    pieces: tuple[Piece, ...],
    parameters: Sequence[Parameter],
    continuity: Continuity = "continuous",
) -> Proposal:
    try:
        used = _used(parameters, [text for piece in pieces for text in _texts(piece)])
        spec = Spec(
            name=name,
            title=f"{name}, {SOURCE}",
            pieces=pieces,
            parameters=tuple(used),
            continuity=continuity,
            source=SOURCE,
        )
    except ConfigError as error:
        return Proposal(name=name, refused=error.line())
    return Proposal(name=name, spec=spec)


def _check_entries(names: Sequence[str]) -> None:
    """Check that each is an entry of the catalogue with one input."""
    for name in names:
        if isinstance(catalog.get(name).arity, Gated):
            raise ConfigError(
                f"{name} has two inputs; a search takes functions of one",
                where="families",
                fix="Name the function of its gate",
            )


def _used(declared: Sequence[Parameter], formulas: Sequence[str]) -> list[Parameter]:
    """The parameters that the formulas and knots name, and those that bound them."""
    named: set[str] = set().union(*(symbols(parse(text)) for text in formulas))
    for parameter in reversed(declared):  # a bound may itself be bounded
        if parameter.name in named:
            named.add(str(getattr(parameter.bijection, "above", "")))
    return [parameter for parameter in declared if parameter.name in named]


def _texts(piece: Piece) -> list[str]:
    """The formula of a piece and its knots."""
    interval = parse_interval(piece.where)
    return [piece.formula, *(end for end in (interval.low, interval.high) if end is not None)]


class _LanguageNames(ast.NodeTransformer):
    """Replaces the names that SymPy writes with those of the formula language."""

    _functions: ClassVar[Mapping[str, str]] = {"absolute": "abs", "Abs": "abs", "signum": "sign"}

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """A function's name in the language; E as exp(1)."""
        if node.id == "E":
            return ast.Call(ast.Name("exp"), [ast.Constant(1)], [])
        return ast.Name(self._functions.get(node.id, node.id))


def _in_language(formula: str) -> str:
    """A formula of the shipped descriptions, which SymPy wrote, in the names of the language."""
    tree = ast.parse(formula, mode="eval")
    translated = ast.unparse(_LanguageNames().visit(tree))
    return formula if translated == ast.unparse(ast.parse(formula, mode="eval")) else translated
