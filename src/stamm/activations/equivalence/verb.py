"""`stamm.like`: the known activations that a function equals, is an affine map of, or is near."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from stamm.activations.catalog.registry import load_spec, names_spec
from stamm.activations.cpu_limit import cpu_limit
from stamm.activations.derivation.formulas import refused_in_one_line
from stamm.activations.equivalence.compare import Finding, rediscover
from stamm.activations.equivalence.function_spec import NAME, spec_of_function, split_at_signs
from stamm.activations.spec import Spec
from stamm.activations.spec.command_line import CONTINUITIES, spec_from_arguments
from stamm.base.errors import ConfigError, visible

CPU_SECONDS = 120
_FARTHEST = 1.0  # distance at which a known function explains nothing of this one


@dataclass(frozen=True, kw_only=True)
class Likeness:
    """A function beside the known ones.

    spec      what was compared; its pieces are the gradient
    known     entries that are equal or of which it is an affine map, each proved
    nearest   the other entries, those with the smallest distance first
    """

    spec: Spec
    known: tuple[Finding, ...]
    nearest: tuple[Finding, ...]

    def plain(self) -> dict[str, object]:
        """As JSON values."""

        def findings(among: Sequence[Finding]) -> list[dict[str, Any]]:
            subject = self.spec.name
            return [{**dataclasses.asdict(f), "sentence": f.sentence(subject)} for f in among]

        return {
            "name": self.spec.name,
            "gradient": [dataclasses.asdict(piece) for piece in self.spec.pieces],
            "content_hash": self.spec.content_hash,
            "known": findings(self.known),
            "nearest": findings(self.nearest),
        }


def like(
    *things: str | os.PathLike[str] | Spec,
    gradient: bool = False,
    parameter: str | Sequence[str] | None = None,
    nearest: int = 5,
) -> Likeness:
    """Compare a function with every entry of the catalogue, up to affine maps and values of parameters.

        stamm.like("sin(x)**2").known[0].sentence()
        stamm.like("x > 0: x**2", "x <= 0: 0")
        stamm.like("derived/mine")

    things      a formula of the function, pieces of it ("WHERE: FORMULA"), an entry's name, a derived
                folder, file.py:SPEC, or a Spec
    gradient    the formulas state the gradient
    parameter   shape parameters of the formulas, "a=0.8:softplus" as for `derive`
    nearest     how many entries that are neither equal nor an affine map
    Raises      ConfigError for what is not a function with a gradient, and for one that is not compared
                in 120 s of CPU time
    Checked     tests/unit/activations/test_like.py
    """
    if nearest < 0:
        raise ConfigError(f"nearest is {nearest}", fix="Use 0 or more")
    declared = [parameter] if isinstance(parameter, str) else list(parameter or ())
    shown = visible("; ".join(t.name if isinstance(t, Spec) else os.fspath(t) for t in things), 200)
    too_long = ConfigError(
        f"{shown!r} was not compared in {CPU_SECONDS} s of CPU time",
        fix="Write it in a simpler form",
    )
    with cpu_limit(CPU_SECONDS, too_long):
        spec = _spec(things, gradient, declared)
        with refused_in_one_line(spec, "compared"):
            findings = rediscover(spec, epsilon=_FARTHEST)
    near = [finding for finding in findings if finding.kind == "within epsilon of"]
    return Likeness(
        spec=spec,
        known=tuple(finding for finding in findings if finding not in near),
        nearest=tuple(near[:nearest]),
    )


def _spec(things: Sequence[Any], gradient: bool, declared: Sequence[str]) -> Spec:
    if not things:
        raise ConfigError("no function is given", fix="Write stamm show --like 'sin(x)**2'")
    specs = [thing for thing in things if isinstance(thing, Spec)]
    words = [os.fspath(thing) for thing in things if not isinstance(thing, Spec)]
    named = [word for word in words if names_spec(word)]
    if len(words) == 1 and not named and words[0].isidentifier() and words[0] not in ("x", "pi"):
        named = words  # a misspelt name
    if specs or named:
        if len(things) > 1 or gradient or declared:
            raise ConfigError(
                f"{(named or [specs[0].name])[0]!r} is a complete activation",
                fix="Give it alone, without --gradient, --parameter and other pieces",
            )
        return specs[0] if specs else load_spec(named[0])
    if gradient:
        return split_at_signs(_of_gradient(words, declared))
    return spec_of_function(words, declared)


def _of_gradient(words: Sequence[str], declared: Sequence[str]) -> Spec:
    """The spec of the pieces, with the strictest continuity that they have."""
    for continuity in CONTINUITIES[:-1]:
        with suppress(ConfigError):
            return spec_from_arguments(words, declared, name=NAME, continuity=continuity)
    return spec_from_arguments(words, declared, name=NAME, continuity=CONTINUITIES[-1])
