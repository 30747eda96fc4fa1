"""`stamm observe`: statistics of the layers of runs, their checkpoints, comparisons and Hugging Face folders."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from stamm.base.shutdown import interrupt_delayed
from stamm.cli.arg_types import add_changes, add_dry_run, check_model_folder, text
from stamm.cli.output import print_json, print_table
from stamm.observe.records import ObservedArm, ObserveFile
from stamm.statistics.estimates import MeanInterval

_COLUMNS = ("negative_share", "negative_gradient_share", "mean_abs_slope", "nonlinearity")
_MORE = ("dead_share", "zero_share", "effective_rank", "kurtosis", "max_median")


def arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    """Add the arguments of the verb."""
    parser.add_argument(
        "run",
        type=text,
        metavar="RUN_OR_FOLDER",
        help="a run folder, one arm of it, a comparison, or a Hugging Face folder",
    )
    add_changes(parser, "text=FILE, tokens, checkpoints=all, batch_tokens, threads")
    parser.add_argument(
        "--out",
        type=text,
        metavar="PATH",
        help="result of a Hugging Face folder (default: observations/NAME)",
    )
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    add_dry_run(parser)


def run(options: argparse.Namespace, verb: str) -> int:
    """Observe every model, then print the numbers by layer; of a comparison by arm and layer."""
    check_model_folder(options.run)
    with interrupt_delayed():
        from stamm.observe.verb import observe
    observations = observe(options.run, *options.changes, out=options.out, dry_run=options.dry_run)
    if options.dry_run:
        for model, file in observations.places.items():
            print(f"observe {model} -> {file}")
        if observations.comparison_file is not None:
            print(observations.comparison_file)
    elif observations.comparison_file is not None:
        record = observations.comparison
        if options.json:
            print_json(asdict(record))
            return 0
        for arm in record.arms:
            _print_arm(arm, record.confidence)
        print(observations.comparison_file)
    elif options.json:
        print_json(
            {
                str(observations.places[model]): asdict(observed)
                for model, observed in observations.items()
            }
        )
    else:
        for model, observed in observations.items():
            _print_layers(observed)
            print(f"{observations.places[model]}\n")
    return 0


def _print_layers(observed: ObserveFile) -> None:
    first, names = observed.layers[0], (*_COLUMNS, *_MORE)
    step = "" if observed.step is None else f"step {observed.step:,}: "
    print(
        f"{step}{first.activation}, x: {first.observed}; {observed.tokens:,} tokens of {observed.documents:,} "
        f"documents, {observed.text}"
    )
    rows = []
    for layer in observed.layers:
        values = [parameter.mean for parameter in layer.parameters.values()]
        values += [getattr(layer, name) for name in names]
        rows.append([str(layer.layer), *("-" if v is None else f"{v:.4g}" for v in values)])
    print_table(["layer", *first.parameters, *names], rows)


def _print_arm(arm: ObservedArm, confidence: float) -> None:
    print(f"{arm.name} ({arm.activation}), seeds {arm.seeds}, {confidence:.0%} intervals")
    rows = [
        [measure.name, *(_cell(interval) for interval in (*measure.layers, measure.slope))]
        for measure in arm.measures
        if measure.name not in _MORE
    ]
    print_table(["", *(f"layer {n}" for n in range(len(rows[0]) - 2)), "slope"], rows)
    print()


def _cell(interval: MeanInterval | None) -> str:
    if interval is None:
        return "-"
    half = "" if interval.high is None else f" ± {interval.high - interval.mean:.2g}"
    return f"{interval.mean:.4g}{half}"
