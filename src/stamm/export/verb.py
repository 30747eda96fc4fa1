"""`stamm.export`: export the models of a run, or plan the export of a recipe's."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stamm.base.config import assignments
from stamm.base.console import Progress
from stamm.base.errors import ConfigError, RunError
from stamm.export import job
from stamm.export.config import ExportConfig
from stamm.export.plan import export_plan, has_plan
from stamm.export.results import Exported, exported_in
from stamm.models.config import DecoderConfig
from stamm.models.model_source import find_models
from stamm.models.serialization import stored_config
from stamm.pretrain.config import PretrainConfig
from stamm.recipes.resolve import resolve
from stamm.recipes.study import Study
from stamm.recipes.trained_models import (
    Results,
    changed,
    changed_settings,
    export_inputs,
    places_of,
    writing,
)
from stamm.runs.arms import run_of_arm
from stamm.runs.job import Workspace


class Exports(Results[Exported]):
    """Exports by arm.

    plans   of a dry run: files and memory by arm, or by model of a recipe; user targets have none. One
            that cannot be exported raises ConfigError
    """

    def __init__(
        self,
        places: Mapping[Path, Path],
        config: ExportConfig,
        planned: Mapping[Path, DecoderConfig] | None = None,
    ) -> None:
        super().__init__(places, exported_in)
        models = dict(planned or {})
        self.plans = Results(
            {name: name for name in models}, lambda name: export_plan(config, models[name])
        )


def export(
    run: str | os.PathLike[str],
    *changes: str,
    out: str | os.PathLike[str] | None = None,
    dry_run: bool = False,
    **settings: Any,
) -> Exports:
    """Export the models of a run, or one arm of it, and compare each with the trained model.

        stamm.export("runs/demo/arms/xielu", target="gguf").only.parities

    run        with dry_run also a recipe, whose models are not trained yet
    changes, settings   of `ExportConfig`: "target=gguf", target="gguf"
    out        where to write, with several arms one folder each; by default inside the run
    dry_run    write nothing: the result has the plans
    Raises     StammError with what is wrong and the fix
    """
    root, words = Path(run), assignments(changes, settings)
    if dry_run and not root.exists():
        models = _recipe_models(str(run))
        return Exports({}, changed(ExportConfig(), words), models)
    sources = find_models(root)
    if sources[0].kind == "hub":
        fix = f"Export the run that `stamm import {root}` makes of it"
        raise RunError(f"{root} is a Hugging Face folder, not a run", fix=fix)
    arms = [source.model.parent for source in sources]
    config = changed_settings(run_of_arm(arms[0]), "export", ExportConfig, words)
    places = dict(zip(arms, places_of(arms, "export", out), strict=True))
    if dry_run:
        planned = arms if has_plan(config) else []
        return Exports(places, config, {arm: stored_config(arm / "model") for arm in planned})
    for arm, folder in places.items():
        with writing("export", run_of_arm(arm), arm, folder) as console:
            export_arm(arm, folder, config, console)
    return Exports(places, config)


def export_arm(arm: Path, folder: Path, config: ExportConfig, progress: Progress) -> None:
    """Export one arm to `folder`; the caller has locked its run, and leaves the receipt."""
    job.run(config, Workspace(folder=folder, inputs=export_inputs(arm), progress=progress))


def _recipe_models(recipe: str) -> dict[Path, DecoderConfig]:
    """The models of a recipe by name, before they are trained."""
    resolved = resolve(recipe, []).config
    if isinstance(resolved, Study):
        return {Path(arm.name): resolved.pretrain_of(arm).model for arm in resolved.arms}
    if isinstance(resolved, PretrainConfig):
        return {Path(recipe): resolved.model}
    raise ConfigError(f"the recipe {recipe} trains no model of its own")
