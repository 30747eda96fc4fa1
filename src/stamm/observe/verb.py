"""`stamm.observe`: statistics of the layers of runs, their checkpoints, comparisons and Hugging Face folders."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from stamm.base.config import assignments, to_plain
from stamm.base.console import Console
from stamm.base.errors import DataError, RunError
from stamm.base.files import sha256_file, sha256_value
from stamm.base.schema import read_record, write_record
from stamm.compare.results import is_comparison, read_comparison
from stamm.engine.checkpoint_files import STATE
from stamm.models.model_source import ModelSource, find_models
from stamm.observe.comparison import comparison_record
from stamm.observe.config import ObserveConfig
from stamm.observe.records import MEASURES, ObserveComparisonFile, ObserveFile, PlasticityFile
from stamm.recipes.jobs import loaded
from stamm.recipes.trained_models import (
    Results,
    changed,
    check_no_out,
    checkpoints_of,
    evaluation_inputs,
    writing,
)
from stamm.runs.arms import run_of_arm
from stamm.runs.command_receipts import write_command_receipt
from stamm.runs.model_outputs import set_aside

if TYPE_CHECKING:
    from stamm.models.loading import OpenModel

FOLDER, FILE, STEPS = "observe", "observe.json", "steps"
PLASTICITY = "plasticity.json"
R = TypeVar("R", ObserveFile, PlasticityFile)
COMPARISON = "observe_comparison.json"
_MODEL, _JOB = "stamm.observe.model", "stamm.observe.job"  # load torch


@dataclass(frozen=True, kw_only=True)
class _Target:
    """A model to observe.

    source       where it is
    checkpoint   of its run; None for the model itself
    file         that the result is written to
    lock         folder of its run; None for a Hugging Face folder
    """

    source: ModelSource
    checkpoint: Path | None = None
    pack: Path | None = None
    file: Path
    lock: Path | None = None


class Observations(Results[ObserveFile]):
    """Observations by model folder or checkpoint.

    comparison_file   of a comparison: its arms by depth; None for other runs
    plasticity        results of the plasticity probe, with probe="plasticity", which observes no layers
    """

    def __init__(
        self,
        targets: list[_Target],
        comparison_file: Path | None = None,
        probe: Literal["layers", "plasticity"] = "layers",
    ) -> None:
        places = {target.checkpoint or target.source.model: target.file for target in targets}
        of_layers = probe == "layers"
        super().__init__(places if of_layers else {}, partial(read_record, ObserveFile))
        self.plasticity = Results({} if of_layers else places, partial(read_record, PlasticityFile))
        self.comparison_file = comparison_file

    @property
    def comparison(self) -> ObserveComparisonFile:
        """The arms of a comparison by depth.

        Raises   RunError when no comparison was observed.
        """
        if self.comparison_file is None:
            raise RunError("no comparison was observed", fix="Pass the folder of a comparison")
        return read_record(ObserveComparisonFile, self.comparison_file)


def observe(
    run: str | os.PathLike[str],
    *changes: str,
    out: str | os.PathLike[str] | None = None,
    dry_run: bool = False,
    **settings: Any,
) -> Observations:
    """Observe the layers of the models of a run, one arm, a comparison, or a Hugging Face folder.

        stamm.observe("runs/demo/arms/xielu", tokens=4096).only.layers

    changes, settings   of `ObserveConfig`: "tokens=4096", tokens=4096; probe="plasticity" fills
               `Observations.plasticity`
    out        result of a Hugging Face folder; by default observations/NAME
    dry_run    run nothing: the result names the files
    Raises     StammError with what is wrong and the fix
    """
    root = Path(run)
    config = changed(ObserveConfig(), assignments(changes, settings))
    if (root / "final").is_dir() and is_comparison(root):
        check_no_out(out)
        if config.probe == "plasticity":
            raise RunError(f"{root} is a comparison", fix="Name one run of it, without probe")
        return _compare(config, root, dry_run)
    targets = list(_targets(root, config, out))
    if not dry_run:
        for target in targets:
            if config.probe == "plasticity":
                _observed(target, config, PlasticityFile)
            else:
                _observed(target, config, ObserveFile)
    return Observations(targets, probe=config.probe)


def _targets(
    root: Path, config: ObserveConfig, out: str | os.PathLike[str] | None
) -> Iterator[_Target]:
    for source in find_models(root):
        if source.kind == "hub":
            if config.checkpoints == "all":
                raise RunError(f"{root} holds no checkpoints", fix="Leave out checkpoints=all")
            folder = Path(out) if out else Path("observations") / source.name
            yield _Target(source=source, file=folder / _file_name(config))
            return
        check_no_out(out)
        arm = source.model.parent
        yield from _with_checkpoints(
            _Target(
                source=source,
                pack=evaluation_inputs(arm).get("pack"),
                file=arm / FOLDER / _file_name(config),
                lock=run_of_arm(arm),
            ),
            config,
            arm,
        )


def _file_name(config: ObserveConfig) -> str:
    """observe.json holds the held-out split; every other text has a file named by its SHA-256."""
    plastic = config.probe == "plasticity"
    if config.text is None:
        return PLASTICITY if plastic else FILE
    text = f"text-{loaded(_MODEL).text_sha256(config, None)[:8]}.json"
    return f"{Path(PLASTICITY).stem}-{text}" if plastic else text


def _with_checkpoints(target: _Target, config: ObserveConfig, arm: Path) -> Iterator[_Target]:
    """The checkpoints of an arm, where the configuration asks for all, then the model."""
    if config.checkpoints == "all":
        for path in checkpoints_of(arm):
            more = "" if target.file.name == FILE else f"-{target.file.stem}"
            file = target.file.parent / STEPS / f"{path.name}{more}.json"
            yield replace(target, checkpoint=path, file=file)
    yield target


def _observed(target: _Target, config: ObserveConfig, kind: type[R]) -> R:
    """The observation of a model; one of the same settings, text and weights is not repeated."""
    folder = target.file.parent
    if target.lock is None:
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.closing(Console()) as console:
            return _observe(target, config, kind, console)
    arm = target.source.model.resolve().parent
    with writing("observe", target.lock, arm, folder) as console:
        return _observe(target, config, kind, console)


def _observe(target: _Target, config: ObserveConfig, kind: type[R], console: Console) -> R:
    if target.checkpoint is not None:
        weights = sha256_file(target.checkpoint / STATE)
    else:
        weights = target.source.weights_sha256
    settings = {**to_plain(config), "checkpoints": None, "text": None}
    text = loaded(_MODEL).text_sha256(config, target.pack)
    # Results of an earlier version have fewer measures.
    identity = sha256_value([kind.SCHEMA, MEASURES, settings, text, weights])
    if target.file.is_file():
        with contextlib.suppress(DataError):
            stored = read_record(kind, target.file)
            if stored.identity == identity:
                return stored
    loaded("stamm.models.determinism").set_determinism(config.threads)
    model = _load(target)
    console.log(str(target.checkpoint or target.source.model))
    content = loaded(_JOB).observed_model(
        config, model, target.pack, console, checkpoint=target.checkpoint is not None
    )
    if target.checkpoint is None:
        set_aside(target.file.parent, model.sha256)
    step = None if target.checkpoint is None else int(target.checkpoint.name.removeprefix("step-"))
    write_record(target.file, kind, {**content, "identity": identity, "step": step})
    return read_record(kind, target.file)


def _load(target: _Target) -> OpenModel:
    if target.checkpoint is not None:
        opened: OpenModel = loaded("stamm.engine.checkpoint").checkpoint_model(
            target.source.model, target.checkpoint, target.source.tokenizer
        )
    else:
        opened = loaded("stamm.models.loading").open_model(target.source)
    return opened


def _compare(config: ObserveConfig, root: Path, dry_run: bool) -> Observations:
    """Observe every finished run of a comparison, and write the arms by depth."""
    compared = read_comparison(root)
    arms: dict[str, dict[int, list[_Target]]] = {}
    diverged = []
    for arm in compared.arms:
        for run in arm.runs:
            folder = root / "final" / arm.name / str(run.seed)
            if run.diverged:
                diverged.append(f"{arm.name}/{run.seed}")
                continue
            # The weights that the verdict is about.
            run_folder = folder / "averaged" if (folder / "averaged").is_dir() else folder
            target = _Target(
                source=ModelSource(model=run_folder / "model", tokenizer=root / "tokenizer"),
                pack=root / "pack",
                file=run_folder / FOLDER / _file_name(config),
                lock=root,
            )
            every = list(_with_checkpoints(target, config, folder))
            arms.setdefault(arm.name, {})[run.seed] = every
    if not arms:
        raise RunError(f"{root} holds no finished run yet", fix="Finish the comparison first")
    targets = [target for seeds in arms.values() for every in seeds.values() for target in every]
    comparison = root / COMPARISON
    if config.text is not None:
        comparison = root / f"{comparison.stem}-{Path(_file_name(config)).stem}.json"
    if dry_run:
        return Observations(targets, comparison)
    observations = {target: _observed(target, config, ObserveFile) for target in targets}
    # The model of a run is the last of its targets, after its checkpoints.
    last = {
        name: {seed: observations[every[-1]] for seed, every in seeds.items()}
        for name, seeds in arms.items()
    }
    content = comparison_record(last, diverged, compared.confidence)
    write_record(comparison, ObserveComparisonFile, content)
    write_command_receipt(root, "observe", [comparison])
    return Observations(targets, comparison)
