"""A corpus built step after step, as a run does it, for the tests of every room above it."""

from __future__ import annotations

from pathlib import Path

from stamm.corpus.config import CorpusConfig
from stamm.corpus.filter_job import screen_inputs
from stamm.corpus.finalize_job import finalize_corpus
from stamm.corpus.global_filter_job import decide
from stamm.corpus.inject_canaries import plant
from stamm.corpus.pack_config import PackConfig
from stamm.corpus.pack_job import pack
from stamm.corpus.tokenize_job import tokenize
from stamm.corpus.tokenizer.config import TokenizeConfig
from stamm.runs.executors import Execution, LocalExecutor
from stamm.runs.job import Workspace


def build_corpus(config: CorpusConfig, root: Path, execution: Execution | None = None) -> Path:
    """The corpus of a configuration, built step after step below `root`; its folder."""
    folders = {name: root / name for name in ("planted", "screened", "decided", "corpus")}
    inputs: dict[str, Path] = {}

    def place(name: str) -> Workspace:
        folders[name].mkdir(exist_ok=True)
        return Workspace(
            folder=folders[name],
            inputs=dict(inputs),
            execution=execution or LocalExecutor(workers=1),
        )

    if config.injection_config is not None:
        plant(config.injection_config, place("planted"))
        inputs["planted"] = folders["planted"]
    screen_inputs(config.filter_config, place("screened"))
    inputs["screened"] = folders["screened"]
    decide(config.global_filter_config, place("decided"))
    inputs["decided"] = folders["decided"]
    finalize_corpus(config.global_filter_config, place("corpus"))
    return folders["corpus"]


def pack_corpus(
    config: PackConfig, root: Path, execution: Execution | None = None, name: str = "pack"
) -> Path:
    """The packed corpus of root/corpus with root/tokenizer; its folder, root/`name`."""
    execution = execution or LocalExecutor(workers=1)
    tokens, packed = root / "tokens", root / name
    for folder in (tokens, packed):
        folder.mkdir(exist_ok=True)
    inputs = {"corpus": root / "corpus", "tokenizer": root / "tokenizer"}
    tokenize(TokenizeConfig(), Workspace(folder=tokens, inputs=inputs, execution=execution))
    pack(config, Workspace(folder=packed, inputs={"tokens": tokens}, execution=execution))
    return packed
