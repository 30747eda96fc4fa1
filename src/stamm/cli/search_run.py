"""Execute a search: the screen, then comparison after comparison, each resumable in its own folder."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

from stamm.base.errors import ConfigError
from stamm.base.schema import read_record, write_record
from stamm.recipes.compare import Comparison
from stamm.recipes.execute import RecipeRun
from stamm.recipes.resolve import Resolved
from stamm.recipes.search import Search
from stamm.reports.search_page import SEARCH_PAGE, write_search
from stamm.reports.search_result import (
    CONFIRM,
    RESULT,
    ROUNDS,
    confirmation_result,
    round_result,
    search_result,
)
from stamm.runs.command_receipts import write_command_receipt
from stamm.runs.schemas.search import (
    PLAN,
    ConfirmationResult,
    RoundResult,
    SearchFile,
    SearchPlanFile,
)


class SearchRun:
    """A search in a run folder.

    The screen, the timing and the plan are steps of the folder itself; each round and each
    confirmation is a comparison in a folder below it. What is finished is not repeated.

    Raises   ConfigError under torchrun with several processes, and for a changed search.
    """

    def __init__(self, recipe: Resolved, root: Path) -> None:
        if not isinstance(recipe.config, Search):
            raise ConfigError(f"{recipe.name} is not a search", fix="`stamm ls recipes` lists them")
        self._recipe, self._search, self.root = recipe, recipe.config, root
        self.screening = RecipeRun(recipe, root)
        self._jobs = 1
        if self.screening.size > 1:
            raise ConfigError(
                "a search is one process", fix="Start it without torchrun; its runs are small"
            )

    def execute(self, *, quiet: bool = False, jobs: int = 1) -> SearchFile:
        """Do what is left, and return the result. The page and search.json are written after each part.

        jobs     training runs and evaluations at the same time
        """
        self._jobs = jobs
        self.screening.folder.check()
        self.screening.execute(quiet=quiet)
        plan = read_record(SearchPlanFile, self.root / "plan" / PLAN)
        names = [one.name for one in plan.candidates]
        rounds: list[RoundResult] = []
        confirmations: list[ConfirmationResult] = []
        result = self._written(rounds, confirmations)
        references = {arm.name for arm in self._search.compare.arms}
        for number, keep in enumerate(plan.rounds):
            if not names:
                return result
            place = f"{ROUNDS}/{number + 1}"
            self._compare(place, self._search.round_of(number, names), quiet)
            rounds.append(round_result(self.root / place, place, keep, tuple(references)))
            names = [one.name for one in rounds[-1].ranking if one.kept]
            result = self._written(rounds, confirmations)
        if not names:
            return result
        for number, one in enumerate(self._search.confirm):
            place = f"{CONFIRM}/{one.name}"
            self._compare(place, self._search.confirmation(number, names[0]), quiet)
            found = confirmation_result(self.root / place, one.name, names[0])
            confirmations.append(found)
            result = self._written(rounds, confirmations)
        return result

    def _compare(self, place: str, comparison: Comparison, quiet: bool) -> None:
        title = f"{self._recipe.name}: {place.replace('/', ' ')}"
        titled = replace(comparison, report=replace(self._search.report, title=title))
        run = RecipeRun(
            Resolved(f"{self._recipe.name}.{place}", titled, (), titled), self.root / place
        )
        run.folder.check()
        run.execute(quiet=quiet, jobs=self._jobs)

    def _written(
        self, rounds: list[RoundResult], confirmations: list[ConfirmationResult]
    ) -> SearchFile:
        result = search_result(self.root, rounds, confirmations, len(self._search.confirm))
        write_record(self.root / RESULT, SearchFile, asdict(result))
        write_command_receipt(self.root, "search", [self.root / RESULT])
        return write_search(self.root, self.root / SEARCH_PAGE, self._search.report)
