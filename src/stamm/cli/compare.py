"""`stamm compare`: execute or resume a comparison and print its verdict."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from stamm.base.shutdown import interrupt_delayed
from stamm.base.units import bytes_text, flops_text
from stamm.cli import run as running
from stamm.cli.output import print_table, print_text
from stamm.models.flops import count_parameters
from stamm.pretrain.config import PretrainConfig
from stamm.recipes.compare import Comparison
from stamm.recipes.matching import EqualTime, output_deviation


def arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    """Add the arguments of `compare`: those of `run`."""
    running.arguments(parser, verb)


def run(options: argparse.Namespace, verb: str) -> int:
    """Execute the comparison and print its verdict; with --dry-run print its runs and their cost.

    With folders of finished comparisons: print their differences by size, with a fitted trend.
    """
    with interrupt_delayed():
        from stamm.compare.verb import compare
    if (Path(options.recipe) / "config.json").is_file():
        from stamm.compare.sizes import COLUMNS, trends

        points = compare(options.recipe, *options.changes).sizes
        print_table(list(COLUMNS), [list(point.cells()) for point in points])
        print_text(*trends(points))
        return 0
    execution = running.execute(compare, options)
    if options.dry_run and execution is not None:
        assert isinstance(execution.recipe.config, Comparison)
        print()
        _print_cost(execution.recipe.config)
    return 0


def _print_cost(config: Comparison) -> None:
    from stamm.compare.verb import arm_costs, power_lines

    costs = arm_costs(config)
    seeds = len(config.seeds)
    rows = [
        [
            arm.name,
            f"{arm.run.model.ffn.spec.name} {arm.run.model.ffn.width}",
            f"{count_parameters(arm.run.model).total:,}",
            f"{arm.trials} of {_length(arm.short)}" if arm.trials else "none",
            f"{seeds} of {_length(arm.run)}",
            flops_text(arm.flops),
        ]
        for arm in costs
    ]
    print_table(
        ["arm", "feed-forward", "parameters", "tuning runs", "seed runs", "work"], rows, wrap=True
    )
    print_text(
        "",
        f"{sum(arm.trials + seeds for arm in costs)} runs, {flops_text(sum(arm.flops for arm in costs))} of useful work, "
        f"{bytes_text(sum(arm.disk for arm in costs))} of checkpoints and models.",
        *_output_deviations({arm.name: arm.run for arm in costs}),
        *power_lines(config),
    )
    if isinstance(config.matched, EqualTime):
        print_text(
            f"Run lengths other than {config.baseline}'s are set after step times are measured (step "
            "pace); this table assumes equal step times."
        )


def _output_deviations(runs: Mapping[str, PretrainConfig]) -> list[str]:
    """The standard deviations of the outputs of feed-forward blocks at the start, in one line."""
    deviations = {name: output_deviation(run.model) for name, run in runs.items()}
    shown = [f"{name} {value:.3g}" for name, value in deviations.items() if value is not None]
    if not shown:
        return []
    return [
        f"Standard deviation of a feed-forward block's output at the start: {', '.join(shown)}."
    ]


def _length(run: PretrainConfig) -> str:
    total = run.total_sequences()
    steps = run.batches(total).num_steps
    return f"{steps:,} steps"
