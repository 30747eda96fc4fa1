"""`stamm.sample` and `stamm.score`: completions of prompts by a model; a reward for each answer of a data file."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stamm.align.data.config import locate_file
from stamm.align.records import ScoreManifest
from stamm.align.results.completions import CompletionLine
from stamm.align.rewards.config import ScoreConfig
from stamm.align.rewards.score import score_file
from stamm.align.sampling import sample_job
from stamm.align.sampling.config import SampleConfig
from stamm.base.config import assignments, override
from stamm.base.console import Console
from stamm.base.errors import ConfigError
from stamm.base.files import has_ending
from stamm.base.schema import read_lines
from stamm.models.model_source import find_model
from stamm.runs.job import Workspace

_DATA = (".jsonl.zst", ".jsonl.gz", ".jsonl", ".json", ".parquet")


@dataclass(frozen=True, kw_only=True)
class Completions:
    """Sampled completions: `file` is completions.jsonl, with the others of the job beside it."""

    file: Path

    @property
    def lines(self) -> tuple[CompletionLine, ...]:
        """The completions, in the order of the prompts."""
        return tuple(read_lines(CompletionLine, self.file))


def sample(
    model: str | os.PathLike[str],
    *changes: str,
    arm: str | None = None,
    out: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> Completions:
    """Sample completions of prompts from a run, one arm of it, or a Hugging Face folder, in the chat format.

        stamm.sample("runs/demo/arms/xielu", prompts="prompts.jsonl", n=4).lines

    changes, settings   of `SampleConfig`: "temperature=0", temperature=0
    arm        of a run with several
    out        the folder; by default completions
    Raises     StammError with what is wrong and the fix
    """
    config = override(SampleConfig(prompts="-"), assignments(changes, settings))
    if config.prompts == "-":
        raise ConfigError("no prompts are given", fix="Set prompts=FILE")
    source = find_model(str(model), arm)
    locate_file(config.prompts, "prompts")
    folder = Path(out or "completions")
    folder.mkdir(parents=True, exist_ok=True)
    inputs = {"model": source.model, "tokenizer": source.tokenizer}
    with contextlib.closing(Console()) as console:
        sample_job.run(config, Workspace(folder=folder, inputs=inputs, progress=console))
    return Completions(file=folder / sample_job.COMPLETIONS)


@dataclass(frozen=True, kw_only=True)
class ScoredFile:
    """A file with the rewards of its answers, and a manifest beside it."""

    file: Path
    record: ScoreManifest


def score(
    data: str | os.PathLike[str],
    *changes: str,
    out: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> ScoredFile:
    """Add a reward to each answer of a JSONL or Parquet file.

        stamm.score("answers.jsonl", reward="Number", **{"reward.column": "final"}).record.mean_reward

    changes, settings   of `ScoreConfig`: "reward=Number", reward="Number"
    out        the scored file; by default DATA.scored.jsonl in the working folder
    Raises     StammError with what is wrong and the fix
    """
    path = Path(data)
    ending = next((data_ending for data_ending in _DATA if has_ending(path.name, data_ending)), "")
    scored = f"{path.name[: len(path.name) - len(ending)]}.scored.jsonl"
    config = override(ScoreConfig(), assignments(changes, settings))
    file = Path(out or scored)
    return ScoredFile(file=file, record=score_file(path, file, config))
