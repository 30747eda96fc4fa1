"""`stamm derive`: turn a gradient into a module, a kernel, a certificate, golden vectors and a page."""

from __future__ import annotations

import argparse
import dataclasses
import os
import shlex
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from stamm.activations import catalog
from stamm.activations.cache import register_kernel_source, store_kernel_source
from stamm.activations.catalog.load import STORED, check_name_free, load_spec
from stamm.activations.cost import cost
from stamm.activations.describe import describe_spec
from stamm.activations.spec import Spec
from stamm.activations.spec.checks import unused_parameters
from stamm.activations.spec.command_line import CONTINUITIES, known_entry, spec_from_arguments
from stamm.base.config import to_plain
from stamm.base.console import Console
from stamm.base.errors import ConfigError, visible
from stamm.base.files import write_json, write_text
from stamm.cli import derived_folder
from stamm.cli.activation_show import is_file, lines_of
from stamm.cli.arg_types import count, text
from stamm.cli.output import print_json, print_pairs

_RELATIVES = 3  # known activations that are printed; the page has all
_STATED = ("parameter", "anchor", "continuity", "gated")


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
    """Derive the activation, unless the folder already holds it."""
    for flag in ("name", "out"):
        if getattr(options, flag) == "":
            raise ConfigError(f"--{flag} '' is empty", fix="Omit the flag, or give a value")
    spec, known = _stated(options)
    folder = Path("derived") / spec.name if options.out is None else _place(options.out)
    if not options.dry_run:
        derived_folder.recover(folder)
    receipt = derived_folder.intact(folder, spec)
    derived_before = receipt is not None and not options.force
    if not derived_before:
        derived_folder.check_writable(folder)
        derived_folder.check_replaceable(folder, spec.name, force=options.force)
    if options.dry_run:
        _print_plan(options, spec, known, folder, derived_before)
        return 0
    if receipt is None or options.force:
        receipt = _derive(spec, known, folder, _command(options), options.cpu_seconds)
    _print_result(options, receipt, folder, derived_before)
    return 0


def _place(out: str) -> Path:
    """The output folder; raises early when it contains the working directory."""
    folder, here = Path(os.path.realpath(out)), Path.cwd().resolve()
    if folder == here or folder in here.parents:
        raise ConfigError(
            f"--out {out!r} is the working directory or contains it",
            where="set on the command line",
            fix="Name a new folder",
        )
    return folder if Path(out).name == ".." else Path(out)


def _stated(options: argparse.Namespace) -> tuple[Spec, str | None]:
    """The spec, and the name of the catalogue entry with the same definition."""
    references = [word for word in options.things if _is_reference(word)]
    if references:
        given = [name for name in _STATED if getattr(options, name) is not None]
        if len(options.things) > 1 or given:
            other = f"--{given[0]}" if given else "another THING"
            raise ConfigError(
                f"{references[0]!r} is a complete spec; {other} cannot be combined with it",
                fix="Change the spec, or give the pieces on the command line",
            )
        spec = load_spec(references[0])
        spec = replace(spec, name=options.name) if options.name else spec
    else:
        spec = spec_from_arguments(
            options.things,
            options.parameter or (),
            name=options.name or "",
            anchor=options.anchor if options.anchor is not None else "0=0",
            continuity=options.continuity or "continuous",
            gated=options.gated,
        )
    unused = unused_parameters(spec)
    if unused:
        raise ConfigError(
            f"the parameter {unused[0]!r} is used in no formula",
            where=spec.where,
            fix="Leave it out",
        )
    known = known_entry(spec, catalog.ENTRIES)
    if known is not None and spec.name in (known.name, *known.aliases):
        spec = known  # same definition and name: the entry itself
    check_name_free(spec, catalog.ENTRIES)
    derived_folder.check_module_name(spec.name)
    return spec, known.name if known else None


def _is_reference(word: str) -> bool:
    path = word.partition(":")[0]
    named = any(word in (spec.name, *spec.aliases) for spec in catalog.ENTRIES)
    return named or path.endswith(".py") or word.endswith(".json") or is_file(word, STORED)


class _Stages:
    """Progress of a derivation: one numbered line per stage."""

    TOTAL = 8

    def __init__(self, name: str) -> None:
        self._log, self._name, self._done = Console().log, name, 0

    def next(self, stage: str) -> None:
        """Report the next stage."""
        self._done += 1
        self._log(f"[{self._done}/{self.TOTAL}] {self._name}: {stage}")


class _TimeUpError(BaseException):
    """The CPU time is used up. Not an Exception: SymPy catches those and continues."""


@contextmanager
def _limited(spec: Spec, seconds: int) -> Iterator[None]:
    """Ends the work inside after `seconds` of CPU time of this process.

    Raises   ConfigError that names the gradient and how to allow more.
    """

    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise _TimeUpError

    before = signal.signal(signal.SIGPROF, stop)
    # Again each 5 s: what is raised in a callback of C code is lost.
    signal.setitimer(signal.ITIMER_PROF, seconds, 5.0)
    try:
        yield
    except _TimeUpError:
        stated = "; ".join(f"{piece.where}: {piece.formula}" for piece in spec.pieces)
        raise ConfigError(
            f"{visible(stated, 200)!r} was not derived in {seconds:,} s of CPU time, and nothing is written",
            where=spec.where,
            fix="State the gradient in another form, on two pieces, or with its known integral; "
            f"or allow more time: --cpu-seconds {10 * seconds}",
        ) from None
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)


def _derive(
    spec: Spec, known: str | None, folder: Path, command: str, seconds: int
) -> dict[str, Any]:
    stages = _Stages(spec.name)
    stages.next("load SymPy and torch")
    from stamm.activations.certificates.certificate import certify
    from stamm.activations.codegen.kernel import kernel_source
    from stamm.activations.codegen.write import texts
    from stamm.activations.conformance.acceptance import accepted, accuracy_texts, check_formulas
    from stamm.activations.conformance.golden import write_golden
    from stamm.activations.conformance.judge import table_sentences
    from stamm.activations.derivation.derive import derive, exact_formulas
    from stamm.activations.derivation.formulas import refused_in_one_line
    from stamm.activations.equivalence.detect import rediscover
    from stamm.models.torch_module import torch_source
    from stamm.reports.activation_page import activation_page

    with _limited(spec, seconds), refused_in_one_line(spec, "derived"):
        stages.next("integrate the gradient")
        exact_formulas(spec)
        stages.next("find numerically stable forms")
        derived = derive(spec)
        kernel = kernel_source(derived, "stamm derive")
        register_kernel_source(spec.content_hash, kernel)
        stages.next("compare with the integral at every exponent of float32")
        check_formulas(spec)
        stages.next("measure the accuracy in bfloat16, float16 and float32")
        verdict = accepted(spec)
        store_kernel_source(spec.content_hash, kernel)
        stages.next("certify")
        certificate = certify(derived)
        stages.next(f"compare with {len(catalog.ENTRIES)} known activations")
        findings = rediscover(spec)
        sentences = [finding.sentence(spec.name) for finding in findings]
        facts = {
            **describe_spec(spec, texts(derived)),
            "table": list(table_sentences(derived)),
            "cost": cost(spec, kernel),
            "certificate": certificate,
        }
        receipt = {
            "content_hash": spec.content_hash,
            "command": command,
            "known": known,
            "facts": facts,
            "accuracy": accuracy_texts(verdict),
            "findings": [
                {**dataclasses.asdict(f), "sentence": f.sentence(spec.name)} for f in findings
            ],
        }
    with refused_in_one_line(spec, "derived"):
        stages.next("write the page, the module and the golden vectors")
        with derived_folder.replaced(folder, receipt) as place:
            write_json(place / STORED, to_plain(spec))
            write_text(place / derived_folder.KERNEL, kernel)
            write_text(place / f"{spec.name}.py", derived_folder.module_source(spec, kernel))
            write_text(place / f"{spec.name}_torch.py", torch_source(spec, kernel))
            write_json(place / derived_folder.CERTIFICATE, certificate)
            page = activation_page(
                spec,
                facts,
                certificate=certificate,
                verdict=to_plain(verdict),
                findings=sentences,
                command=command,
            )
            write_text(place / f"{spec.name}.html", page)
            write_text(place / derived_folder.README, derived_folder.readme_text(spec, command))
            write_golden(spec, place / derived_folder.GOLDEN)
        return receipt


def _print_result(
    options: argparse.Namespace, receipt: dict[str, Any], folder: Path, before: bool
) -> None:
    files = [str(folder / name) for name in derived_folder.file_names(receipt["facts"]["name"])]
    if options.json:
        kept = ("content_hash", "known", "facts", "accuracy", "findings")
        found = {key: receipt[key] for key in kept}
        print_json({"already_derived": before, **found, "folder": str(folder), "files": files})
        return
    if before:
        print_pairs([("already derived", f"{folder}: all files are unchanged")])
    if receipt["known"]:
        print_pairs([("this is", f"{receipt['known']}, a catalogue entry")])
    print_pairs(
        [
            *lines_of(receipt["facts"]),
            *((f"accuracy {dtype}", errors) for dtype, errors in receipt["accuracy"].items()),
            *_relatives(receipt, folder),
            *(("file", file) for file in files),
        ]
    )


def _relatives(receipt: dict[str, Any], folder: Path) -> list[tuple[str, str]]:
    """The closest known activations, three at most."""
    findings = receipt["findings"]
    lines = [("known as", finding["sentence"]) for finding in findings[:_RELATIVES]]
    if len(findings) > _RELATIVES:
        page = folder / f"{receipt['facts']['name']}.html"
        lines.append(("known as", f"and {len(findings) - _RELATIVES} more: {page}"))
    return lines


def _print_plan(
    options: argparse.Namespace, spec: Spec, known: str | None, folder: Path, before: bool
) -> None:
    files = [str(folder / name) for name in derived_folder.file_names(spec.name)]
    if options.json:
        plan = {"spec": to_plain(spec), "content_hash": spec.content_hash, "known": known}
        print_json({"already_derived": before, **plan, "folder": str(folder), "files": files})
        return
    print_pairs(
        [
            ("name", spec.name),
            *(("gradient", f"{p.formula}   for {p.where}") for p in spec.pieces),
            *(("parameter", p.constraint) for p in spec.parameters),
            ("content hash", spec.content_hash),
            *([("this is", f"{known}, a catalogue entry")] if known else []),
            *([("already derived", str(folder))] if before else []),
            *(("would write", file) for file in files if not before),
        ]
    )


def _command(options: argparse.Namespace) -> str:
    """The command line that repeats this derivation."""
    words = ["stamm", "derive", *options.things]
    for flag in ("name", "anchor", "continuity", "gated", "out"):
        value = getattr(options, flag)
        words += [f"--{flag}", str(value)] if value is not None else []
    for declared in options.parameter or ():
        words += ["--parameter", declared]
    return shlex.join(words)
