"""`stamm run`: execute a recipe in its run folder, or resume it."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from stamm.base.errors import ConfigError
from stamm.base.units import seconds_text
from stamm.cli.arg_types import count, text
from stamm.cli.output import print_table
from stamm.recipes.execute import RecipeRun
from stamm.recipes.resolve import resolve
from stamm.recipes.search import Search
from stamm.recipes.study import Study


def arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    """Add the arguments of `run`."""
    parser.add_argument("recipe", type=text, help="a recipe's name, or a Python file with one")
    parser.add_argument(
        "changes",
        type=text,
        nargs="*",
        default=[],
        metavar="key=value",
        help="changes to the recipe",
    )
    parser.add_argument(
        "--out", type=text, metavar="FOLDER", help="the run folder (default: runs/RECIPE)"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print the steps and their state, run nothing"
    )
    parser.add_argument(
        "--restart",
        action="store_true",
        help="set an earlier run in the folder aside, as FOLDER.before-1, and start from the beginning",
    )
    parser.add_argument(
        "--jobs",
        type=count,
        default=1,
        metavar="N",
        help="training runs and evaluations at the same time (default: 1); the same bits with any number",
    )


def run(options: argparse.Namespace, verb: str) -> int:
    """Execute the recipe, then print its result and the path of its report."""
    recipe = resolve(options.recipe, options.changes)
    if isinstance(recipe.config, Search):
        raise ConfigError(
            f"{recipe.name} is a search, of several runs", fix=f"`stamm search {options.recipe}`"
        )
    root = Path(options.out or Path("runs") / recipe.name)
    execution = RecipeRun(recipe, root, restart=options.restart)
    if execution.rank:
        if not options.dry_run:
            execution.follow()
        return 0
    if options.restart:
        _set_aside(execution, options)
    execution.folder.check()
    is_planned = recipe.is_own and any(step.job == "pretrain" for step in execution.pending())
    if is_planned and isinstance(recipe.config, Study):
        from stamm.cli.plan import print_study_plan

        print_study_plan(recipe.config, root)
    if options.dry_run:
        return _print_plan(execution)
    allow_tokenizer_threads()
    if execution.execute(jobs=options.jobs):
        spent = sum(receipt["seconds"] for receipt in execution.folder.receipts())
        print(f"{root} is complete: {len(execution.steps)} steps, {seconds_text(spent)}.")
    else:
        print(f"{root} is complete: nothing to do.")
    return _print_result(root)


def _set_aside(execution: RecipeRun, options: argparse.Namespace) -> None:
    if execution.size > 1:
        raise ConfigError(
            "--restart under torchrun, which gives it again when it restarts its processes",
            fix="Move the folder away yourself",
        )
    if options.dry_run:
        raise ConfigError("--restart with --dry-run, which writes nothing", fix="Use one of them")
    earlier = execution.folder.set_aside()
    if earlier is not None:
        print(f"The run that was in {execution.root} is in {earlier} now.")


def allow_tokenizer_threads() -> None:
    """Let tokenizers use threads; it warns when a process that used them forks, unless this is set."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")


def _print_plan(execution: RecipeRun) -> int:
    waiting = {step.name for step in execution.pending()}
    rows = [
        [
            step.name,
            str(execution.root / step.folder),
            "to do" if step.name in waiting else "done",
        ]
        for step in execution.steps
    ]
    print_table(["step", "folder", "state"], rows)
    return 0


def _print_result(root: Path) -> int:
    report = root / "report.html"
    from stamm.reports.comparison import is_comparison

    if is_comparison(root):
        from stamm.reports.comparison_job import PAGE, judgement_in

        sys.stdout.write(f"\n{judgement_in(root).text()}\n\n")
        report = root / PAGE
    elif (root / "arms").is_dir():
        from stamm.reports.verdict import verdict

        sys.stdout.write(f"\n{verdict(root).text()}\n\n")
        if (root / "corpus").is_dir():
            from stamm.reports.corpus_result import corpus_result

            sys.stdout.write(f"{corpus_result(root)}\n\n")
        for folder in sorted(root.glob("arms/*/export/*/")):
            print(f"Export: {folder}")
    elif (root / "charter").is_dir():
        from stamm.reports.judge_section import judge_section

        found = judge_section(root)
        sys.stdout.write(f"\n{found.text()}\n\n" if found else "")
    elif report.is_file():
        from stamm.reports.corpus_result import corpus_result

        sys.stdout.write(f"\n{corpus_result(root)}\n\n")
    if report.is_file():
        print(f"Report: {report}")
    return 0
