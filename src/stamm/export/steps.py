"""The step of a recipe that exports an arm."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from stamm.export.config import ExportConfig, check_held_out_file
from stamm.runs.job import Step


def export_step(
    arm: str,
    config: ExportConfig,
    *,
    tokenizer: str = "tokenizer",
    pack: str = "pack",
    external: Mapping[str, Path] | None = None,
) -> Step:
    """The model of an arm in another runtime's format, with its parity report.

    pack       folder of the packed corpus; "": there is none
    external   further files that identify the inputs

    Raises   ConfigError for a held-out file that cannot be read
    """
    check_held_out_file(config)
    text = {"pack": pack} if pack else {}
    return Step(
        name=f"export.{arm}",
        job="export",
        config=config,
        folder=f"arms/{arm}/export",
        inputs={"model": f"arms/{arm}/model", "tokenizer": tokenizer, **text},
        external={**(external or {}), **config.files()},
        outputs=(".",),
    )
