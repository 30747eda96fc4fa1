"""`stamm run`: do a recipe in its run folder, or go on with it."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from stamm.base.config import to_plain
from stamm.base.console import Console, NoProgress
from stamm.base.errors import ConfigError, StammError
from stamm.base.units import seconds_text
from stamm.cli.arg_types import text
from stamm.cli.jobs import TOGETHER, job
from stamm.cli.output import print_table
from stamm.cli.recipe import Resolved, resolve
from stamm.pretrain.config import ForeignFiles, PretrainConfig
from stamm.recipes.catalog import Branching
from stamm.recipes.study import MANIFEST, single_steps
from stamm.runs.executors import Execution
from stamm.runs.job import Step
from stamm.runs.run import Run, workspace
from stamm.runs.torchrun_env import rank_and_size

if TYPE_CHECKING:
    from stamm.engine.coordinator import Crew


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
    rank, size = rank_and_size()
    if rank:
        return 0 if options.dry_run else _follow(root, steps)
    folder.check()
    if options.dry_run:
        return _say_plan(folder, steps)
    with folder.locked():
        folder.open()
        if folder.state() == "complete" and not folder.pending(steps):
            if size > 1:
                _crew().part()  # the others wait to be told
            print(f"{root} is complete: nothing to do.")
            return _say_result(root)
        # tokenizers warns when a process that used its threads forks, unless it was told.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
        (root / "log").mkdir(exist_ok=True)
        with (root / "log" / "run.log").open("a", encoding="utf-8") as log:
            execution = getattr(recipe.config, "execution", None)
            _execute(folder, steps, Console(log=log), execution, together=size > 1)
    spent = sum(receipt["seconds"] for receipt in folder.receipts())
    print(f"{root} is complete: {len(steps)} steps, {seconds_text(spent)}.")
    return _say_result(root)


def _execute(
    folder: Run,
    steps: tuple[Step, ...],
    console: Console,
    execution: Execution | None,
    *,
    together: bool,
) -> None:
    crew = _crew() if together else None

    def announce(number: int, count: int, step: Step) -> None:
        console.prefix = f"[{number}/{count}] "
        if crew is not None and step.job in TOGETHER:
            crew.call(step.name)

    try:
        folder.execute(steps, job, console, announce, execution)
        if crew is not None:
            crew.part()
    except StammError as error:
        console.prefix = ""
        console.note(error.line())
        raise
    finally:
        console.close()


def _follow(root: Path, steps: tuple[Step, ...]) -> int:
    """What every process but the first does: join it in the steps that are done together."""
    crew, named = _crew(), {step.name: step for step in steps}
    while name := crew.hear():
        job(named[name].job)(named[name].config, workspace(root, named[name], NoProgress()))
    crew.part()
    return 0


def _crew() -> Crew:
    from stamm.engine.coordinator import Crew

    return Crew()


def _steps(recipe: Resolved, root: Path) -> tuple[Step, ...]:
    config = recipe.config
    if isinstance(config, Branching):
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
    from stamm.corpus.megatron_dataset import ForeignTokens, tokenizer_file

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
    from stamm.reports.comparison import is_comparison

    if is_comparison(root):
        from stamm.reports.comparison_job import PAGE, judgement_in

        sys.stdout.write(f"\n{judgement_in(root).text()}\n\n")
        report = root / PAGE
    elif (root / "arms").is_dir():
        from stamm.reports.verdict import verdict

        sys.stdout.write(f"\n{verdict(root).text()}\n\n")
    elif report.is_file():
        from stamm.reports.corpus_result import corpus_result

        sys.stdout.write(f"\n{corpus_result(root)}\n\n")
    if report.is_file():
        print(f"Report: {report}")
    return 0
