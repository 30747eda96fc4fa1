"""Load a trained model with its tokenizer, from a run or from an exported folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from stamm.base.errors import DataError
from stamm.corpus.tokenizer.tokenizer import Tokenizer
from stamm.models.decoder import Decoder
from stamm.models.hub_folder import load_hub
from stamm.models.serialization import load_decoder
from stamm.recipes.run_folder import RunFolder
from stamm.runs.arms import input_of_arm

_EXPORTED = "transformers"


class LoadedModel(NamedTuple):
    """A decoder in evaluation mode and its tokenizer."""

    model: Decoder
    tokenizer: Tokenizer


def load(folder: str | os.PathLike[str] | RunFolder, arm: str = "") -> LoadedModel:
    """A trained model in evaluation mode, float32 on the CPU, and its tokenizer.

        model, tokenizer = stamm.load("runs/demo", "xielu")

    folder   a run folder, one arm of it ("runs/demo/arms/xielu"), or a folder in the layout of
             transformers (config.json, model.safetensors, tokenizer.json)
    arm      the arm of a run folder; may be left out when there is only one
    Raises   RunError when the folder is neither, or the arm is unknown; DataError when weights do
             not match their recorded SHA-256 or their description.
    """
    root = folder.root if isinstance(folder, RunFolder) else Path(folder)
    for exported in (root, root / _EXPORTED):
        if (exported / "model.safetensors").is_file() and (exported / "config.json").is_file():
            return LoadedModel(load_hub(exported), Tokenizer.load(exported / "tokenizer.json"))
    if not root.is_dir():
        raise DataError(f"{root} does not exist")
    trained = RunFolder(root).arm(arm)
    tokenizer = Tokenizer.load(input_of_arm(trained, "tokenizer") / "tokenizer.json")
    return LoadedModel(load_decoder(trained / "model"), tokenizer)
