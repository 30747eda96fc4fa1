"""`stamm run`: do a recipe in its run folder, or go on with it."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from stamm.base.config import to_plain
from stamm.base.console import Console
from stamm.base.errors import ConfigError, StammError
from stamm.base.units import seconds_text
from stamm.cli.jobs import job
from stamm.cli.output import print_table
from stamm.cli.recipe import Resolved, resolve
from stamm.cli.words import text
from stamm.corpus.foreign import ForeignTokens, tokenizer_file
from stamm.pretrain.config import ForeignFiles, PretrainConfig
from stamm.recipes.replay import ReplayRecipe
from stamm.recipes.study import MANIFEST, single_steps
from stamm.runs.execution import Execution
from stamm.runs.job import Step
from stamm.runs.run import Run


def arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    """The flags of `run`."""
    parser.add_argument("recipe", type=text, help="a recipe's name, or a Python file with one")
    parser.add_argument(
        "changes", type=text, nargs="*", metavar="key=value", help="changes to the recipe"
    )
    parser.add_argument(
        "--out", type=text, metavar="FOLDER", help="the run folder (default: runs/RECIPE)"
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, do nothing")


def run(options: argparse.Namespace, verb: str) -> int:
    """Do the recipe; say where the report is and what it found."""
    recipe = resolve(options.recipe, options.changes)
    root = Path(options.out or Path("runs") / recipe.name)
    folder = Run(root, recipe.name, recipe.overrides, to_plain(recipe.config))
    steps = _steps(recipe, root)
    folder.check()
    if options.dry_run:
        return _say_plan(folder, steps)
    with folder.locked():
        folder.open()
        if folder.state() == "complete" and not folder.pending(steps):
            print(f"{root} is complete: nothing to do.")
            return _say_result(root)
        # tokenizers warns when a process that used its threads forks, unless it was told.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
        (root / "log").mkdir(exist_ok=True)
        with (root / "log" / "run.log").open("a", encoding="utf-8") as log:
            _execute(folder, steps, Console(log=log), getattr(recipe.config, "execution", None))
    spent = sum(receipt["seconds"] for receipt in folder.receipts())
    print(f"{root} is complete: {len(steps)} steps, {seconds_text(spent)}.")
    return _say_result(root)


def _execute(
    folder: Run, steps: tuple[Step, ...], console: Console, execution: Execution | None = None
) -> None:
    def announce(number: int, count: int, step: Step) -> None:
        console.prefix = f"[{number}/{count}] "

    try:
        folder.execute(steps, job, console, announce, execution)
    except StammError as error:
        console.prefix = ""
        console.note(error.line())
        raise
    finally:
        console.close()


def _steps(recipe: Resolved, root: Path) -> tuple[Step, ...]:
    config = recipe.config
    if isinstance(config, ReplayRecipe):
        return config.steps(root)
    if not isinstance(config, PretrainConfig):
        return config.steps()
    if config.foreign is not None:
        return single_steps(config, root, config.foreign.inputs(), _foreign_files(config.foreign))
    if not config.pack:
        raise ConfigError(
            f"recipe {recipe.name} has no packed corpus to train on",
            fix="Set pack=FOLDER, such as pack=runs/demo/pack, or `stamm plan` it",
        )
    pack = Path(config.pack)
    if not (pack / MANIFEST).is_file():
        raise ConfigError(f"pack = {config.pack} holds no packed corpus", fix="Run a corpus first")
    return single_steps(config, root, {"pack": pack}, [pack / MANIFEST])


def _foreign_files(foreign: ForeignFiles) -> list[Path]:
    """The indices and the tokenizer: what says whether a run is begun anew. Refused when broken.

    The tokens themselves are hashed when training starts or goes on, not to see what is to do.
    """
    paths, tokenizer = [Path(prefix) for prefix in foreign.prefixes], Path(foreign.tokenizer)
    ForeignTokens.open(paths, tokenizer, foreign.end_token)
    return [*(Path(f"{path}.idx") for path in paths), tokenizer_file(tokenizer)]


def _say_plan(folder: Run, steps: tuple[Step, ...]) -> int:
    waiting = {step.name for step in folder.pending(steps)}
    rows = [
        [step.name, str(folder.root / step.folder), "to do" if step.name in waiting else "done"]
        for step in steps
    ]
    print_table(["step", "folder", "state"], rows)
    return 0


def _say_result(root: Path) -> int:
    report = root / "report.html"
    if (root / "arms").is_dir():
        from stamm.reports.verdict import verdict

        sys.stdout.write(f"\n{verdict(root).text()}\n\n")
    elif report.is_file():
        from stamm.reports.corpus_result import corpus_result

        sys.stdout.write(f"\n{corpus_result(root)}\n\n")
    if report.is_file():
        print(f"Report: {report}")
    return 0
