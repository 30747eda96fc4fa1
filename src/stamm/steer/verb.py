"""`stamm.steer`: steering vectors of a model, their effect and price, and files that stamm and llama.cpp add."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stamm.base.config import assignments
from stamm.base.console import Console
from stamm.base.errors import DataError
from stamm.base.files import sha256_file, sha256_value, write_text
from stamm.base.schema import read_record
from stamm.models.model_source import find_model
from stamm.pages.frame import fill
from stamm.pages.text import one_line
from stamm.recipes.jobs import loaded
from stamm.recipes.trained_models import changed, check_no_out, writing
from stamm.runs.arms import run_of_arm
from stamm.steer.config import SteerConfig
from stamm.steer.records import SteerFile
from stamm.version import VERSION

FOLDER, FILE, PAGE = "steer", "steer.json", "steer.html"


@dataclass(frozen=True, kw_only=True)
class Steering:
    """Measured steering vectors of a model.

    folder   steer.json and steer.html; with a recommendation vector.safetensors, and vector.gguf where llama.cpp can add it
    """

    folder: Path

    @property
    def record(self) -> SteerFile:
        """The content of steer.json."""
        return read_record(SteerFile, self.folder / FILE)


def steer(
    model: str | os.PathLike[str],
    *changes: str,
    arm: str | None = None,
    out: str | os.PathLike[str] | None = None,
    dry_run: bool = False,
    **settings: Any,
) -> Steering:
    """Fit a direction for every layer that leads to the positive texts, and measure its effect and its price.

        stamm.steer("runs/demo/arms/xielu", positive="german.jsonl", negative="english.jsonl").record.verdict

    changes, settings   of `SteerConfig`: "method=probe", method="probe"
    arm        of a run with several
    out        the folder, of a Hugging Face folder; by default steering/NAME/TEXTS
    dry_run    run nothing: the result names the folder
    Raises     StammError with what is wrong and the fix
    """
    config = changed(SteerConfig(positive="-", negative="-"), assignments(changes, settings))
    for name, path in (("positive", config.positive), ("negative", config.negative)):
        if path == "-":
            raise DataError(f"no {name} texts are given", fix=f'Set {name}=FILE: JSONL with "text"')
        if not Path(path).is_file():
            raise DataError(f"{path} is not a file", where=name)
    source = find_model(model, arm)
    texts = sha256_value([sha256_file(Path(p)) for p in (config.positive, config.negative)])[:8]
    name = f"{Path(config.positive).stem.split('.')[0]}-{texts}"
    arm_folder = source.model.resolve().parent if source.kind == "run" else None
    if arm_folder is not None:
        check_no_out(out)
        folder = source.model.parent / FOLDER / name
    else:
        folder = Path(out) if out else Path("steering") / source.name / name
    if dry_run:
        return Steering(folder=folder)
    folder.mkdir(parents=True, exist_ok=True)
    with (
        writing("steer", run_of_arm(arm_folder), arm_folder, folder)
        if arm_folder is not None
        else contextlib.closing(Console())
    ) as console:
        loaded("stamm.models.determinism").set_determinism(config.threads)
        opened = loaded("stamm.models.loading").open_model(source)
        content = loaded("stamm.steer.job").write_steering(config, opened, folder, console)
        _write_page(content, folder)
    return Steering(folder=folder)


def _write_page(content: SteerFile, folder: Path) -> None:
    section = loaded("stamm.steer.section").steering_section(content)
    context = {
        "title": f"Steering to {one_line(content.positive.name, 80)}",
        "facts": (f"model {content.model_sha256[:12]}", f"method {content.settings['method']}"),
        "contents": ((section.key, section.title),),
        "sections": (section,),
        "version": VERSION,
    }
    write_text(folder / PAGE, str(fill("report.html", context, "stamm.reports")))
