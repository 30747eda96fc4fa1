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
from typing import Any

from stamm.base.config import assignments, to_plain
from stamm.base.console import Console, NoProgress, Progress
from stamm.base.errors import ConfigError, StammError
from stamm.base.files import read_json
from stamm.base.processor import use_portable_code
from stamm.base.shutdown import termination_as_interrupt
from stamm.base.units import seconds_text
from stamm.corpus.ledger import HELD_OUT, check_held_out
from stamm.evaluate.config import EvaluateConfig
from stamm.pretrain.config import MegatronFiles, PretrainConfig
from stamm.recipes.catalog import RECIPES, Branching, Config
from stamm.recipes.compare import Comparison
from stamm.recipes.jobs import WORKER, coordinator, job, loaded
from stamm.recipes.resolve import Resolved, overridden, resolve
from stamm.recipes.run_folder import RunFolder
from stamm.recipes.search import Search
from stamm.recipes.step_kinds import STEP_KINDS
from stamm.recipes.study import MANIFEST, single_steps
from stamm.recipes.unread_settings import Given, check_settings
from stamm.runs.job import Step
from stamm.runs.remaining import seconds_left
from stamm.runs.run import Run, workspace
from stamm.runs.step_pool import StepPool
from stamm.runs.torchrun_env import rank_and_size

Recipe = str | os.PathLike[str] | Config | Callable[[], Config]


def run(
    recipe: Recipe,
    *changes: str,
    out: str | os.PathLike[str] | None = None,
    quiet: bool = False,
    jobs: int = 1,
    restart: bool = False,
    dry_run: bool = False,
    before: Callable[[RecipeRun], None] | None = None,
    **settings: Any,
) -> RunFolder:
    """Execute a recipe and return its run folder.

    A run that is interrupted resumes when the same call is made again; a complete run is returned
    at once.

    recipe      a recipe's name ("demo"), a file with one ("mine.py:small"), a function that returns
                one, or the configuration itself
    changes, settings   as on the command line: "pretrain.sequences=96", or pack="runs/demo/pack"
    out         the run folder; by default runs/NAME. Required for a configuration, which has no name
    quiet       no progress on stderr; the run's log/run.log is written either way
    jobs        training runs and evaluations that are executed at the same time, each in a process
                with the threads that it configures; the outputs have the same bits
    restart     set an earlier run in the folder aside, and start from the beginning
    dry_run     execute nothing: `execution` of the result has the steps, and `pending()`
    before      is called with the run before its first step, in rank 0
    Raises      StammError (ConfigError, DataError, RunError ...) with what is wrong and the fix
    """
    resolved = resolved_recipe(recipe, assignments(changes, settings))
    if isinstance(resolved.config, Search):
        named = f" {recipe}" if isinstance(recipe, str | os.PathLike) else ""
        raise ConfigError(
            f"{resolved.name} is a search, of several runs", fix=f"`stamm search{named}`"
        )
    root = run_root(recipe, resolved, out)
    return run_resolved(
        resolved, root, quiet=quiet, jobs=jobs, restart=restart, dry_run=dry_run, before=before
    )


def run_resolved(
    recipe: Resolved,
    root: Path,
    *,
    quiet: bool = False,
    jobs: int = 1,
    restart: bool = False,
    dry_run: bool = False,
    before: Callable[[RecipeRun], None] | None = None,
) -> RunFolder:
    """Execute a recipe whose overrides are applied; the arguments are those of `run`.

    root    the run folder
    Raises  StammError as `run`
    """
    execution = RecipeRun(recipe, root, restart=restart)
    if execution.rank:
        if not dry_run:
            execution.follow()
        return RunFolder(root, execution)
    if restart:
        execution.set_aside(dry_run=dry_run)
    execution.folder.check()
    if before is not None:
        before(execution)
    if not dry_run:
        execution.execute(quiet=quiet, jobs=jobs)
    return RunFolder(root, execution)


def run_root(recipe: Recipe, resolved: Resolved, out: str | os.PathLike[str] | None) -> Path:
    """The run folder: `out`, or runs/NAME of a recipe with a name.

    Raises   ConfigError for a configuration, which has no name.
    """
    if out is None and isinstance(recipe, Config):
        raise ConfigError("a configuration has no name for its run folder", fix="Pass out=FOLDER")
    return Path(out or Path("runs") / resolved.name)


class RecipeRun:
    """One recipe in one run folder.

    folder   the run folder with its manifest and receipts
    steps    everything to be done, in order
    restart  whether the run in the folder will be set aside, so that this one is new
    earlier  where that is then; None where there was none
    executed whether `execute` had steps to do
    rank     of this process, and `size`: how many processes torchrun started
    """

    def __init__(self, recipe: Resolved, root: Path, *, restart: bool = False) -> None:
        self.recipe = recipe
        self.earlier: Path | None = None
        self.executed = False
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

    def set_aside(self, *, dry_run: bool) -> None:
        """Rename the folder of an earlier run; `earlier` is its new path.

        Raises   ConfigError under torchrun, and in a dry run.
        """
        if self.size > 1:
            raise ConfigError(
                "--restart under torchrun, which gives it again when it restarts its processes",
                fix="Move the folder away yourself",
            )
        if dry_run:
            raise ConfigError(
                "--restart with --dry-run, which writes nothing", fix="Use one of them"
            )
        self.earlier = self.folder.set_aside()

    def pending(self) -> list[Step]:
        """The steps that are not complete, in order."""
        return self.folder.pending(self.steps)

    def execute(self, *, quiet: bool = False, jobs: int = 1) -> bool:
        """Execute the pending steps while holding the folder's lock; False when there were none.

        jobs     training runs and evaluations at the same time, each in a process of its own
        Raises   RunError when another process works in the folder, and what a step raises.
        """
        if jobs > 1 and self.size > 1:
            raise ConfigError(
                f"--jobs {jobs} under torchrun, whose {self.size} processes train one run together",
                fix="Use one of them",
            )
        self._jobs = jobs
        # Of finished steps, too: after an interruption the others have the environment that they would have had.
        use_portable_code(
            *map(to_plain, (self.recipe.config, *(step.config for step in self.steps)))
        )
        with self.folder.locked():
            self.folder.open()
            if self.folder.state() == "complete" and not self.pending():
                if self.size > 1:
                    coordinator().shutdown()  # the other ranks wait for the first step
                return False
            (self.root / "log").mkdir(exist_ok=True)
            self.executed = True
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
            if others is not None and STEP_KINDS[step.job].all_ranks:
                others.broadcast(step.name)
            return console.prefix

        try:
            placed = getattr(self.recipe.config, "execution", None)
            with contextlib.ExitStack() as pools:
                if others is None:  # else the training of all ranks ends together
                    pools.enter_context(termination_as_interrupt(lambda: current))
                pool = None
                if self._jobs > 1:
                    kinds = frozenset(
                        step_kind.kind
                        for step_kind in STEP_KINDS.values()
                        if step_kind.side_by_side
                    )
                    pool = StepPool(self._jobs, kinds, WORKER, quiet=quiet)
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
        times = {receipt["step"]: float(receipt["seconds"]) for receipt in self.folder.receipts()}
        remaining = seconds_left(self.steps, times)
        if remaining is None:
            return ""
        remaining /= self._jobs
        end = datetime.now().astimezone() + timedelta(seconds=remaining)
        return f", about {seconds_text(remaining)} left, until {end:%Y-%m-%d %H:%M}"

    def follow(self, progress: Progress | None = None) -> None:
        """Join rank 0 in the steps that all ranks execute; returns when the run ends."""
        others, named = coordinator(), {step.name: step for step in self.steps}
        while name := others.receive():
            step = named[name]
            step_workspace = workspace(self.root, step, progress or NoProgress())
            job(step.job)(step.config, step_workspace)
        others.shutdown()


def resolved_recipe(recipe: Recipe, overrides: Sequence[str]) -> Resolved:
    """The recipe with its overrides.

    Raises   ConfigError as `resolve`, and for what is not a recipe.
    """
    if isinstance(recipe, str | os.PathLike):
        return resolve(os.fspath(recipe), overrides)
    config = recipe if isinstance(recipe, Config) else recipe()
    if not isinstance(config, Config):
        raise ConfigError(
            f"{type(config).__name__} is not a recipe",
            fix="Pass a recipe's name, a Study, a Comparison, a CorpusRecipe or a PretrainConfig",
        )
    name = type(config).__name__ if isinstance(recipe, Config) else recipe.__name__
    return overridden(name, config, overrides, f"the recipe {name}", "passed to stamm.run")


def recipe_of_verb(
    recipe: Recipe, overrides: Sequence[str], verb: str, kind: type[Comparison | Search]
) -> Resolved:
    """The recipe of a verb, with its overrides: "smoke" of `stamm compare` is compare.smoke.

    Raises   ConfigError as `resolved_recipe`, and for a recipe of another kind.
    """
    names = [known.name for known in RECIPES if known.name.startswith(f"{verb}.")]
    if isinstance(recipe, str | os.PathLike):
        word = os.fspath(recipe)
        recipe = f"{verb}.{word}" if f"{verb}.{word}" in names else word
    resolved = resolved_recipe(recipe, overrides)
    if not isinstance(resolved.config, kind):
        raise ConfigError(
            f"{recipe if isinstance(recipe, str) else resolved.name} is not a {kind.__name__.lower()}",
            fix=f"Known: {', '.join(names)}; or a Python file with a {kind.__name__}",
        )
    return resolved


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
    return itertools.chain(
        steps_of(config, name, root), *(comparison.steps() for comparison in comparisons)
    )


def _foreign_files(foreign: MegatronFiles) -> list[Path]:
    """Index and tokenizer files, whose content identifies the run's input; checked here.

    The token files are hashed when training starts or resumes, not to find the pending steps.
    """
    reader = loaded("stamm.corpus.megatron_dataset")
    paths, tokenizer = [Path(prefix) for prefix in foreign.prefixes], Path(foreign.tokenizer)
    reader.MegatronTokens.open(paths, tokenizer, foreign.end_token)
    return [*(Path(f"{path}.idx") for path in paths), reader.tokenizer_file(tokenizer)]
