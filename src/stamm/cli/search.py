"""`stamm search`: search a family of gradients for something better than the baseline."""

from __future__ import annotations

import argparse
from pathlib import Path

from stamm.base.errors import ConfigError
from stamm.base.units import count_text, flops_text
from stamm.cli.compare import run_flops
from stamm.cli.output import print_table
from stamm.cli.run import allow_tokenizer_threads
from stamm.cli.run import arguments as run_arguments
from stamm.cli.training_time import time_line
from stamm.pretrain.config import PretrainConfig
from stamm.recipes.catalog import RECIPES
from stamm.recipes.compare import Comparison
from stamm.recipes.resolve import resolve
from stamm.recipes.search import Search
from stamm.search.families import Proposal

_PREFIX = "search."
__all__ = ["arguments", "run"]


def arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    """Add the arguments of `search`: those of `run`."""
    run_arguments(parser, verb)


def run(options: argparse.Namespace, verb: str) -> int:
    """Execute or resume the search and print its verdict; with --dry-run print its candidates and runs."""
    known = {recipe.name for recipe in RECIPES}
    word = _PREFIX + options.recipe if _PREFIX + options.recipe in known else options.recipe
    recipe = resolve(word, options.changes)
    if not isinstance(recipe.config, Search):
        names = [one.name for one in RECIPES if one.name.startswith(_PREFIX)]
        raise ConfigError(
            f"{options.recipe} is not a search",
            fix=f"Known: {', '.join(names)}; or a Python file with a Search",
        )
    root = Path(options.out or Path("runs") / recipe.name)
    from stamm.cli.search_run import SearchRun
    from stamm.reports.search_page import SEARCH_PAGE

    search = SearchRun(recipe, root)
    if options.dry_run:
        search.screening.folder.check()
        _print_plan(recipe.config, options.jobs)
        return 0
    allow_tokenizer_threads()
    result = search.execute(jobs=options.jobs)
    print("\n" + "\n".join(result.sentences) + f"\n\nReport: {root / SEARCH_PAGE}")
    return 0


def _print_plan(search: Search, jobs: int) -> None:
    found = search.proposals()
    print_table(
        ["candidate", "gradient, or why it is refused"],
        [[one.name, one.refused or _gradient(one)] for one in found],
    )
    names = [one.name for one in found if one.spec is not None]
    rows, total, timed = [], 0, list[tuple[PretrainConfig, None, int]]()
    for number, one in enumerate(search.rounds):
        left = names if not number else names[: search.rounds[number - 1].keep]
        cells, work, runs = _cost(search.round_of(number, left))
        timed += runs
        rows.append([f"round {number + 1}", f"up to {len(left)}, keeps {one.keep}", *cells])
        total += work
    for last in search.confirm:
        cells, work, runs = _cost(last.compare, more=1)
        timed += runs
        rows.append([f"confirm {last.name}", "the finalist", *cells])
        total += work
    print()
    print_table(["comparison", "candidates", "arms", "runs", "tokens a run", "work"], rows)
    print(f"\n{flops_text(total)} of useful work at most, if every candidate passes the screen.")
    print(time_line(timed, jobs))


def _gradient(one: Proposal) -> str:
    return "; ".join(f"{p.where}: {p.formula}" for p in one.spec.pieces) if one.spec else ""


def _cost(
    compare: Comparison, more: int = 0
) -> tuple[list[str], int, list[tuple[PretrainConfig, None, int]]]:
    """Cells of a comparison, whose arms cost what its baseline does, its FLOPs and its runs; `more` arms."""
    run, arms = compare.runs()[compare.baseline], len(compare.arms) + more
    tuning, seeds = compare.tuning, len(compare.seeds)
    tokens = run.total_sequences() * run.context
    short = compare.short(run, tuning.rates[0])
    work = arms * (seeds * run_flops(run) + tuning.trials * run_flops(short))
    runs = f"{arms * (seeds + tuning.trials)}"
    timed = [(run, None, arms * seeds), (short, None, arms * tuning.trials)]
    return [str(arms), runs, count_text(tokens), flops_text(work)], work, timed
