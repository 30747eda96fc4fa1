"""The model that an alignment recipe starts from: an arm of a run, or a Hugging Face folder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stamm.align.import_config import TOKENIZER, ImportConfig, import_files
from stamm.base.errors import ConfigError, RunError
from stamm.chat.template_files import CONFIG as TOKENIZER_CONFIG
from stamm.chat.template_files import TEMPLATE
from stamm.models.config import DecoderConfig
from stamm.models.hf_files import GENERATION
from stamm.recipes.jobs import model_finder
from stamm.runs.arms import input_of_arm
from stamm.runs.job import Step
from stamm.runs.model_outputs import DECODER

LONGEST_CONTEXT = 4096
_IMPORTED = "start"
# Beside the tokenizer.json of an imported model: its chat format and the tokens that end a text.
_BESIDE = (TOKENIZER_CONFIG, TEMPLATE, GENERATION)
_PROBES = "probes.json"
_IMPORT_RECORD = "import.json"  # beside the tokenizer, which every model tuned from it keeps


@dataclass(frozen=True, kw_only=True)
class StartModel:
    """Where the steps of a recipe find the model, as paths relative to the run folder.

    name          of the arm that it is, or of the Hugging Face folder
    steps         that make it: the import of a Hugging Face folder
    external      files that identify it, outside the run folder
    pack          the packed corpus that it was trained on, for held-out text; "" when it is not there
    corpus        the corpus that passages were planted in, as its probes.json lists them; "" without
    max_context   longest context of the model
    imported      whether it, or the model that it was tuned from, was trained elsewhere
    decoder       its configuration, and
    vocabulary    its tokenizer.json as it is now; None before they exist
    """

    name: str
    model: str
    tokenizer: str
    max_context: int
    imported: bool = False
    decoder: DecoderConfig | None = None
    vocabulary: Path | None = None
    steps: tuple[Step, ...] = ()
    external: Mapping[str, Path] = field(default_factory=dict)
    pack: str = ""
    corpus: str = ""

    @property
    def after(self) -> tuple[str, ...]:
        """Names of the steps that make it."""
        return tuple(step.name for step in self.steps)

    @property
    def inputs(self) -> dict[str, str]:
        """Inputs of a job that reads model and tokenizer."""
        return {"start": self.model, "tokenizer": self.tokenizer}


def start_model(run: str, arm: str | None, root: Path) -> StartModel:
    """The model `run`, seen from the run folder `root`.

    Raises   ConfigError when `run` is empty; what `find_model` and `config_of` of
             `align.model_source` raise
    """
    if not run:
        raise ConfigError(
            "run is empty: there is no model to start from",
            fix="Set run=FOLDER, such as run=runs/demo/arms/xielu or a Hugging Face folder",
        )
    source = model_finder().find_model(run, arm)
    decoder = model_finder().config_of(source)
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
