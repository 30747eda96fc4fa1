"""`stamm.search`: execute or resume a search: the screen, then comparison after comparison, each in its own folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from stamm.base.config import assignments
from stamm.base.errors import ConfigError
from stamm.base.schema import read_record, write_record
from stamm.compare.verb import run_flops
from stamm.pretrain.config import PretrainConfig
from stamm.recipes.compare import Comparison
from stamm.recipes.execute import Recipe, RecipeRun, recipe_of_verb, run_root
from stamm.recipes.resolve import Resolved
from stamm.recipes.run_folder import RunFolder
from stamm.recipes.search import Search
from stamm.runs.command_receipts import report_lock, write_command_receipt
from stamm.search.page import SEARCH_PAGE, write_search
from stamm.search.records import (
    PLAN,
    ConfirmationResult,
    RoundResult,
    SearchFile,
    SearchPlanFile,
)
from stamm.search.result import (
    CONFIRM,
    RESULT,
    ROUNDS,
    confirmation_result,
    round_result,
    search_result,
)


class SearchFolder(RunFolder):
    """The folder of a search."""

    @property
    def record(self) -> SearchFile:
        """search.json: its result so far."""
        return read_record(SearchFile, self.root / RESULT)


def search(
    recipe: Recipe,
    *changes: str,
    out: str | os.PathLike[str] | None = None,
    quiet: bool = False,
    jobs: int = 1,
    restart: bool = False,
    dry_run: bool = False,
    before: Callable[[RecipeRun], None] | None = None,
    **settings: Any,
) -> SearchFolder:
    """Execute or resume a search of a family of gradients for something better than the baseline.

        stamm.search("smoke").record.sentences

    recipe      as of `stamm.run`: "smoke" is "search.smoke" here
    dry_run     execute nothing; `planned_comparisons` of `execution.recipe.config` has the costs, and
                its `proposals()` are the candidates
    The other arguments are those of `stamm.run`.

    Raises      StammError with what is wrong and the fix
    """
    resolved = recipe_of_verb(recipe, assignments(changes, settings), "search", Search)
    execution = SearchRun(resolved, run_root(recipe, resolved, out), restart=restart)
    if restart:
        execution.screening.set_aside(dry_run=dry_run)
    if before is not None:
        before(execution.screening)
    if dry_run:
        execution.screening.folder.check()
    else:
        execution.execute(quiet=quiet, jobs=jobs)
    return SearchFolder(execution.root, execution.screening)


@dataclass(frozen=True, kw_only=True)
class PlannedComparison:
    """A planned comparison of a search, with its cost if every candidate passes the screen.

    candidates   text: how many, and how many are kept
    arms, runs   numbers of them
    tokens       of a run
    flops        useful work of all runs
    timed        training runs, and how many of each
    """

    name: str
    candidates: str
    arms: int
    runs: int
    tokens: int
    flops: int
    timed: tuple[tuple[PretrainConfig, int], ...]


def planned_comparisons(config: Search) -> list[PlannedComparison]:
    """The rounds and confirmations of a search."""
    names = [proposal.name for proposal in config.proposals() if proposal.spec is not None]
    planned = []
    for number, search_round in enumerate(config.rounds):
        round_names = names if not number else names[: config.rounds[number - 1].keep]
        candidates = f"up to {len(round_names)}, keeps {search_round.keep}"
        compare = config.round_of(number, round_names)
        planned.append(_planned(f"round {number + 1}", candidates, compare))
    confirmed = (
        _planned(f"confirm {last.name}", "the finalist", last.compare, more=1)
        for last in config.confirm
    )
    return [*planned, *confirmed]


def _planned(name: str, candidates: str, compare: Comparison, more: int = 0) -> PlannedComparison:
    """A comparison whose arms cost what its dearest does, with `more` arms."""
    runs, arms = compare.runs(), len(compare.arms) + more
    run, seeds = runs[compare.baseline], len(compare.seeds)
    trials = max(compare.tuning_of(name).trials(other) for name, other in runs.items())
    short = compare.short(run, compare.tuning.rates[0])
    return PlannedComparison(
        name=name,
        candidates=candidates,
        arms=arms,
        runs=arms * (seeds + trials),
        tokens=run.total_sequences() * run.context,
        flops=arms * (seeds * run_flops(run) + trials * run_flops(short)),
        timed=((run, arms * seeds), (short, arms * trials)),
    )


class SearchRun:
    """A search in a run folder.

    The screen, the timing and the plan are steps of the folder itself; each round and each
    confirmation is a comparison in a folder below it. What is finished is not repeated.

    restart  whether the search in the folder will be set aside, so that this one is new

    Raises   ConfigError under torchrun with several processes, and for a changed search.
    """

    def __init__(self, recipe: Resolved, root: Path, *, restart: bool = False) -> None:
        if not isinstance(recipe.config, Search):
            raise ConfigError(f"{recipe.name} is not a search", fix="`stamm ls recipes` lists them")
        self._recipe, self._search, self.root = recipe, recipe.config, root
        self.screening = RecipeRun(recipe, root, restart=restart)
        self._jobs = 1
        if self.screening.size > 1:
            raise ConfigError(
                "a search is one process", fix="Start it without torchrun; its runs are small"
            )

    def execute(self, *, quiet: bool = False, jobs: int = 1) -> SearchFile:
        """Execute the unfinished steps; the result. Page and search.json are written after each part.

        jobs     training runs and evaluations at the same time
        """
        self._jobs = jobs
        self.screening.folder.check()
        self.screening.execute(quiet=quiet)
        plan = read_record(SearchPlanFile, self.root / "plan" / PLAN)
        names = [candidate.name for candidate in plan.candidates]
        rounds: list[RoundResult] = []
        confirmations: list[ConfirmationResult] = []
        result = self._written(rounds, confirmations)
        references = {arm.name for arm in self._search.compare.arms}
        for number, keep in enumerate(plan.rounds):
            if not names:
                return result
            subfolder = f"{ROUNDS}/{number + 1}"
            self._compare(subfolder, self._search.round_of(number, names), quiet)
            rounds.append(round_result(self.root / subfolder, subfolder, keep, tuple(references)))
            names = [candidate.name for candidate in rounds[-1].ranking if candidate.kept]
            result = self._written(rounds, confirmations)
        if not names:
            return result
        for number, confirmation in enumerate(self._search.confirm):
            subfolder = f"{CONFIRM}/{confirmation.name}"
            self._compare(subfolder, self._search.confirmation(number, names[0]), quiet)
            outcome = confirmation_result(self.root / subfolder, confirmation.name, names[0])
            confirmations.append(outcome)
            result = self._written(rounds, confirmations)
        return result

    def _compare(self, subfolder: str, comparison: Comparison, quiet: bool) -> None:
        title = f"{self._recipe.name}: {subfolder.replace('/', ' ')}"
        titled = replace(comparison, report=replace(self._search.report, title=title))
        run = RecipeRun(
            Resolved(f"{self._recipe.name}.{subfolder}", titled, (), titled), self.root / subfolder
        )
        run.folder.check()
        run.execute(quiet=quiet, jobs=self._jobs)

    def _written(
        self, rounds: list[RoundResult], confirmations: list[ConfirmationResult]
    ) -> SearchFile:
        result = search_result(self.root, rounds, confirmations, len(self._search.confirm))
        with report_lock(self.root):
            write_record(self.root / RESULT, SearchFile, asdict(result))
            write_command_receipt(self.root, "search", [self.root / RESULT])
            return write_search(self.root, self.root / SEARCH_PAGE, self._search.report)
