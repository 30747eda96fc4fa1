"""Execute a recipe in its run folder: each step once, and resume where an earlier start stopped.

`stamm run` and `stamm.run` both call this. Under torchrun, rank 0 executes the steps and the other
ranks join it in those that train.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from pathlib import Path

from stamm.base.config import to_plain
from stamm.base.console import Console, NoProgress, Progress
from stamm.base.errors import ConfigError, StammError
from stamm.base.files import read_json
from stamm.base.shutdown import termination_as_interrupt
from stamm.base.units import seconds_text
from stamm.corpus.held_out import HELD_OUT, check_held_out
from stamm.evaluate.config import EvaluateConfig
from stamm.pretrain.config import MegatronFiles, PretrainConfig
from stamm.recipes.catalog import Branching, Config
from stamm.recipes.jobs import (
    ALL_RANKS,
    SIDE_BY_SIDE,
    WORKER,
    coordinator,
    job,
    megatron_reader,
)
from stamm.recipes.resolve import Resolved, overridden, resolve
from stamm.recipes.run_folder import RunFolder
from stamm.recipes.search import Search
from stamm.recipes.study import MANIFEST, single_steps
from stamm.recipes.unread_settings import Given, check_settings
from stamm.runs.job import Step
from stamm.runs.remaining import seconds_left
from stamm.runs.run import Run, workspace
from stamm.runs.step_pool import StepPool
from stamm.runs.torchrun_env import rank_and_size


def run(
    recipe: str | Config | Callable[[], Config],
    *overrides: str,
    out: str | Path | None = None,
    quiet: bool = False,
    jobs: int = 1,
) -> RunFolder:
    """Execute a recipe and return its run folder.

    A run that is interrupted resumes when the same call is made again; a complete run is returned
    at once.

    recipe      a recipe's name ("demo"), a file with one ("mine.py:small"), a function that returns
                one, or the configuration itself
    overrides   changes as on the command line: "pretrain.sequences=96"
    out         the run folder; by default runs/NAME. Required for a configuration, which has no name
    quiet       no progress on stderr; the run's log/run.log is written either way
    jobs        training runs and evaluations that are executed at the same time, each in a process
                with the threads that it configures; the outputs have the same bits
    Raises      StammError (ConfigError, DataError, RunError ...) with what is wrong and the fix
    """
    resolved = _resolved(recipe, overrides)
    if isinstance(resolved.config, Search):
        raise ConfigError(f"{resolved.name} is a search, of several runs", fix="Use `stamm search`")
    if out is None and isinstance(recipe, Config):
        raise ConfigError("a configuration has no name for its run folder", fix="Pass out=FOLDER")
    root = Path(out or Path("runs") / resolved.name)
    execution = RecipeRun(resolved, root)
    if execution.rank:
        execution.follow()
        return RunFolder(root)
    execution.folder.check()
    execution.execute(quiet=quiet, jobs=jobs)
    return RunFolder(root)


class RecipeRun:
    """One recipe in one run folder.

    folder   the run folder with its manifest and receipts
    steps    everything to be done, in order
    restart  whether the run in the folder will be set aside, so that this one is new
    rank     of this process, and `size`: how many processes torchrun started
    """

    def __init__(self, recipe: Resolved, root: Path, *, restart: bool = False) -> None:
        self._recipe = recipe
        self.root = root
        self.folder = Run(root, recipe.name, recipe.overrides, to_plain(recipe.config))
        self.steps = steps_of(recipe.config, recipe.name, root)
        if restart or not (root / "config.json").exists():
            given = Given(
                config=recipe.config,
                before=recipe.given,
                overrides=recipe.overrides,
                source=recipe.source,
            )
            check_settings(given, lambda config: _all_steps(config, recipe.name, root))
        self.rank, self.size = rank_and_size()
        self._jobs = 1

    def pending(self) -> list[Step]:
        """The steps that are not complete, in order."""
        return self.folder.pending(self.steps)

    def execute(self, *, quiet: bool = False, jobs: int = 1) -> bool:
        """Do the pending steps while holding the folder's lock; False when there were none.

        jobs     training runs and evaluations at the same time, each in a process of its own
        Raises   RunError when another process works in the folder, and what a step raises.
        """
        if jobs > 1 and self.size > 1:
            raise ConfigError(
                f"--jobs {jobs} under torchrun, whose {self.size} processes train one run together",
                fix="Use one of them",
            )
        self._jobs = jobs
        with self.folder.locked():
            self.folder.open()
            if self.folder.state() == "complete" and not self.pending():
                if self.size > 1:
                    coordinator().shutdown()  # the other ranks wait for the first step
                return False
            (self.root / "log").mkdir(exist_ok=True)
            with contextlib.ExitStack() as files:
                log = (self.root / "log" / "run.log").open("a", encoding="utf-8")
                files.enter_context(log)
                stream = files.enter_context(Path(os.devnull).open("w")) if quiet else None
                self._execute(Console(stream, log=log, bar=jobs == 1), quiet)
        return True

    def _execute(self, console: Console, quiet: bool) -> None:
        others = coordinator() if self.size > 1 else None
        current = "the start"

        def announce(number: int, count: int, step: Step) -> str:
            nonlocal current
            current = f"step {step.name}"
            self._check_held_out(step)
            console.prefix = f"[{number}/{count}{self._end()}] "
            if others is not None and step.job in ALL_RANKS:
                others.broadcast(step.name)
            return console.prefix

        try:
            placed = getattr(self._recipe.config, "execution", None)
            with contextlib.ExitStack() as pools:
                if others is None:  # else the training of all ranks ends together
                    pools.enter_context(termination_as_interrupt(lambda: current))
                pool = None
                if self._jobs > 1:
                    pool = StepPool(self._jobs, SIDE_BY_SIDE, WORKER, quiet=quiet)
                    pools.enter_context(pool.opened())
                self.folder.execute(self.steps, job, console, announce, placed, pool)
            if others is not None:
                others.shutdown()
        except StammError as error:
            console.prefix = ""
            console.note(error.line())
            raise
        finally:
            console.close()

    def _check_held_out(self, step: Step) -> None:
        """Raise DataError before a training whose evaluation would find no held-out document."""
        packs = {
            later.inputs["pack"]
            for later in self.steps
            if isinstance(later.config, EvaluateConfig) and "held_out" in later.config.tasks
        }
        if step.job == "pretrain" and (pack := step.inputs.get("pack")) in packs:
            splits = read_json(self.root / str(pack) / MANIFEST)["splits"]
            check_held_out(splits[HELD_OUT]["documents"])

    def _end(self) -> str:
        """When the run is expected to end; "" for a run of few steps, and at its start."""
        times = {one["step"]: float(one["seconds"]) for one in self.folder.receipts()}
        left = seconds_left(self.steps, times)
        if left is None:
            return ""
        left /= self._jobs
        end = datetime.now().astimezone() + timedelta(seconds=left)
        return f", about {seconds_text(left)} left, until {end:%Y-%m-%d %H:%M}"

    def follow(self, progress: Progress | None = None) -> None:
        """Join rank 0 in the steps that all ranks execute; returns when the run ends."""
        others, named = coordinator(), {step.name: step for step in self.steps}
        while name := others.receive():
            step = named[name]
            place = workspace(self.root, step, progress or NoProgress())
            job(step.job)(step.config, place)
        others.shutdown()


def _resolved(recipe: str | Config | Callable[[], Config], overrides: Sequence[str]) -> Resolved:
    if isinstance(recipe, str):
        return resolve(recipe, overrides)
    config = recipe if isinstance(recipe, Config) else recipe()
    if not isinstance(config, Config):
        raise ConfigError(
            f"{type(config).__name__} is not a recipe",
            fix="Pass a recipe's name, a Study, a Comparison, a CorpusRecipe or a PretrainConfig",
        )
    name = type(config).__name__ if isinstance(recipe, Config) else recipe.__name__
    return overridden(name, config, overrides, f"the recipe {name}", "passed to stamm.run")


def steps_of(config: Config, name: str, root: Path) -> tuple[Step, ...]:
    """The steps of a recipe's configuration in the run folder `root`."""
    if isinstance(config, Branching):
        return config.steps(root)
    if not isinstance(config, PretrainConfig):
        return config.steps()
    if config.foreign is not None:
        return single_steps(config, root, config.foreign.inputs(), _foreign_files(config.foreign))
    if not config.pack:
        raise ConfigError(
            f"recipe {name} has no packed corpus to train on",
            fix="Set pack=FOLDER, such as pack=runs/demo/pack, or `stamm plan` it",
        )
    pack = Path(config.pack)
    if not (pack / MANIFEST).is_file():
        raise ConfigError(f"pack = {config.pack} holds no packed corpus", fix="Run a corpus first")
    return single_steps(config, root, {"pack": pack}, [pack / MANIFEST])


def _all_steps(config: Config, name: str, root: Path) -> Iterable[Step]:
    """The steps of a run; of a search those of its comparisons, too, as far as they are known."""
    comparisons = config.comparisons() if isinstance(config, Search) else ()
    return itertools.chain(steps_of(config, name, root), *(one.steps() for one in comparisons))


def _foreign_files(foreign: MegatronFiles) -> list[Path]:
    """Index and tokenizer files, whose content identifies the run's input; checked here.

    The token files are hashed when training starts or resumes, not to find the pending steps.
    """
    reader = megatron_reader()
    paths, tokenizer = [Path(prefix) for prefix in foreign.prefixes], Path(foreign.tokenizer)
    reader.MegatronTokens.open(paths, tokenizer, foreign.end_token)
    return [*(Path(f"{path}.idx") for path in paths), reader.tokenizer_file(tokenizer)]
