"""Find a model on disk: in a run of stamm's, an arm, a `model/` folder, an export, or a Hugging Face folder.

Loads no torch; `loading.open_model` opens what is found.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stamm.base.config import nearest
from stamm.base.errors import DataError, RunError
from stamm.models.hf_files import (
    ADAPTER,
    CONFIG,
    TOKENIZER,
    hub_weights_sha256,
    is_hub_folder,
    weight_files,
)
from stamm.runs.arms import input_of_arm, run_of_arm, trained_arms
from stamm.runs.model_outputs import DECODER, weights_sha256

# Folders of an export that hold all of the model, in the order in which they are preferred.
_EXPORTED = ("transformers", "transformers_bf16")
_EXPORT = "export"


@dataclass(frozen=True, kw_only=True)
class ModelSource:
    """A model on disk.

    model       the folder of the weights
    tokenizer   the folder with tokenizer.json
    """

    model: Path
    tokenizer: Path

    @property
    def kind(self) -> Literal["run", "hub"]:
        """ "run": a stored decoder of stamm's; "hub": a folder in the layout of transformers."""
        return "hub" if is_hub_folder(self.model) else "run"

    @property
    def name(self) -> str:
        """The name of the folder; of an export in an arm with its run and arm: "demo-xielu-transformers"."""
        model = self.model.resolve()
        if model.name not in _EXPORTED or model.parent.name != _EXPORT:
            return model.name
        arm = model.parent.parent
        folders = dict.fromkeys((run_of_arm(arm), arm, model))
        return "-".join(folder.name for folder in folders)

    @property
    def weights_sha256(self) -> str:
        """SHA-256 of the weights; of a Hugging Face folder with several files, of their hashes."""
        return (hub_weights_sha256 if self.kind == "hub" else weights_sha256)(self.model)


def find_models(path: str | os.PathLike[str]) -> list[ModelSource]:
    """Every model at `path`: those of a run's arms, in the order of their names, or the one that is there.

    path   a run folder, one arm of it, its `model/` folder, its export/, or a Hugging Face folder

    Raises   RunError when the folder holds no model, or a run's tokenizer is not found; DataError for
             a Hugging Face folder without a file that is needed.
    """
    return [_source(model) for model in _model_folders(Path(path))]


def find_model(path: str | os.PathLike[str], arm: str | None = None) -> ModelSource:
    """The model at `path`, as of `find_models`; other arms are not read.

    arm   of a run folder with several arms

    Raises   RunError also when the folder holds several models without `arm`, or not that arm.
    """
    models = _model_folders(Path(path))
    if arm is not None and is_hub_folder(models[0]):
        raise RunError(f"{path} is a Hugging Face folder, which has no arms")
    arms = {model.parent.name: model for model in models}
    if arm is None and len(arms) > 1:
        named = ", ".join(str(model.parent) for model in models)
        raise RunError(f"{path} holds {len(arms)} trained models", fix=f"Name one: {named}")
    if arm is not None and arm not in arms:
        raise RunError(f"{path} has no arm {arm!r}", fix=nearest(arm, arms))
    return _source(models[0] if arm is None else arms[arm])


def _model_folders(root: Path) -> list[Path]:
    """The folders of the weights of every model at a place; at least one."""
    if not root.is_dir():
        raise RunError(f"{root} is not a folder", fix="Name a run folder or a Hugging Face folder")
    if is_hub_folder(root):
        return [root]
    if (root / DECODER).is_file():  # "." has no name, and the arm is its parent
        return [root if root.name else root.resolve()]
    models = [arm / "model" for arm in trained_arms(root)]
    if not models:
        models = [folder for name in _EXPORTED if is_hub_folder(folder := root / name)][:1]
    if not models and (root / ADAPTER).is_file():
        raise RunError(f"{root} is an adapter, not a model", fix="Name the model it is merged into")
    if not models:
        running = (root / CONFIG).is_file()
        raise RunError(
            f"{root} holds no trained model",
            fix="Finish its run first" if running else "`stamm ls runs` lists the runs",
        )
    return models


def _source(model: Path) -> ModelSource:
    if is_hub_folder(model):
        return _hub_source(model)
    return ModelSource(model=model, tokenizer=input_of_arm(model.parent, "tokenizer"))


def _hub_source(root: Path) -> ModelSource:
    for name in weight_files(root):
        if not (root / name).is_file():
            raise DataError(
                f"{root} has no {name}", fix="Other formats are not read: save it as safetensors"
            )
    if not (root / TOKENIZER).is_file():
        raise DataError(
            f"{root} has no {TOKENIZER}",
            fix="Save the tokenizer with transformers (a fast tokenizer's save_pretrained)",
        )
    return ModelSource(model=root, tokenizer=root)
