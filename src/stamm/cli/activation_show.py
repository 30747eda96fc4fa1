"""`stamm show NAME` for an activation: its description, a plot, an HTML page."""

from __future__ import annotations

import argparse
import inspect
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from stamm.activations import catalog
from stamm.activations.catalog.registry import STORED, load_spec
from stamm.activations.describe import (
    cost,
    describe,
    describe_spec,
    operations_text,
    shipped_source,
)
from stamm.activations.spec import Spec
from stamm.activations.spec.shipped import NAMES
from stamm.base.errors import ConfigError
from stamm.base.files import write_bytes, write_text
from stamm.base.user_code import load_python
from stamm.cli.arg_types import text
from stamm.cli.output import print_json, print_pairs
from stamm.pages.latex import bibtex, latex

PLOTS = (".svg", ".png", ".pdf")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that apply to activations."""
    parser.add_argument(
        "--plot",
        type=text,
        metavar="FILE",
        help="plot the activation and write it to FILE (.svg, .png or .pdf)",
    )
    parser.add_argument(
        "--page",
        type=text,
        metavar="FILE",
        help="write the HTML page of the activation to FILE (.html)",
    )
    parser.add_argument("--latex", action="store_true", help="print gradient and function as LaTeX")
    parser.add_argument("--bibtex", action="store_true", help="print the source as BibTeX")
    parser.add_argument(
        "--like",
        action="store_true",
        help="the known activations that an activation, or a function given as a formula, equals, is an affine"
        " map of, or is near: 'sin(x)**2', or pieces 'x > 0: x**2' 'x <= 0: 0'",
    )
    parser.add_argument(
        "--gradient", action="store_true", help="with --like: the formulas state the gradient"
    )
    parser.add_argument(
        "--parameter",
        type=text,
        action="append",
        metavar="NAME=INITIAL:HOW",
        help="with --like: a shape parameter of the formulas, as for `stamm derive`",
    )


def spec_named(word: str) -> Spec | None:
    """The activation called `word`: a name or alias, a stored spec, or a Python file with a Spec.

    A Python file is executed, as for recipes. None for anything else.

    Raises   ConfigError for an invalid stored spec or file.
    """
    if any(word in (spec.name, *spec.aliases) for spec in catalog.ENTRIES):
        return catalog.get(word)
    path, _, name = word.partition(":")
    if path.endswith(".py") and is_file(path):
        return _spec_in(load_python(Path(path)), name, word)
    stored = word.endswith(".json") and is_file(word)
    return load_spec(word) if stored or is_file(word, STORED) else None


def is_file(*parts: str) -> bool:
    """Whether a word of the command line is the path of a file; a long formula is not."""
    # Path.is_file raises for a name that is longer than the file system allows.
    return os.path.isfile(os.path.join(*parts))  # noqa: PTH113, PTH118


def _spec_in(module: ModuleType, name: str, word: str) -> Spec | None:
    members = vars(module)
    if name:
        return members[name] if isinstance(members.get(name), Spec) else None
    written = members.get("SPEC")
    if isinstance(written, Spec) and isinstance(members.get("KERNEL"), str):
        return written  # a module that `stamm derive` wrote
    # A file of recipes may import a Spec to build with.
    recipes = any(
        inspect.isfunction(value) and value.__module__ == module.__name__
        for value in members.values()
    )
    specs = {id(value): value for value in members.values() if isinstance(value, Spec)}
    if recipes or not specs:
        return None
    return next(iter(specs.values())) if len(specs) == 1 else load_spec(word)


def show_activation(word: str, spec: Spec, options: argparse.Namespace) -> int:
    """Print the description of an activation; write --plot and --page if given.

    Raises   ConfigError for key=value, which only recipes take, and for other endings of files.
    """
    if options.changes:
        raise ConfigError(
            f"{options.changes[0]!r} cannot be applied: {word} is an activation, not a recipe",
            where="the command line",
            fix="Omit it. `stamm derive` states an activation with other values",
        )
    for flag, endings in (("plot", PLOTS), ("page", (".html",))):
        file = getattr(options, flag)
        if file is not None and Path(file).suffix not in endings:
            raise ConfigError(f"{file!r} does not end in {' or '.join(endings)}", where=f"--{flag}")
    facts = facts_of(spec)
    cited = [(options.latex, latex), (options.bibtex, bibtex)]
    if options.json:
        print_json(facts | {made.__name__: made(facts) for wanted, made in cited if wanted})
    elif options.latex or options.bibtex:
        print("\n".join(made(facts) for wanted, made in cited if wanted))
    else:
        print_pairs(lines_of(facts))
    if options.plot is not None:
        from stamm.activations.page.figures import plot

        write_bytes(Path(options.plot), plot(spec, Path(options.plot).suffix[1:]))
    if options.page is not None:
        from stamm.activations.page.page import activation_page

        page = activation_page(
            spec,
            facts,
            certificate=facts.get("certificate"),
            command=shlex.join(["stamm", "show", word, "--page", options.page]),
        )
        write_text(Path(options.page), page)
    for file in (options.plot, options.page):
        if file is not None:
            print(f"Written: {file}", file=sys.stderr)
    return 0


def show_like(options: argparse.Namespace) -> int:
    """Print the known activations that a function is, or is near.

    Raises   ConfigError as `stamm.like`, and for flags that print something else.
    """
    from stamm.activations.equivalence.verb import like

    others = [f for f in ("plot", "page", "latex", "bibtex") if getattr(options, f)]
    if others:
        raise ConfigError(f"--{others[0]} cannot be combined with --like", fix="Omit one of them")
    words = [options.name, *options.changes]
    likeness = like(*words, gradient=options.gradient, parameter=options.parameter)
    if options.json:
        print_json(likeness.plain())
        return 0
    spec = likeness.spec
    known = [("known as", finding.sentence(spec.name)) for finding in likeness.known]
    print_pairs(
        [
            *(("gradient", f"{p.formula}   for {p.where}") for p in spec.pieces),
            *(("jump", f"at {jump.at} by {jump.by}") for jump in spec.jumps),
            *(known or [("known as", "no entry of the catalogue, nor an affine map of one")]),
            *(("near", finding.sentence(spec.name)) for finding in likeness.nearest),
        ]
    )
    return 0


def facts_of(spec: Spec) -> dict[str, Any]:
    """Description, cost and certificate of a spec as JSON values.

    Catalogue entries are read from generated files; other specs are derived and certified, which
    loads SymPy.
    """
    source = shipped_source(spec)
    if source is not None and NAMES.get(spec.content_hash) == spec.name:
        facts = describe(spec.name)
        return {**facts, "peers": list(spec.peers), "cost": cost(spec, source)}

    from stamm.activations.certificates.certificate import certify
    from stamm.activations.codegen.kernel import kernel_source
    from stamm.activations.codegen.write import texts
    from stamm.activations.conformance.judge import table_sentences
    from stamm.activations.derivation.derive import derive

    derived = derive(spec)
    tables = list(table_sentences(derived))
    made = cost(spec, kernel_source(derived))
    described = describe_spec(spec, texts(derived))
    return {**described, "table": tables, "cost": made, "certificate": certify(derived)}


def lines_of(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """A description as lines; each piece or parameter is one line."""
    lines: list[tuple[str, str]] = []
    for key, value in facts.items():
        if value in (None, "", [], {}):
            continue
        match key:
            case "cost":
                lines += _cost_lines(value)
            case "certificate":
                lines += certificate_lines(value)
            case "parameters":
                lines += [("parameter", _parameter_line(parameter)) for parameter in value]
            case "parameter_slopes":
                lines += [(f"df/d{n}", _one_line(v)) for n, pieces in value.items() for v in pieces]
            case _ if isinstance(value, dict):
                lines += [(f"{key} {k}", v) for k, v in lines_of(value)]
            case _ if isinstance(value, list):
                lines += [(key, _one_line(item)) for item in value]
            case _:
                lines.append((key.replace("_", " "), str(value)))
    return lines


def certificate_lines(certificate: Mapping[str, Any]) -> list[tuple[str, str]]:
    """A certificate in short lines."""
    from stamm.activations.certificates.rounding import certificate_text

    return [(f"certificate {label}", value) for label, value in certificate_text(certificate)]


def _cost_lines(value: Mapping[str, Any]) -> list[tuple[str, str]]:
    elements = value["saved_inputs"]
    kept = (
        f"{value['saved']}, {2 * elements} bytes an element in bfloat16, {4 * elements} in float32"
    )
    return [
        ("cost forward", operations_text(value["forward"])),
        ("cost backward", operations_text(value["backward"])),
        ("kept for backward", kept),
        ("trained numbers", str(value["parameters"])),
    ]


def _parameter_line(parameter: Mapping[str, Any]) -> str:
    if not parameter["trainable"]:
        return str(parameter["constraint"])
    stored = f"{parameter['initial_raw']:.9g}"
    return f"{parameter['constraint']}, starts at {parameter['initial']:.9g} (raw {stored})"


def _one_line(item: Any) -> str:
    if not isinstance(item, dict):
        return str(item)
    if set(item) == {"where", "formula"}:
        return f"{item['formula']}   for {item['where']}"
    return ", ".join(f"{k} {v}" for k, v in item.items() if v not in (None, ""))
