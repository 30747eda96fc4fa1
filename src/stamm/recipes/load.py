"""Load a trained model with its tokenizer, from a run or from a folder in the layout of transformers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from stamm.align.model_source import check_vocabulary, find_model
from stamm.base.errors import DataError
from stamm.evaluate.text_model import AnyTokenizer, load_tokenizer
from stamm.models.decoder import Decoder
from stamm.models.hf_files import is_hub_folder
from stamm.models.hub_folder import load_hub
from stamm.models.serialization import load_decoder
from stamm.recipes.run_folder import RunFolder
from stamm.runs.arms import input_of_arm

_EXPORTED = "transformers"


class LoadedModel(NamedTuple):
    """A decoder in evaluation mode and its tokenizer."""

    model: Decoder
    tokenizer: AnyTokenizer


def load(folder: str | os.PathLike[str] | RunFolder, arm: str = "") -> LoadedModel:
    """A trained model in evaluation mode, float32 on the CPU, and its tokenizer.

        model, tokenizer = stamm.load("runs/demo", "xielu")

    folder   a run folder, one arm of it ("runs/demo/arms/xielu"), or a folder in the layout of
             transformers (config.json, safetensors, tokenizer.json), stamm's or another's
    arm      the arm of a run folder; may be left out when there is only one
    Raises   RunError when the folder is neither, or the arm is unknown; DataError when weights do
             not match their recorded SHA-256 or their description.
    """
    root = folder.root if isinstance(folder, RunFolder) else Path(folder)
    for exported in (root, root / _EXPORTED):
        if is_hub_folder(exported):
            source = find_model(str(exported), arm or None)
            decoder, tokenizer = load_hub(source.model), load_tokenizer(source.tokenizer)
            check_vocabulary(decoder.config, tokenizer.size, source.tokenizer)
            return LoadedModel(decoder, tokenizer)
    if not root.is_dir():
        raise DataError(f"{root} does not exist")
    trained = RunFolder(root).arm(arm)
    tokenizer = load_tokenizer(input_of_arm(trained, "tokenizer"))
    return LoadedModel(load_decoder(trained / "model"), tokenizer)
