"""`stamm compare`: execute or resume a comparison and print its verdict."""

from __future__ import annotations

import argparse
from pathlib import Path

from stamm.base.errors import ConfigError
from stamm.base.units import bytes_text, count_text, flops_text
from stamm.cli import run as running
from stamm.cli.output import print_table
from stamm.engine.estimate import checkpoint_bytes
from stamm.models.flops import count_parameters
from stamm.pretrain.config import PretrainConfig
from stamm.recipes.catalog import RECIPES
from stamm.recipes.compare import Comparison
from stamm.recipes.matching import EqualTime, training_work
from stamm.recipes.resolve import resolve
from stamm.reports.power import MOST_SEEDS, POWER, Spread, detectable, seeds_needed
from stamm.runs.torchrun_env import rank_and_size

_PREFIX = "compare."
_LARGE = 2.0  # standard deviations; more is a plan with too few seeds
_MORE = (8, 16, 32)


def arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    """Add the arguments of `compare`: those of `run`."""
    running.arguments(parser, verb)


def run(options: argparse.Namespace, verb: str) -> int:
    """Execute the comparison and print its verdict; with --dry-run print its runs and their cost.

    With folders of finished comparisons: print their differences by size, with a fitted trend.
    """
    if (Path(options.recipe) / "config.json").is_file():
        return _print_sizes([Path(folder) for folder in (options.recipe, *options.changes)])
    options.recipe = _comparison_named(options.recipe)
    recipe = resolve(options.recipe, options.changes)
    if not isinstance(recipe.config, Comparison):
        raise ConfigError(
            f"{options.recipe} is not a comparison",
            fix=f"Known: {', '.join(_known())}; or a Python file with a Comparison",
        )
    code = running.run(options, verb)
    rank, _ = rank_and_size()
    if options.dry_run and not rank:
        print()
        _print_cost(recipe.config)
    return code


def _print_sizes(folders: list[Path]) -> int:
    from stamm.reports.comparison_sizes import COLUMNS, size_points, trends

    points = size_points(folders)
    print_table(list(COLUMNS), [list(point.cells()) for point in points])
    for line in trends(points):
        print(line)
    return 0


def _known() -> list[str]:
    return [recipe.name for recipe in RECIPES if recipe.name.startswith(_PREFIX)]


def _comparison_named(word: str) -> str:
    """Recipe name for `word`: "smoke" means compare.smoke here."""
    return _PREFIX + word if _PREFIX + word in _known() else word


def _print_cost(config: Comparison) -> None:
    rows, work, disk = [], 0, 0
    trials, seeds = config.tuning.trials, len(config.seeds)
    for name, run in config.runs().items():
        short = config.short(run, config.tuning.rates[0])
        flops = trials * run_flops(short) + seeds * run_flops(run)
        work += flops
        disk += _disk(run, seeds) + _disk(short, trials)
        rows.append(
            [
                name,
                f"{run.model.ffn.spec.name} {run.model.ffn.width}",
                f"{count_parameters(run.model).total:,}",
                f"{trials} of {_length(short)}" if trials else "none",
                f"{seeds} of {_length(run)}",
                flops_text(flops),
            ]
        )
    print_table(["arm", "feed-forward", "parameters", "tuning runs", "seed runs", "work"], rows)
    print(
        f"\n{len(rows) * (trials + seeds)} runs, {flops_text(work)} of useful work, "
        f"{bytes_text(disk)} of checkpoints and models."
    )
    for line in power_lines(config):
        print(line)
    if isinstance(config.matched, EqualTime):
        print(
            f"Run lengths other than {config.baseline}'s are set after step times are measured (step "
            "pace); this table assumes equal step times."
        )


def power_lines(config: Comparison) -> list[str]:
    """Lines on the difference that the plan shows, and on the seeds that `config.difference` needs."""
    looks, others = config.planned_looks(), len(config.arms) - 1
    units = detectable(looks, others, config.confidence)
    family = f"after Holm over {others} comparisons" if others > 1 else "in one comparison"
    planned = f"{looks[-1]} seeds" + (
        f", looks after {', '.join(map(str, looks))}" if looks[1:] else ""
    )
    said = [
        f"With {planned}, a difference of {units:.2f} standard deviations of the paired difference is "
        f"shown with power {POWER:g} {family}."
    ]
    if units > _LARGE:
        more = [(n, detectable((n,), others, config.confidence)) for n in _MORE if n > looks[-1]]
        shown = "; ".join(f"{n} seeds show {least:.1f}" for n, least in more)
        said[0] += f" {looks[-1]} seeds are few: {shown}."
    spread = _spread(config)
    if spread is None:
        said.append(
            "The standard deviation is not known: name a pilot, pilot=FOLDER (a comparison)."
        )
        return said
    said.append(
        f"Pilot {config.pilot}: {spread.value:.4f} bits per byte over {spread.seeds} seeds (95 % interval "
        f"{spread.low:.4f} to {spread.high:.4f}), so the plan shows {units * spread.value:.4f} "
        f"({units * spread.low:.4f} to {units * spread.high:.4f})."
    )
    if config.difference is not None:
        counts = [
            seeds_needed(config.difference / deviation, looks, others, config.confidence)
            for deviation in (spread.value, spread.low, spread.high)
        ]
        needed, low, high = (f"more than {MOST_SEEDS:,}" if n is None else f"{n:,}" for n in counts)
        tokens = config.pretrain.total_sequences() * config.pretrain.context * (counts[0] or 0)
        cost = f", {count_text(tokens)} tokens of each arm" if tokens else ""
        said.append(
            f"A difference of {config.difference:g} needs {needed} seeds ({low} to {high}){cost}."
        )
    return said


def _spread(config: Comparison) -> Spread | None:
    if not config.pilot:
        return None
    from stamm.reports.comparison_plan import pilot_spread

    return pilot_spread(config.pilot, config.baseline, [arm.name for arm in config.arms])


def _length(run: PretrainConfig) -> str:
    total = run.total_sequences()
    steps = run.batches(total).num_steps
    return f"{steps:,} steps"


def run_flops(run: PretrainConfig) -> int:
    """Useful work of a training run, in FLOPs."""
    sequences, batch = run.total_sequences(), run.batch[0].size
    return round(training_work(run.model, run.context, sequences // batch, batch))


def _disk(run: PretrainConfig, times: int) -> int:
    """Bytes written by `times` runs: kept checkpoints, the one before the decay, and the model."""
    steps = run.batches(run.total_sequences()).num_steps
    kept = min(run.engine.keep_checkpoints, -(-steps // run.engine.checkpoint_every)) + 1
    model = 4 * count_parameters(run.model).total
    return times * (kept * checkpoint_bytes(run.model, run.optimizer) + model)
