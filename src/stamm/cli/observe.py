"""`stamm observe`: statistics of the layers of runs, their checkpoints, comparisons and Hugging Face folders."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stamm.base.config import to_plain
from stamm.base.console import Console
from stamm.base.errors import DataError, RunError
from stamm.base.files import sha256_file, sha256_value
from stamm.base.schema import read_record, write_record
from stamm.base.shutdown import interrupt_delayed
from stamm.cli.arg_types import add_changes, text
from stamm.cli.evaluate import checkpoint_model, model_with_chat
from stamm.cli.model_verbs import changed, inputs_of
from stamm.cli.output import print_json, print_table
from stamm.models.hf_files import is_hub_folder
from stamm.observe.config import ObserveConfig
from stamm.runs.arms import run_of_arm, trained_arms
from stamm.runs.command_receipts import recorded, write_command_receipt, writing_alone
from stamm.runs.model_outputs import set_aside, weights_sha256
from stamm.runs.run import Run
from stamm.runs.schemas.evaluation import MeanInterval
from stamm.runs.schemas.observation import ObserveComparisonFile, ObservedArm, ObserveFile

if TYPE_CHECKING:
    from stamm.evaluate.text_model import TextModel

FOLDER, FILE, STEPS = "observe", "observe.json", "steps"
COMPARISON = "observe_comparison.json"
_COLUMNS = ("negative_share", "negative_gradient_share", "mean_abs_slope", "nonlinearity")
_MORE = ("dead_share", "zero_share", "effective_rank", "kurtosis", "max_median")


@dataclass(frozen=True, kw_only=True)
class _Target:
    """A model to observe.

    checkpoint   of `model`; None for the model itself
    file         that the result is written to
    lock         folder of its run; None for a Hugging Face folder
    """

    model: Path
    checkpoint: Path | None = None
    tokenizer: Path | None = None
    pack: Path | None = None
    file: Path
    lock: Path | None = None


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
    parser.add_argument(
        "--dry-run", action="store_true", help="print what would be written, run nothing"
    )


def run(options: argparse.Namespace, verb: str) -> int:
    """Observe every model, then print the numbers by layer; of a comparison by arm and layer."""
    root = Path(options.run)
    config = changed(ObserveConfig(), options.changes)
    with interrupt_delayed():
        from stamm.reports.comparison import is_comparison
    if not is_hub_folder(root) and not (root / "config.json").is_file():
        raise RunError(
            f"{root} is neither a run folder nor a Hugging Face folder",
            fix="`stamm ls runs` lists the runs",
        )
    if options.out and not is_hub_folder(root):
        raise RunError("--out is for Hugging Face folders", fix="Results of a run are kept in it")
    if (root / "final").is_dir() and is_comparison(root):
        return _compare(options, config, root)
    targets = list(_targets(root, config, options.out))
    if options.dry_run:
        return _print_targets(targets)
    found = {target: _observed(target, config) for target in targets}
    if options.json:
        print_json({str(target.file): asdict(one) for target, one in found.items()})
        return 0
    for target, one in found.items():
        _print_layers(one)
        print(f"{target.file}\n")
    return 0


def _targets(root: Path, config: ObserveConfig, out: str | None) -> Iterator[_Target]:
    if is_hub_folder(root):
        if config.checkpoints == "all":
            raise RunError(f"{root} holds no checkpoints", fix="Leave out checkpoints=all")
        folder = Path(out) if out else Path("observations") / root.resolve().name
        yield _Target(model=root, file=folder / _file_name(config))
        return
    arms = trained_arms(root)
    if not arms:
        raise RunError(f"{root} holds no trained model yet", fix="Finish its run first")
    for arm in arms:
        inputs = inputs_of(arm, "evaluate")
        yield from _with_checkpoints(
            _Target(
                model=arm / "model",
                tokenizer=inputs["tokenizer"],
                pack=inputs.get("pack"),
                file=arm / FOLDER / _file_name(config),
                lock=run_of_arm(arm),
            ),
            config,
            arm / "checkpoints",
        )


def _file_name(config: ObserveConfig) -> str:
    """observe.json holds the held-out split; every other text has a file named by its SHA-256."""
    if config.text is None:
        return FILE
    with interrupt_delayed():
        from stamm.observe.model import text_sha256
    return f"text-{text_sha256(config, None)[:8]}.json"


def _with_checkpoints(
    target: _Target, config: ObserveConfig, checkpoints: Path
) -> Iterator[_Target]:
    """The checkpoints of a model, where the configuration asks for all, then the model."""
    if config.checkpoints == "all":
        with interrupt_delayed():
            from stamm.engine.checkpoint_files import checkpoint_steps
        steps = checkpoint_steps(checkpoints)
        if not steps:
            raise RunError(
                f"{checkpoints.parent} holds no checkpoints", fix="Keep more with checkpoint_every"
            )
        for step in steps:
            name = f"step-{step:08d}"
            more = "" if config.text is None else f"-{target.file.stem}"
            file = target.file.parent / STEPS / f"{name}{more}.json"
            yield replace(target, checkpoint=checkpoints / name, file=file)
    yield target


def _observed(target: _Target, config: ObserveConfig) -> ObserveFile:
    """The observation of a model; one of the same settings, text and weights is not repeated."""
    target.file.parent.mkdir(parents=True, exist_ok=True)
    if target.lock is None:
        return _observe(target, config)
    folder = target.file.parent
    name = f"observe.{target.model.resolve().parent.name}"
    with (
        Run(target.lock, "", (), None).locked(shared=True),
        writing_alone(folder, "observe"),
        recorded(target.lock, name, folder),
    ):
        return _observe(target, config)


def _observe(target: _Target, config: ObserveConfig) -> ObserveFile:
    with interrupt_delayed():
        from stamm.engine.checkpoint_files import STATE
        from stamm.models.determinism import set_determinism
        from stamm.models.hub_folder import hub_weights_sha256
        from stamm.observe.model import observe_layers, text_sha256
    if target.checkpoint is not None:
        weights = sha256_file(target.checkpoint / STATE)
    else:
        weights = (hub_weights_sha256 if target.lock is None else weights_sha256)(target.model)
    settings = {**to_plain(config), "checkpoints": None, "text": None}
    schema = ObserveFile.SCHEMA
    identity = sha256_value([schema, settings, text_sha256(config, target.pack), weights])
    if target.file.is_file():
        with contextlib.suppress(DataError):
            stored = read_record(ObserveFile, target.file)
            if stored.identity == identity:
                return stored
    set_determinism(config.threads)
    model = _load(target)
    with contextlib.closing(Console()) as console:
        console.log(str(target.checkpoint or target.model))
        chosen = _text(config, target, model)
        layers = observe_layers(config, model.decoder, chosen, console)
    if target.checkpoint is None:
        set_aside(target.file.parent, model.sha256)
    step = None if target.checkpoint is None else int(target.checkpoint.name.removeprefix("step-"))
    content = {
        "model_sha256": model.sha256,
        "identity": identity,
        "step": step,
        "text": chosen.name,
        "documents": chosen.documents,
        "tokens": chosen.tokens,
        "layers": [asdict(layer) for layer in layers],
    }
    write_record(target.file, ObserveFile, content)
    return read_record(ObserveFile, target.file)


def _load(target: _Target) -> TextModel:
    with interrupt_delayed():
        from stamm.evaluate.text_model import load_tokenizer, text_model
        from stamm.models.serialization import load_decoder
    if target.tokenizer is None:
        return model_with_chat(target.model, needed=False)
    if target.checkpoint is not None:
        return checkpoint_model(target.model, target.checkpoint, target.tokenizer)
    decoder = load_decoder(target.model)
    tokenizer = load_tokenizer(target.tokenizer)
    return text_model(decoder, tokenizer, target.tokenizer, weights_sha256(target.model))


def _text(config: ObserveConfig, target: _Target, model: TextModel) -> Any:
    with interrupt_delayed():
        from stamm.observe.model import packed_text, text_of_file
    context = model.decoder.config.max_context
    if config.text is None and target.pack is not None:
        return packed_text(config, target.pack, context)
    path = Path(config.text or "")
    return text_of_file(config, path, model.tokenizer.encode, model.prefix, context)


def _compare(options: argparse.Namespace, config: ObserveConfig, root: Path) -> int:
    """Observe every finished run of a comparison, and write the arms by depth."""
    with interrupt_delayed():
        from stamm.observe.comparison import comparison_record
        from stamm.reports.comparison import read_comparison
    compared = read_comparison(root)
    arms: dict[str, dict[int, list[_Target]]] = {}
    diverged = []
    for arm in compared.arms:
        for one in arm.runs:
            folder = root / "final" / arm.name / str(one.seed)
            if one.diverged:
                diverged.append(f"{arm.name}/{one.seed}")
                continue
            # The weights that the verdict is about.
            place = folder / "averaged" if (folder / "averaged").is_dir() else folder
            target = _Target(
                model=place / "model",
                tokenizer=root / "tokenizer",
                pack=root / "pack",
                file=place / FOLDER / _file_name(config),
                lock=root,
            )
            every = list(_with_checkpoints(target, config, folder / "checkpoints"))
            arms.setdefault(arm.name, {})[one.seed] = every
    if not arms:
        raise RunError(f"{root} holds no finished run yet", fix="Finish the comparison first")
    targets = [one for seeds in arms.values() for every in seeds.values() for one in every]
    comparison = root / COMPARISON
    if config.text is not None:
        comparison = root / f"{comparison.stem}-{Path(_file_name(config)).stem}.json"
    if options.dry_run:
        return _print_targets(targets, comparison)
    found = {target: _observed(target, config) for target in targets}
    # The model of a run is the last of its targets, after its checkpoints.
    last = {
        name: {seed: found[every[-1]] for seed, every in seeds.items()}
        for name, seeds in arms.items()
    }
    content = comparison_record(last, diverged, compared.confidence)
    write_record(comparison, ObserveComparisonFile, content)
    write_command_receipt(root, "observe", [comparison])
    record = read_record(ObserveComparisonFile, comparison)
    if options.json:
        print_json(asdict(record))
        return 0
    for each in record.arms:
        _print_arm(each, record.confidence)
    print(comparison)
    return 0


def _print_targets(targets: list[_Target], *more: Path) -> int:
    for target in targets:
        print(f"observe {target.checkpoint or target.model} -> {target.file}")
    for path in more:
        print(path)
    return 0


def _print_layers(found: ObserveFile) -> None:
    first, names = found.layers[0], (*_COLUMNS, *_MORE)
    step = "" if found.step is None else f"step {found.step:,}: "
    print(
        f"{step}{first.activation}, x: {first.observed}; {found.tokens:,} tokens of {found.documents:,} "
        f"documents, {found.text}"
    )
    rows = []
    for layer in found.layers:
        values = [one.mean for one in layer.parameters.values()]
        values += [getattr(layer, name) for name in names]
        rows.append([str(layer.layer), *("-" if v is None else f"{v:.4g}" for v in values)])
    print_table(["layer", *first.parameters, *names], rows)


def _print_arm(arm: ObservedArm, confidence: float) -> None:
    print(f"{arm.name} ({arm.activation}), seeds {arm.seeds}, {confidence:.0%} intervals")
    rows = [
        [one.name, *(_cell(found) for found in (*one.layers, one.slope))]
        for one in arm.measures
        if one.name not in _MORE
    ]
    print_table(["", *(f"layer {n}" for n in range(len(rows[0]) - 2)), "slope"], rows)
    print()


def _cell(found: MeanInterval | None) -> str:
    if found is None:
        return "-"
    half = "" if found.high is None else f" ± {found.high - found.mean:.2g}"
    return f"{found.mean:.4g}{half}"
