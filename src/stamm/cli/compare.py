"""`stamm compare`: execute or resume a comparison and print its verdict."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from stamm.base.errors import ConfigError, visible
from stamm.base.files import sha256_file, write_json
from stamm.base.shutdown import interrupt_delayed
from stamm.base.units import bytes_text, flops_text
from stamm.cli import run as running
from stamm.cli.output import print_table, print_text
from stamm.models.flops import count_parameters
from stamm.pages.text import one_line
from stamm.pretrain.config import PretrainConfig
from stamm.recipes.compare import Comparison
from stamm.recipes.matching import EqualTime, output_deviation
from stamm.statistics.estimates import MeanInterval

SAMPLES, PREDICT = "samples", "predict="


def arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    """Add the arguments of `compare`: those of `run`."""
    running.arguments(parser, verb)


def run(options: argparse.Namespace, verb: str) -> int:
    """Execute the comparison and print its verdict; with --dry-run print its runs and their cost.

    With folders of finished comparisons: print their differences by size, with a fitted trend.
    With "samples" and two logs of another evaluation tool: print the differences of their items.
    """
    if options.recipe == SAMPLES and not Path(SAMPLES).exists():
        return _compare_samples(options)
    with interrupt_delayed():
        from stamm.compare.verb import compare
    if (Path(options.recipe) / "config.json").is_file():
        from stamm.compare.sizes import COLUMNS, trends

        wanted = [word for word in options.changes if word.startswith(PREDICT)]
        _check_flags(options, out=bool(wanted))
        if wanted:
            return _predict(options, wanted)
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


def _check_flags(options: argparse.Namespace, *, out: bool = False) -> None:
    """Raise ConfigError for a flag of a recipe where none is executed; --out is read where `out`."""
    flags = {
        "--out": options.out and not out,
        "--dry-run": options.dry_run,
        "--restart": options.restart,
        "--jobs": options.jobs > 1,
    }
    given = [flag for flag, is_given in flags.items() if is_given]
    if given:
        raise ConfigError(
            f"{', '.join(given)} is not read here: no recipe is executed", fix="Leave it out"
        )


def _predict(options: argparse.Namespace, wanted: Sequence[str]) -> int:
    """Print losses at a point that was not run; with --out write them, to be measured afterwards."""
    from stamm.compare.prediction import point_of
    from stamm.compare.verb import compare

    if len(wanted) > 1:
        raise ConfigError("predict is set twice", fix="Set it once")
    parameters, tokens = point_of(wanted[0].removeprefix(PREDICT))
    others = [word for word in options.changes if word not in wanted]
    prediction = compare(options.recipe, *others).predict(parameters, tokens)
    print_table(
        ("arm", "bits per byte", "95 %", f"minus {prediction.baseline}", "95 %", "E", "alpha", "beta", "residual"),
        [
            (
                one_line(arm.arm, 40), f"{arm.loss.mean:.4f}", _ends(arm.loss),
                "" if arm.difference is None else f"{arm.difference.mean:+.4f}",
                "" if arm.difference is None else _ends(arm.difference),
                f"{arm.law.floor:.3f}", f"{arm.law.parameter_power:.3f}", f"{arm.law.token_power:.3f}",
                f"{arm.residual:.4f}",
            )
            for arm in prediction.arms
        ],
        wrap=True,
    )  # fmt: skip
    print_text(
        "",
        f"Fitted to {len(prediction.comparisons)} comparisons by E + A / N^alpha + B / D^beta; intervals over seeds, if that law holds.",
    )
    if options.out:
        path = Path(options.out)
        write_json(path, asdict(prediction))
        print_text(f"{path}  SHA-256 {sha256_file(path)}")
    return 0


def _ends(interval: MeanInterval) -> str:
    return f"{interval.low:.4f} to {interval.high:.4f}"


def _compare_samples(options: argparse.Namespace) -> int:
    from stamm.evaluate.log_comparison import compare_samples

    _check_flags(options)
    places = [word for word in options.changes if "=" not in word]
    settings = dict(word.split("=", 1) for word in options.changes if "=" in word)
    unknown = [name for name in settings if name not in ("metric", "cluster")]
    if len(places) != 2 or unknown:
        raise ConfigError(
            f"{', '.join(unknown)} is not read here"
            if unknown
            else f"{len(places)} logs are named",
            fix="stamm compare samples FIRST SECOND [metric=NAME] [cluster=FIELD]",
        )
    report = compare_samples(places[0], places[1], **settings)
    print_table(
        ("task", "metric", "first", "second", "difference", "± 95 %", "p, Holm", "shown", "smallest shown", "items"),
        [
            (
                one_line(row.task, 60), one_line(row.metric, 60), f"{row.first:.4f}", f"{row.second:.4f}",
                f"{row.difference:+.4f}", f"{row.half_width:.4f}", f"{row.adjusted:.3g}",
                "yes" if row.is_shown else "no",
                "nothing" if row.smallest is None else f"{row.smallest:.4f}", f"{row.items:,}",
            )
            for row in report.differences
        ],
        wrap=True,
    )  # fmt: skip
    print_text(
        "",
        "Second minus first over the same items; standard errors over clusters of items; p of the paired t test,"
        f" after Holm's correction over {len(report.differences)} tests. Smallest shown: with power 0.8.",
        *(visible(note, 300) for note in report.notes),
    )
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
