"""Target LaTeX: gradient, function, parameter gradients and domains as equations for `amsmath`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

from stamm.activations.describe import describe, describe_spec, shipped_source
from stamm.activations.emitters.program import Program
from stamm.activations.emitters.syntax import EmissionTarget
from stamm.activations.spec import Spec
from stamm.activations.spec.parameters import Absolute, Between, Fixed, Identity, Parameter
from stamm.activations.spec.shipped import NAMES
from stamm.pages.latex import aligned, cases, escaped, formula

_CALLED = re.compile(r"\b([a-zA-Z]\w*)\(")


def _latex(program: Program) -> str:
    spec = program.spec
    facts, tables = _facts(spec)
    rows = [("f'(x)", facts["gradient"]), ("f(x)", facts["function"])]
    if facts["surrogate"]:
        rows.append((r"\text{surrogate of } f'(x)", facts["surrogate"]))
    slopes = facts["parameter_slopes"].items()
    rows += [(rf"\frac{{\partial f}}{{\partial {formula(n)}}}", pieces) for n, pieces in slopes]
    lines = [f"{left_side} &= {cases(pieces)}" for left_side, pieces in rows]
    if facts["gated"]:
        pieces = facts["up"]["gradient"] if facts["up"] else None
        if pieces is not None:
            point, height = facts["up"]["anchor"].removeprefix("h(").split(") = ")
            anchor = rf", \quad h({formula(point)}) = {formula(height)}"
            lines.append(f"h'(x) &= {cases(pieces)}{anchor}")
        factor = r"\mathrm{up}" if pieces is None else r"h(\mathrm{up})"
        lines.append(rf"y &= f(\mathrm{{gate}})\,{factor}")
    lines += [_domain(parameter) for parameter in spec.parameters]
    inner = [("", facts["up"]["gradient"])] if facts["up"] else []
    texts = " ".join(piece["formula"] for _, pieces in [*rows, *inner] for piece in pieces)
    lines += [f"{name} &= {text}" for name, text in _definitions(texts, tables)]
    source = f"\nSource: {escaped(spec.source)}.\n" if spec.source else ""
    return f"{aligned(lines)}\n{source}"


def _facts(spec: Spec) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The description of a spec, and the integrals by name that are tables."""
    if shipped_source(spec) is not None and NAMES.get(spec.content_hash) == spec.name:
        return describe(spec.name), {}
    derived = import_module("stamm.activations.derivation.derive").derive(spec)  # loads SymPy
    texts = import_module("stamm.activations.codegen.write").texts(derived)
    kinds = import_module("stamm.activations.derivation.tables").NumericalIntegral
    used = {
        type(call)
        for branches in (derived.exact.function, *derived.exact.parameter_slopes)
        for branch in branches
        for call in branch.formula.atoms(kinds)
    }
    return describe_spec(spec, texts), {kind.__name__: kind for kind in used}


def _domain(parameter: Parameter) -> str:
    name, start = formula(parameter.name), formula(f"{parameter.initial!r}")
    match parameter.bijection:
        case Fixed():
            return f"{name} &= {start}"
        case Between(low=low, high=high):
            text = rf"\in \left({formula(repr(low))}, {formula(repr(high))}\right)"
        case Identity():
            text = r"\in \left(-\infty, \infty\right)"
        case Absolute(above=above):
            text = rf"\ge {formula(f'abs({above})' if above != '0' else above)}"
        case bounded:
            text = f"> {formula(bounded.above)}"
    return rf"{name} &{text}, \quad \text{{initially }} {start}"


def _definitions(texts: str, tables: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Name and definition of each function that is not of elementary notation."""
    primitives = import_module("stamm.activations.derivation.primitives")  # loads SymPy
    known = {made.__name__: made for made in primitives.PRIMITIVES}
    x, t = primitives.X, type(primitives.X)("t", real=True)
    waiting, seen = _CALLED.findall(texts), {"absolute", "signum"}
    while waiting:
        name = waiting.pop(0)
        if name in seen or not (name in known or name in tables):
            continue
        seen.add(name)
        arguments, start = "x", r"-\infty"
        if name in tables:
            kind = tables[name]
            arguments = ", ".join(["x", *map(str, getattr(kind, "names", ()))])
            start, inside = f"{kind.origin:g}", kind.gradient.xreplace({x: t})
        elif known[name].definition(x) == known[name](x):
            inside = known[name].slope(t)
        else:
            inside = None
        text = str(known[name].definition(x) if inside is None else inside)
        waiting += _CALLED.findall(text)
        shown = formula(text)
        if inside is not None:
            shown = rf"\int_{{{start}}}^{{x}} {shown}\,\mathrm{{d}}t"
        yield formula(f"{name}({arguments})"), shown


def _document(program: Program) -> str:
    return (
        "\\documentclass{article}\n\\usepackage[T1]{fontenc}\n\\usepackage{amsmath}\n"
        f"\\begin{{document}}\n\\input{{{program.name}.tex}}\n\\end{{document}}\n"
    )


LATEX = EmissionTarget(
    name="latex", ending=".tex", comment="%", write=_latex, test=_document, test_ending="_test.tex"
)
