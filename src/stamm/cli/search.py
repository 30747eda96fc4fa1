"""`stamm search`: search a family of gradients for something better than the baseline."""

from __future__ import annotations

import argparse

from stamm.base.shutdown import interrupt_delayed
from stamm.base.units import count_text, flops_text
from stamm.cli.output import print_table, print_text
from stamm.cli.run import allow_tokenizer_threads, print_earlier
from stamm.cli.run import arguments as run_arguments
from stamm.cli.training_time import time_line
from stamm.recipes.execute import RecipeRun
from stamm.recipes.search import Search
from stamm.search.families import Proposal

__all__ = ["arguments", "run"]


def arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    """Add the arguments of `search`: those of `run`."""
    run_arguments(parser, verb)


def run(options: argparse.Namespace, verb: str) -> int:
    """Execute or resume the search and print its verdict; with --dry-run print its candidates and runs."""
    with interrupt_delayed():
        from stamm.search.page import SEARCH_PAGE
        from stamm.search.verb import search
    search_folder = search(
        options.recipe,
        *options.changes,
        out=options.out,
        jobs=options.jobs,
        restart=options.restart,
        dry_run=options.dry_run,
        before=_before,
    )
    if options.dry_run:
        _print_plan(search_folder.execution.recipe.config, options.jobs)
        return 0
    sentences = "\n".join(search_folder.record.sentences)
    print(f"\n{sentences}\n\nReport: {search_folder.root / SEARCH_PAGE}")
    return 0


def _before(execution: RecipeRun) -> None:
    print_earlier(execution)
    allow_tokenizer_threads()


def _print_plan(search: Search, jobs: int) -> None:
    from stamm.search.verb import planned_comparisons

    print_table(
        ["candidate", "gradient, or why it is refused"],
        [
            [proposal.name, proposal.refused or _gradient(proposal)]
            for proposal in search.proposals()
        ],
        wrap=True,
    )
    planned = planned_comparisons(search)
    rows = [
        [
            comparison.name,
            comparison.candidates,
            str(comparison.arms),
            str(comparison.runs),
            count_text(comparison.tokens),
            flops_text(comparison.flops),
        ]
        for comparison in planned
    ]
    print()
    header = ["comparison", "candidates", "arms", "runs", "tokens a run", "work"]
    print_table(header, rows, wrap=True)
    print_text(
        "",
        f"{flops_text(sum(comparison.flops for comparison in planned))} of useful work at most, if every candidate passes the screen.",
        time_line(
            ((run, None, times) for comparison in planned for run, times in comparison.timed), jobs
        ),
    )


def _gradient(proposal: Proposal) -> str:
    return (
        "; ".join(f"{p.where}: {p.formula}" for p in proposal.spec.pieces) if proposal.spec else ""
    )
