"""`stamm evaluate`: evaluate runs, their checkpoints, and Hugging Face folders; compare two models."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from stamm.base.errors import visible
from stamm.base.shutdown import interrupt_delayed
from stamm.cli.arg_types import add_changes, add_dry_run, check_model_folder, text
from stamm.cli.output import print_json, print_table

if TYPE_CHECKING:
    from stamm.evaluate.verb import Evaluation


def arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    """Add the arguments of the verb."""
    parser.add_argument(
        "run",
        type=text,
        metavar="RUN_OR_FOLDER",
        help="a run folder, one arm of it, or a Hugging Face folder",
    )
    add_changes(
        parser, "tasks=hellaswag,mine.jsonl, task_folder, shots, chat, checkpoints=all and others"
    )
    parser.add_argument(
        "--against",
        type=text,
        metavar="RUN_OR_FOLDER",
        help="evaluate this model too, and compare on the same items",
    )
    parser.add_argument(
        "--out",
        type=text,
        metavar="PATH",
        help="results of a Hugging Face folder (default: evaluations/NAME)",
    )
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    add_dry_run(parser)


def run(options: argparse.Namespace, verb: str) -> int:
    """Evaluate, then print the table of results and the folders that hold them."""
    check_model_folder(options.run)
    with interrupt_delayed():
        from stamm.evaluate.verb import evaluate
    evaluation = evaluate(
        options.run,
        *options.changes,
        against=options.against,
        out=options.out,
        dry_run=options.dry_run,
    )
    if options.dry_run:
        for model, folder in evaluation.folders.items():
            print(f"{verb} {model} -> {folder}")
    elif evaluation.checkpoints:
        for curves in dict.fromkeys(folder.parent for folder in evaluation.folders.values()):
            print(curves)
    elif options.json:
        print_json(_plain(evaluation))
    else:
        _print(evaluation)
    return 0


def _plain(evaluation: Evaluation) -> dict[str, Any]:
    plain: Callable[[Any], Any] = asdict
    return {
        "folders": {str(model): str(folder) for model, folder in evaluation.folders.items()},
        "tasks": {
            str(model): [plain(task) for task in tasks] for model, tasks in evaluation.tasks.items()
        },
        "differences": [
            {"against": pair.against, "model": pair.model, **plain(task)}
            for pair in evaluation.differences
            for task in pair.tasks
        ],
        "not_compared": [
            {"against": pair.against, "model": pair.model, "task": task, "reason": reason}
            for pair in evaluation.differences
            for task, reason in pair.not_compared.items()
        ],
    }


def _print(evaluation: Evaluation) -> None:
    from stamm.evaluate.task_comparison import difference_table
    from stamm.evaluate.task_results import task_tables

    tables = task_tables([(str(model), tasks) for model, tasks in evaluation.tasks.items()])
    pairs = [(pair.against, pair.model, pair.tasks) for pair in evaluation.differences]
    for table in (
        tables.results,
        tables.metrics,
        tables.fairness,
        tables.sources,
        tables.groups,
        difference_table(pairs),
    ):
        if table is not None:
            print_table(table.columns, table.rows)
            print(f"{table.note}\n" if table.note else "")
    for pair in evaluation.differences:
        for task, reason in pair.not_compared.items():
            print(visible(f"Not compared: {task}, {pair.model} against {pair.against}: {reason}."))
    for folder in evaluation.folders.values():
        print(folder)
