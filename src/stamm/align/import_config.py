"""Configuration of `import_model`, and the files of a model that it reads. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stamm.base.errors import DataError
from stamm.chat.template_files import CONFIG as TOKENIZER_CONFIG
from stamm.chat.template_files import TEMPLATE
from stamm.models.hf_files import (
    ADAPTER,
    CONFIG,
    GENERATION,
    INDEX,
    TOKENIZER,
    WEIGHTS,
    weight_files,
)

BESIDE = ("special_tokens_map.json", "added_tokens.json")
"""Files with tokens beside tokenizer_config.json, of older versions of transformers."""


@dataclass(frozen=True, kw_only=True)
class ImportConfig:
    """Import of a Hugging Face folder or a GGUF file.

    chat   it must have a supported chat format; False: a base model is imported, too
    """

    chat: bool = True


def import_files(folder: Path) -> dict[str, Path]:
    """The files of a Hugging Face folder that an import reads, by name, for a step's `external`.

    A GGUF file is one file.

    Raises   DataError when a file that is needed is missing.
    """
    if folder.is_file():
        return {folder.name: folder}
    if not (folder / CONFIG).is_file() and (folder / ADAPTER).is_file():
        raise DataError(
            f"{folder} is an adapter, not a model", fix="Merge it into its model, and import that"
        )
    weights = weight_files(folder)
    needed = [CONFIG, *([] if weights == [WEIGHTS] else [INDEX]), *weights, TOKENIZER]
    for name in needed:
        if not (folder / name).is_file():
            raise DataError(
                f"{folder} has no {name}",
                fix="Needed are config.json, weights as safetensors, and tokenizer.json",
            )
    optional = (TOKENIZER_CONFIG, *BESIDE, TEMPLATE, GENERATION)
    return {n: folder / n for n in (*needed, *optional) if n in needed or (folder / n).is_file()}
