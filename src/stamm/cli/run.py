"""`stamm run`: execute a recipe in its run folder, or resume it."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import fields
from pathlib import Path

from stamm.align.training.finetune_config import FineTuneJobConfig
from stamm.base.config import from_plain
from stamm.base.errors import ConfigError, StammError
from stamm.base.files import read_json
from stamm.base.units import seconds_text
from stamm.cli.arg_types import count, text
from stamm.cli.output import print_table
from stamm.cli.training_time import corpus_length_of, time_line
from stamm.models.config import DecoderConfig
from stamm.pretrain.config import PretrainConfig, TrainingConfig
from stamm.recipes.catalog import Config
from stamm.recipes.execute import RecipeRun
from stamm.recipes.length import tokens_of_files
from stamm.recipes.resolve import Resolved, resolve
from stamm.recipes.search import Search
from stamm.recipes.study import Study
from stamm.runs.job import Step
from stamm.runs.model_outputs import DECODER

_MOST_STEPS = 24  # more are listed by kind


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
    trains = any(step.job == "pretrain" for step in execution.pending())
    if trains and recipe.is_own and isinstance(recipe.config, Study):
        from stamm.cli.plan import print_study_plan

        print_study_plan(recipe.config, root)
    if options.dry_run:
        return _print_plan(execution, recipe, options.jobs)
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


def _print_plan(execution: RecipeRun, recipe: Resolved, jobs: int) -> int:
    waiting = {step.name for step in execution.pending()}
    if len(execution.steps) > _MOST_STEPS:
        groups = dict[str, list[Step]]()
        for step in execution.steps:
            groups.setdefault(step.name.partition(".")[0], []).append(step)
        rows = [
            [
                f"{name}.*" if steps[1:] else steps[0].name,
                f"{len(steps)}",
                f"{sum(s.name in waiting for s in steps)}",
            ]
            for name, steps in groups.items()
        ]
        print_table(["step", "number", "to do"], rows)
        print(f"\n{len(execution.steps)} steps, in {execution.root}")
    else:
        print_table(
            ["step", "folder", "state"],
            [
                [s.name, str(execution.root / s.folder), "to do" if s.name in waiting else "done"]
                for s in execution.steps
            ],
        )
    left = [step for step in execution.steps if step.name in waiting]
    lines = [] if recipe.is_own else _time_lines(left, recipe.config, execution.root, jobs)
    for line in lines:
        print(line)
    return 0


def _time_lines(steps: list[Step], config: Config, root: Path, jobs: int) -> list[str]:
    """Lines on the time of the training steps that are to do."""
    lines = []
    runs = [step.config for step in steps if isinstance(step.config, PretrainConfig)]
    try:
        lines.append(time_line(((run, _sequences(run, config, root), 1) for run in runs), jobs))
    except StammError:
        lines.append("Training time: not known before the corpus is packed.")
    tuned = [step for step in steps if step.job == "finetune"]
    known = [run for step in tuned if (run := _fine_tuning(step, steps, root)) is not None]
    lines.append(time_line(((run, None, 1) for run in known), jobs))
    if len(known) < len(tuned):
        lines.append(
            f"Fine-tuning time: not known for {len(tuned) - len(known)} of {len(tuned)} steps, before their start model "
            "and data exist."
        )
    return [line for line in lines if line]


def _fine_tuning(step: Step, steps: list[Step], root: Path) -> PretrainConfig | None:
    """A training run of the work of a fine-tuning step; None where its model or data do not exist yet.

    Rows of preferences hold two answers, and the reference policy computes a third of the work again.
    """
    decoder = Path(os.path.normpath(root.absolute() / step.inputs["start"] / DECODER))
    files = [
        path
        for other in steps
        if other.job == "prepare" and other.folder == step.inputs["data"]
        for path in (other.external or {}).values()
    ]
    if not decoder.is_file() or not files or not isinstance(step.config, FineTuneJobConfig):
        return None
    model = from_plain(DecoderConfig, read_json(decoder)["decoder"], str(decoder))
    tokens = tokens_of_files(files) * step.config.epochs
    tokens *= 4 / 3 if "reference" in step.inputs else 1
    sequences = max(round(tokens / step.config.context), step.config.batch[0].size)
    shared = {f.name: getattr(step.config, f.name) for f in fields(TrainingConfig)}
    shared |= {"model": model, "context": step.config.context, "sequences": sequences}
    return PretrainConfig(**shared)


def _sequences(run: PretrainConfig, config: Config, root: Path) -> int | None:
    """Sequences of the packed corpus of a run; None where its own configuration has the length."""
    if run.sequences is not None:
        return None
    whole = config if isinstance(config, Study) else run
    length = corpus_length_of(whole, root)
    return None if length is None else length.sequences(run.context)


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
