"""`stamm compare`: execute or resume a comparison and print its verdict."""

from __future__ import annotations

import argparse

from stamm.base.errors import ConfigError
from stamm.base.units import bytes_text, count_text, flops_text
from stamm.cli import run as running
from stamm.cli.output import print_table
from stamm.engine.estimate import checkpoint_bytes
from stamm.models.flops import count_parameters, training_flops
from stamm.pretrain.config import PretrainConfig
from stamm.recipes.catalog import RECIPES
from stamm.recipes.compare import Comparison
from stamm.recipes.matching import EqualTime
from stamm.recipes.resolve import resolve
from stamm.reports.intervals import widest
from stamm.runs.torchrun_env import rank_and_size

_PREFIX = "compare."


def arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    """Add the arguments of `compare`: those of `run`."""
    running.arguments(parser, verb)


def run(options: argparse.Namespace, verb: str) -> int:
    """Execute the comparison and print its verdict; with --dry-run print its runs and their cost."""
    options.recipe = _comparison_named(options.recipe)
    recipe = resolve(options.recipe, options.changes)
    if not isinstance(recipe.config, Comparison):
        raise ConfigError(
            f"{options.recipe} is not a comparison",
            fix=f"Known: {', '.join(_known())}; or a Python file with a Comparison",
        )
    rank, _ = rank_and_size()
    if options.dry_run and not rank:
        _print_cost(recipe.config)
    return running.run(options, verb)


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
        flops = trials * _work(short) + seeds * _work(run)
        work += flops
        disk += _disk(run, seeds) + _disk(short, trials)
        rows.append(
            [
                name,
                f"{run.model.ffn.spec.name} {run.model.ffn.width}",
                f"{count_parameters(run.model).total:,}",
                f"{trials} of {_length(short)}",
                f"{seeds} of {_length(run)}",
                flops_text(flops),
            ]
        )
    print_table(["arm", "feed-forward", "parameters", "tuning runs", "seed runs", "work"], rows)
    print(
        f"\n{len(rows) * (trials + seeds)} runs, {flops_text(work)} of useful work, "
        f"{bytes_text(disk)} of checkpoints and models."
    )
    first = widest(len(rows) - 1, seeds, config.confidence)
    last = widest(1, seeds, config.confidence)
    print(
        f"With {seeds} seeds the largest of {len(rows) - 1} differences is significant from "
        f"{first:.1f} standard deviations between seeds on, a single one from {last:.1f}."
    )
    if isinstance(config.matched, EqualTime):
        print(
            f"Run lengths other than {config.baseline}'s are set after step times are measured (step "
            "pace); this table assumes equal step times."
        )
    print()


def _length(run: PretrainConfig) -> str:
    total = run.total_sequences()
    steps = run.batches(total).num_steps
    return f"{steps:,} steps, {count_text(total * run.context)} tokens"


def _work(run: PretrainConfig) -> int:
    return run.total_sequences() * training_flops(run.model, run.context)


def _disk(run: PretrainConfig, times: int) -> int:
    """Bytes written by `times` runs: kept checkpoints, the one before the decay, and the model."""
    steps = run.batches(run.total_sequences()).num_steps
    kept = min(run.engine.keep_checkpoints, -(-steps // run.engine.checkpoint_every)) + 1
    model = 4 * count_parameters(run.model).total
    return times * (kept * checkpoint_bytes(run.model, run.optimizer) + model)
