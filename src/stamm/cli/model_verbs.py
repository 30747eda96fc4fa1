"""`stamm audit`, `export` and `report`: audit, export or report trained models."""

from __future__ import annotations

import argparse

from stamm.base.shutdown import interrupt_delayed
from stamm.cli.arg_types import add_changes, add_dry_run, check_model_folder, text
from stamm.cli.output import print_text


def arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    """Add the arguments of the verbs."""
    folder = ", or a Hugging Face folder (with passages=FILE)" if verb == "audit" else ""
    results = ", or results of a Hugging Face folder" if verb == "report" else ""
    parser.add_argument(
        "run", type=text, metavar="RUN", help=f"a run folder, or one arm of it{folder}{results}"
    )
    add_changes(parser, "changes to the settings")
    add_dry_run(parser)
    parser.add_argument(
        "--out",
        type=text,
        metavar="PATH",
        help="where to write; with several arms, one folder each (default: inside the run)",
    )


def run(options: argparse.Namespace, verb: str) -> int:
    """Run the verb for the given arm, or for every arm of the given run; print what it wrote."""
    return {"audit": _audit, "export": _export, "report": _report}[verb](options)


def _audit(options: argparse.Namespace) -> int:
    check_model_folder(options.run)
    with interrupt_delayed():
        from stamm.audit.verb import audit
    audits = audit(options.run, *options.changes, out=options.out, dry_run=options.dry_run)
    for arm, folder in audits.places.items():
        print(f"audit {arm} -> {folder}" if options.dry_run else folder)
    return 0


def _export(options: argparse.Namespace) -> int:
    if not options.dry_run:  # a dry run may name a recipe
        check_model_folder(options.run)
    with interrupt_delayed():
        from stamm.export.verb import export
    exports = export(options.run, *options.changes, out=options.out, dry_run=options.dry_run)
    if not options.dry_run:
        for folder in exports.places.values():
            print(folder)
        return 0
    for model in exports.places or exports.plans:
        print(f"export {model}" + (f" -> {exports.places[model]}" if exports.places else ""))
        if model in exports.plans:
            print_text(*exports.plans[model].lines())
    return 0


def _report(options: argparse.Namespace) -> int:
    with interrupt_delayed():
        from stamm.reports.verb import report
    page = report(options.run, *options.changes, out=options.out, dry_run=options.dry_run)
    if page.verdict:
        print(f"{page.verdict}\n")
    print(page.file)
    return 0
