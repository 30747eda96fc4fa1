"""A corpus built step after step, as a run does it, for the tests of every room above it."""

from __future__ import annotations

from pathlib import Path

from stamm.corpus.canaries.job import inject
from stamm.corpus.config import CorpusConfig, PackConfig
from stamm.corpus.filter_job import filter_inputs
from stamm.corpus.finalize_job import finalize_corpus
from stamm.corpus.global_filter_job import filter_globally
from stamm.corpus.pack_job import pack
from stamm.corpus.tokenize_job import tokenize
from stamm.corpus.tokenizer.config import TokenizeConfig
from stamm.runs.executors import Execution, LocalExecutor
from stamm.runs.job import Workspace


def build_corpus(config: CorpusConfig, root: Path, execution: Execution | None = None) -> Path:
    """The corpus of a configuration, built step after step below `root`; its folder."""
    folders = {name: root / name for name in ("canaries", "filtered", "global_filter", "corpus")}
    inputs: dict[str, Path] = {}

    def place(name: str) -> Workspace:
        folders[name].mkdir(exist_ok=True)
        return Workspace(
            folder=folders[name],
            inputs=dict(inputs),
            execution=execution or LocalExecutor(workers=1),
        )

    if config.injection_config is not None:
        inject(config.injection_config, place("canaries"))
        inputs["canaries"] = folders["canaries"]
    filter_inputs(config.filter_config, place("filtered"))
    inputs["filtered"] = folders["filtered"]
    filter_globally(config.global_filter_config, place("global_filter"))
    inputs["global_filter"] = folders["global_filter"]
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
