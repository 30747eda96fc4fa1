"""Spec: the single definition of an activation function, as its gradient.

A Spec is plain data (frozen, without torch or SymPy) and is validated when it is created: pieces
that leave a gap or overlap, a pole, an unknown name, an initial value outside its constraint, and a
gradient that jumps although it was declared continuous raise an error with the place and value.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from stamm.activations.spec.checks import problems_of, text_problems
from stamm.activations.spec.choices import plain_pieces, plain_text
from stamm.activations.spec.pieces import Piece
from stamm.activations.spec.shipped import NAMES, PARTS
from stamm.activations.spec.unchecked import UncheckedSpec
from stamm.base.config import to_plain
from stamm.base.errors import ConfigError
from stamm.base.files import sha256_value

# Not part of what a Spec computes, hence not part of its identity.
_DESCRIPTIVE = ("name", "title", "source", "aliases", "notes", "peers")


@dataclass(frozen=True, kw_only=True)
class Spec(UncheckedSpec):
    """An activation function, defined by its gradient.

    f'(x) = the formula of the piece that holds x;  f(anchor[0]) = anchor[1];  f is continuous
    except at the places in `jumps`.

    name         the paper's spelling, lower case
    pieces       the gradient, piece by piece, covering every real x exactly once
    parameters   the shape parameters, in the order kernels take them
    anchor       (x0, f(x0)), both formulas in the parameters
    continuity   "continuous": the gradient has no jump; "jump": it may jump at a knot;
                 "singular": it may be infinite at a knot, where its integral is still finite
    jumps        where the function itself jumps
    surrogate    used by the backward pass instead of the gradient, and declared as such
    arity        Plain, or Gated (y = f(gate) * up)
    compat       another library's order of evaluation, where bit equality with it matters
    peers        other implementations to compare with, as "module:function"
    Raises       ConfigError with every problem found, each with the piece and a value.
    Checked      tests/unit/activations/test_spec.py
    """

    def __post_init__(self) -> None:
        self._write_plainly()
        problems = list(text_problems(self))
        # Shipped specs were checked when their kernels were generated; the hash identifies them.
        known = (NAMES.get(self.content_hash), PARTS.get(self.content_hash))
        if not problems and self.name not in known:
            problems = problems_of(self)
        if problems:
            raise ConfigError("; ".join(problems), where=self.where)

    def _write_plainly(self) -> None:
        """Replace words such as max and sigmoid, and split pieces at their choices."""

        def settings() -> list[dict[str, float]]:
            ends = [values for p in self.trainable for values in self.ends_of(p.name)]
            return [*self.sample_values(), *self.stress_values(), *ends]

        plain = {
            "pieces": plain_pieces(self.pieces, settings, self.where),
            "surrogate": plain_pieces(self.surrogate, settings, self.where),
            "anchor": tuple(plain_text(text, self.where) for text in self.anchor),
        }
        for name, value in plain.items():
            if value != getattr(self, name):
                object.__setattr__(self, name, value)

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 of what the spec computes, hexadecimal: its identity. Names are not in it.

        Fields that are left at their defaults are not hashed: a field that is added to the
        language later changes no identity.
        """
        return sha256_value(_identity(self, skip=_DESCRIPTIVE))


def _identity(value: Any, skip: tuple[str, ...] = ()) -> Any:
    """The plain form of a dataclass without what is default, descriptive or only a hint."""
    if isinstance(value, tuple):
        return [_identity(item) for item in value]
    if not hasattr(value, "__dataclass_fields__"):
        return to_plain(value)
    hints = ("integral",) if isinstance(value, Piece) else ()
    kept: dict[str, Any] = {"kind": type(value).__name__}
    for item in fields(value):
        inner = getattr(value, item.name)
        if item.name not in (*skip, *hints) and inner != item.default:
            kept[item.name] = _identity(inner)
    return kept
