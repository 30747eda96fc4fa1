"""`stamm run`: execute a recipe in its run folder, or resume it."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

from stamm.align.training.config import FineTuneJobConfig
from stamm.base.config import from_plain
from stamm.base.errors import StammError
from stamm.base.files import read_json
from stamm.base.units import seconds_text
from stamm.cli.arg_types import count, text
from stamm.cli.output import print_table, print_text
from stamm.cli.training_time import corpus_length_of, time_line
from stamm.models.config import DecoderConfig
from stamm.models.model_source import find_model
from stamm.pretrain.config import PretrainConfig, TrainingConfig
from stamm.recipes.catalog import Config
from stamm.recipes.execute import RecipeRun
from stamm.recipes.execute import run as run_recipe
from stamm.recipes.jobs import loaded
from stamm.recipes.length import tokens_of_files
from stamm.recipes.resolve import Resolved
from stamm.recipes.run_folder import RunFolder
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
    execute(run_recipe, options)
    return 0


def execute(function: Callable[..., Any], options: argparse.Namespace) -> RecipeRun | None:
    """Execute a recipe with a function that takes the arguments of `stamm.run`, and print its result.

    Returns  the run; None in a process that is not rank 0, which prints nothing
    """
    run_folder: RunFolder = function(
        options.recipe,
        *options.changes,
        out=options.out,
        jobs=options.jobs,
        restart=options.restart,
        dry_run=options.dry_run,
        before=_print_before,
    )
    execution: RecipeRun = run_folder.execution
    if execution.rank:
        return None
    root = execution.root
    if options.dry_run:
        _print_plan(execution, execution.recipe, options.jobs)
        return execution
    if execution.executed:
        spent = sum(receipt["seconds"] for receipt in execution.folder.receipts())
        print(f"{root} is complete: {len(execution.steps)} steps, {seconds_text(spent)}.")
    else:
        print(f"{root} is complete: nothing to do.")
    _print_result(root)
    return execution


def _print_before(execution: RecipeRun) -> None:
    """Print where an earlier run is, and the plan of a study of the user's own text."""
    print_earlier(execution)
    trains = any(step.job == "pretrain" for step in execution.pending())
    recipe = execution.recipe
    if trains and recipe.is_own and isinstance(recipe.config, Study):
        from stamm.cli.plan import print_study_plan

        print_study_plan(recipe.config, execution.root)
    allow_tokenizer_threads()


def print_earlier(execution: RecipeRun) -> None:
    """Print where the run is that --restart set aside."""
    if execution.earlier is not None:
        print(f"The earlier run in {execution.root} was moved to {execution.earlier}.")


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
    pending = [step for step in execution.steps if step.name in waiting]
    if not recipe.is_own:
        print_text(*_time_lines(pending, recipe.config, execution.root, jobs))
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
            "or data exist."
        )
    if any(step.job == "grpo" for step in steps):
        lines.append(
            "Fine-tuning time of GRPO: not known before its first step, since the model samples its answers."
        )
    return [line for line in lines if line]


def _fine_tuning(step: Step, steps: list[Step], root: Path) -> PretrainConfig | None:
    """A training run of the work of a fine-tuning step; None where its model or data do not exist yet.

    Rows of preferences hold two answers, and the reference policy computes a third of the work again.
    """
    model = _decoder_of(step.inputs["start"], steps, root)
    files = [
        path
        for other in steps
        if other.job == "prepare" and other.folder == step.inputs["data"]
        for path in (other.external or {}).values()
    ]
    if model is None or not files or not isinstance(step.config, FineTuneJobConfig):
        return None
    tokens = tokens_of_files(files) * step.config.epochs
    tokens *= 4 / 3 if "reference" in step.inputs else 1
    sequences = max(round(tokens / step.config.context), step.config.batch[0].size)
    shared = {f.name: getattr(step.config, f.name) for f in fields(TrainingConfig)}
    shared |= {"model": model, "context": step.config.context, "sequences": sequences}
    return PretrainConfig(**shared)


def _decoder_of(folder: str, steps: list[Step], root: Path) -> DecoderConfig | None:
    """The decoder of a model folder: a stored one, or what a step that is to do will write there.

    An import writes the decoder that config.json of its folder describes, fine-tuning that of its
    start model. None where no such step is known.
    """
    model = Path(os.path.normpath(root.absolute() / folder))
    if (model / DECODER).is_file():
        return from_plain(
            DecoderConfig, read_json(model / DECODER)["decoder"], str(model / DECODER)
        )
    for step in steps:
        if folder != f"{step.folder}/model":
            continue
        if step.job == "import_model":
            source = Path(os.path.normpath(root.absolute() / step.inputs["source"]))
            decoder: DecoderConfig = loaded("stamm.models.loading").config_of(find_model(source))
            return decoder
        if "start" in step.inputs:
            return _decoder_of(step.inputs["start"], steps, root)
    return None


def _sequences(run: PretrainConfig, config: Config, root: Path) -> int | None:
    """Sequences of the packed corpus of a run; None where its own configuration has the length."""
    if run.sequences is not None:
        return None
    whole = config if isinstance(config, Study) else run
    length = corpus_length_of(whole, root)
    return None if length is None else length.sequences(run.context)


def _print_result(root: Path) -> int:
    report = root / "report.html"
    from stamm.compare.results import is_comparison

    if is_comparison(root):
        from stamm.compare.job import PAGE, judgement_in

        sys.stdout.write(f"\n{judgement_in(root).text()}\n\n")
        report = root / PAGE
    elif (root / "arms").is_dir():
        from stamm.align.section import alignment_verdict
        from stamm.compare.section import study_verdict
        from stamm.runs.run_view import open_view

        result = alignment_verdict(open_view(root)) or study_verdict(root)
        sys.stdout.write(f"\n{result.text()}\n\n")
        if (root / "corpus").is_dir():
            from stamm.corpus.page.result import corpus_result

            sys.stdout.write(f"{corpus_result(root)}\n\n")
        for folder in sorted(root.glob("arms/*/export/*/")):
            print(f"Export: {folder}")
    elif (root / "charter").is_dir():
        from stamm.align.page.judge import judge_section

        section = judge_section(root)
        sys.stdout.write(f"\n{section.text()}\n\n" if section else "")
    elif report.is_file():
        from stamm.corpus.page.result import corpus_result

        sys.stdout.write(f"\n{corpus_result(root)}\n\n")
        from stamm.recipes.replay import next_commands

        for command in next_commands(root):
            print(f"Next: {command}")
    if report.is_file():
        print(f"Report: {report}")
    return 0
