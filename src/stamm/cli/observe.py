"""`stamm observe`: statistics of the layers of runs, their checkpoints, comparisons and Hugging Face folders."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from stamm.base.shutdown import interrupt_delayed
from stamm.cli.arg_types import add_changes, add_dry_run, check_model_folder, text
from stamm.cli.output import print_json, print_table
from stamm.observe.records import ObservedArm, ObserveFile, PlasticityFile
from stamm.statistics.estimates import MeanInterval

_COLUMNS = ("negative_share", "negative_gradient_share", "mean_abs_slope", "nonlinearity")
_SECOND = (
    "skippable_share", "gradient_dead_share", "one_sided_share", "first_channel_ratio", "first_int8_tensor_db",
    "first_int8_token_db", "first_fp8_tensor_db", "last_channel_ratio", "last_int8_tensor_db",
    "last_int8_token_db", "last_fp8_tensor_db",
)  # fmt: skip
_MORE = ("dead_share", "zero_share", "effective_rank", "kurtosis", "max_median")


def arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    """Add the arguments of the verb."""
    parser.add_argument(
        "run",
        type=text,
        metavar="RUN_OR_FOLDER",
        help="a run folder, one arm of it, a comparison, or a Hugging Face folder",
    )
    add_changes(
        parser, "text=FILE, tokens, checkpoints=all, probe=plasticity, batch_tokens, threads"
    )
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
    plasticity = observations.plasticity
    if options.dry_run:
        for model, file in {**observations.places, **plasticity.places}.items():
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
        results = (observations, plasticity)
        print_json(
            {
                str(mapping.places[model]): asdict(record)
                for mapping in results
                for model, record in mapping.items()
            }
        )
    elif plasticity:
        _print_plasticity(list(plasticity.values()))
        print("\n".join(str(file) for file in plasticity.places.values()))
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
        rows.append([str(layer.layer), *map(_number, values)])
    print_table(["layer", *first.parameters, *names], rows)
    print_table(
        ["layer", *_SECOND],
        [
            [str(layer.layer), *(_number(getattr(layer, name)) for name in _SECOND)]
            for layer in observed.layers
        ],
    )
    if (sparsity := observed.sparsity) is not None:
        print(
            f"{sparsity.share:.1%} of the units are skippable at perplexity x {sparsity.perplexity:g} of "
            f"{sparsity.calibration_tokens:,} tokens, {sparsity.calibration}; here "
            f"{sparsity.loss:.4f} -> {sparsity.skipped_loss:.4f} nats"
        )
    for layer in observed.layers:
        for massive in layer.massive:
            print(
                f"layer {layer.layer}: massive activation {massive.value:.4g} in dimension {massive.dimension} at "
                f"{massive.token!r}, {massive.count:,} times"
            )


def _print_plasticity(probed: list[PlasticityFile]) -> None:
    first = probed[0]
    print(
        f"nats on {first.tokens:,} random targets before and after {first.steps} steps, {first.text}"
    )
    rows = [
        ["model" if file.step is None else f"{file.step:,}",
         *map(_number, (file.initial_loss, file.final_loss, file.mean_loss, file.fresh_loss))]
        for file in probed
    ]  # fmt: skip
    print_table(["step", "before", "after", "mean", "after, new weights"], rows)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _print_arm(arm: ObservedArm, confidence: float) -> None:
    print(f"{arm.name} ({arm.activation}), seeds {arm.seeds}, {confidence:.0%} intervals")
    rows = [
        [measure.name, *(_cell(interval) for interval in (*measure.layers, measure.slope))]
        for measure in arm.measures
        if measure.name not in (*_MORE, *_SECOND[1:])
    ]
    print_table(["", *(f"layer {n}" for n in range(len(rows[0]) - 2)), "slope"], rows)
    print()


def _cell(interval: MeanInterval | None) -> str:
    if interval is None:
        return "-"
    half = "" if interval.high is None else f" ± {interval.high - interval.mean:.2g}"
    return f"{interval.mean:.4g}{half}"
