"""Configuration of `import_model`, and the files of a model that it reads. No torch here."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from stamm.base.errors import DataError
from stamm.base.files import read_json

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
TEMPLATE = "chat_template.jinja"


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
    weights = [WEIGHTS]
    if not (folder / WEIGHTS).is_file() and (folder / INDEX).is_file():
        stored = read_json(folder / INDEX)
        table = stored.get("weight_map") if isinstance(stored, dict) else None
        if not isinstance(table, dict):
            raise DataError(f"{folder / INDEX} has no weight_map: {json.dumps(stored)[:80]}")
        weights = [INDEX, *sorted(set(map(str, table.values())))]
    needed = [CONFIG, *weights, TOKENIZER]
    for name in needed:
        if Path(name).name != name or not (folder / name).is_file():
            raise DataError(
                f"{folder} has no {name[:200]}",
                fix="Needed are config.json, weights as safetensors, and tokenizer.json",
            )
    optional = [name for name in (TOKENIZER_CONFIG, TEMPLATE) if (folder / name).is_file()]
    return {name: folder / name for name in (*needed, *optional)}
