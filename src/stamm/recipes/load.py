"""Load a trained model with its tokenizer, from a run or from a folder in the layout of transformers."""

from __future__ import annotations

import os
from typing import NamedTuple

from stamm.models.decoder import Decoder
from stamm.models.hf_chat_format import AnyTokenizer
from stamm.models.loading import open_model
from stamm.recipes.run_folder import RunFolder


class LoadedModel(NamedTuple):
    """A decoder in evaluation mode and its tokenizer."""

    model: Decoder
    tokenizer: AnyTokenizer


def load(folder: str | os.PathLike[str] | RunFolder, arm: str = "") -> LoadedModel:
    """A trained model in evaluation mode, float32 on the CPU, and its tokenizer.

        model, tokenizer = stamm.load("runs/demo", "xielu")

    folder   a run folder, one arm of it ("runs/demo/arms/xielu"), its model/ or export/, or a folder in
             the layout of transformers (config.json, safetensors, tokenizer.json), stamm's or another's
    arm      the arm of a run folder; may be left out when there is only one
    Raises   RunError when the folder holds no model, or the arm is unknown; DataError when weights do
             not match their recorded SHA-256 or their description.
    """
    opened = open_model(folder.root if isinstance(folder, RunFolder) else folder, arm or None)
    return LoadedModel(opened.decoder, opened.tokenizer)
