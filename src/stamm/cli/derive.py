"""`stamm derive`: turn a gradient into a module, a kernel, a certificate, golden vectors and a page."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stamm.activations.spec.command_line import CONTINUITIES
from stamm.base.config import to_plain
from stamm.base.shutdown import interrupt_delayed
from stamm.cli.activation_show import lines_of
from stamm.cli.arg_types import count, text
from stamm.cli.output import print_json, print_pairs

if TYPE_CHECKING:
    from stamm.activations.verb import Derivation

_RELATIVES = 3  # known activations that are printed; the page has all


def arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    """Add the arguments of `derive`."""
    parser.add_argument(
        "things",
        type=text,
        nargs="+",
        metavar="THING",
        help="pieces of a gradient ('x > 0: 2*a*x', 'tanh(x)', 'WHERE: GRADIENT | INTEGRAL'), or a "
        "Python file with a Spec (file.py, file.py:NAME), or a spec.json",
    )
    parser.add_argument(
        "--name", type=text, help="name of the activation (default: derived from its content hash)"
    )
    parser.add_argument(
        "--parameter",
        type=text,
        action="append",
        metavar="NAME=INITIAL:HOW",
        help="a shape parameter: a=0.8:softplus, a=0.8:softplus>b, a=0.3:exp, a=1:absolute, "
        "t=0.5:between(0,1), c=1:identity, b=0.5:fixed",
    )
    parser.add_argument("--anchor", type=text, metavar="X=Y", help="f(X) = Y (default: 0=0)")
    parser.add_argument(
        "--continuity", choices=CONTINUITIES, help="of the gradient (default: continuous)"
    )
    parser.add_argument(
        "--gated", type=int, choices=(1, 2), help="y = f(gate) * up: 1 for a bounded gate, else 2"
    )
    parser.add_argument(
        "--cpu-seconds",
        type=count,
        default=120,
        metavar="N",
        help="give up after N seconds of CPU time (default: 120)",
    )
    parser.add_argument("--out", type=text, metavar="FOLDER", help="default: derived/NAME")
    parser.add_argument("--force", action="store_true", help="replace an earlier derivation there")
    parser.add_argument(
        "--dry-run", action="store_true", help="print what would be written, write nothing"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace, verb: str) -> int:
    """Derive the activation, unless the folder already holds it, and print what it is."""
    with interrupt_delayed():
        from stamm.activations.verb import derive
    derivation = derive(
        *options.things,
        name=options.name,
        parameter=options.parameter,
        anchor=options.anchor,
        continuity=options.continuity,
        gated=options.gated,
        cpu_seconds=options.cpu_seconds,
        out=options.out,
        force=options.force,
        dry_run=options.dry_run,
    )
    if derivation.receipt is None:
        _print_plan(derivation, options.json)
    else:
        _print_result(derivation, derivation.receipt, options.json)
    return 0


def _files(derivation: Derivation) -> list[str]:
    return [str(file) for file in derivation.files]


def _print_result(derivation: Derivation, receipt: Mapping[str, Any], as_json: bool) -> None:
    files = _files(derivation)
    if as_json:
        kept = ("content_hash", "known", "facts", "accuracy", "findings")
        facts = {key: receipt[key] for key in kept}
        print_json(
            {
                "already_derived": derivation.before,
                **facts,
                "folder": str(derivation.folder),
                "files": files,
            }
        )
        return
    if derivation.before:
        print_pairs([("already derived", f"{derivation.folder}: all files are unchanged")])
    if receipt["known"]:
        print_pairs([("this is", f"{receipt['known']}, a catalogue entry")])
    print_pairs(
        [
            *lines_of(receipt["facts"]),
            *((f"accuracy {dtype}", errors) for dtype, errors in receipt["accuracy"].items()),
            *_relatives(receipt, derivation.folder),
            *(("file", file) for file in files),
        ]
    )


def _relatives(receipt: Mapping[str, Any], folder: Path) -> list[tuple[str, str]]:
    """The closest known activations, three at most."""
    findings = receipt["findings"]
    lines = [("known as", finding["sentence"]) for finding in findings[:_RELATIVES]]
    if len(findings) > _RELATIVES:
        page = folder / f"{receipt['facts']['name']}.html"
        lines.append(("known as", f"and {len(findings) - _RELATIVES} more: {page}"))
    return lines


def _print_plan(derivation: Derivation, as_json: bool) -> None:
    spec, known, files = derivation.spec, derivation.known, _files(derivation)
    if as_json:
        plan = {"spec": to_plain(spec), "content_hash": spec.content_hash, "known": known}
        print_json(
            {
                "already_derived": derivation.before,
                **plan,
                "folder": str(derivation.folder),
                "files": files,
            }
        )
        return
    print_pairs(
        [
            ("name", spec.name),
            *(("gradient", f"{p.formula}   for {p.where}") for p in spec.pieces),
            *(("parameter", p.constraint) for p in spec.parameters),
            ("content hash", spec.content_hash),
            *([("this is", f"{known}, a catalogue entry")] if known else []),
            *([("already derived", str(derivation.folder))] if derivation.before else []),
            *(("would write", file) for file in files if not derivation.before),
        ]
    )
