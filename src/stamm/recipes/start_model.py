"""The model that an alignment recipe starts from: an arm of a run, or a Hugging Face folder."""

from __future__ import annotations

import os
from pathlib import Path

from stamm.align.import_config import ImportConfig, import_files
from stamm.align.steps import StartModel
from stamm.base.errors import ConfigError, RunError
from stamm.chat.template_files import CONFIG as TOKENIZER_CONFIG
from stamm.chat.template_files import TEMPLATE
from stamm.models.config import DecoderConfig
from stamm.models.hf_files import GENERATION, TOKENIZER
from stamm.models.model_source import find_model
from stamm.recipes.jobs import loaded
from stamm.runs.arms import input_of_arm
from stamm.runs.job import Step
from stamm.runs.model_outputs import DECODER

LONGEST_CONTEXT = 4096
_IMPORTED = "start"
# Beside the tokenizer.json of an imported model: its chat format and the tokens that end a text.
_BESIDE = (TOKENIZER_CONFIG, TEMPLATE, GENERATION)
_PROBES = "probes.json"
_IMPORT_RECORD = "import.json"  # beside the tokenizer, which every model tuned from it keeps


def start_model(run: str, arm: str | None, root: Path) -> StartModel:
    """The model `run`, seen from the run folder `root`.

    Raises   ConfigError when `run` is empty; what `find_model` and `config_of` raise
    """
    if not run:
        raise ConfigError(
            "run is empty: there is no model to start from",
            fix="Set run=FOLDER, such as run=runs/demo/arms/xielu or a Hugging Face folder",
        )
    source = find_model(run, arm)
    decoder: DecoderConfig = loaded("stamm.models.loading").config_of(source)
    if source.kind == "hub":
        return _imported(source.model, decoder, root)
    arm_folder = source.model.parent
    pack, corpus = _input_of(arm_folder, "pack"), _input_of(arm_folder, "corpus")
    if corpus is not None and not (corpus / _PROBES).is_file():
        corpus = None
    beside = [path for path in map(source.tokenizer.joinpath, _BESIDE) if path.is_file()]
    return StartModel(
        name=source.model.parent.name,
        model=os.path.relpath(source.model, root),
        tokenizer=os.path.relpath(source.tokenizer, root),
        max_context=decoder.max_context,
        decoder=decoder,
        vocabulary=source.tokenizer / TOKENIZER,
        imported=(source.tokenizer.parent / _IMPORT_RECORD).is_file(),
        external={
            str(path): path
            for path in (source.model / DECODER, source.tokenizer / TOKENIZER, *beside)
        },
        pack="" if pack is None else os.path.relpath(pack, root),
        corpus="" if corpus is None else os.path.relpath(corpus, root),
    )


def _imported(folder: Path, decoder: DecoderConfig, root: Path) -> StartModel:
    step = Step(
        name="import_model",
        job="import_model",
        config=ImportConfig(),
        folder=_IMPORTED,
        inputs={"source": os.path.relpath(folder, root)},
        external=import_files(folder),
        outputs=("model", "tokenizer"),
    )
    return StartModel(
        name=folder.resolve().name,
        model=f"{_IMPORTED}/model",
        tokenizer=f"{_IMPORTED}/tokenizer",
        max_context=decoder.max_context,
        decoder=decoder,
        vocabulary=folder / TOKENIZER,
        imported=True,
        steps=(step,),
    )


def _input_of(arm: Path, name: str) -> Path | None:
    try:
        return input_of_arm(arm, name)
    except RunError:
        return None
