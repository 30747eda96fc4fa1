"""Settings of a fine-tuning run that an earlier step of its run chose."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from stamm.align.training.finetune_config import FineTuneJobConfig
from stamm.base.config import override
from stamm.base.errors import DataError
from stamm.base.schema import read_record
from stamm.runs.schemas.chosen import ChosenFile


def apply_chosen(config: FineTuneJobConfig, inputs: Mapping[str, Path]) -> FineTuneJobConfig:
    """`config` with the settings of the entry `config.chosen` of the input "chosen".

    Raises   DataError when the file has no such entry
    """
    if not config.chosen:
        return config
    path = inputs["chosen"]
    entry = read_record(ChosenFile, path, "Run the step that writes it again").arms.get(
        config.chosen
    )
    if entry is None:
        raise DataError(f"{path} has no entry {config.chosen!r}")
    changed = override(config, list(entry.settings), f"in {path.name}")
    same_rate = changed.schedule == config.schedule
    return dataclasses.replace(changed, chosen="", rate_from=config.rate_from if same_rate else "")
