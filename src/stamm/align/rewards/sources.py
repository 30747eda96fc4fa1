"""Files outside the package that decide a reward, from its configuration alone. No libraries here."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from stamm.align.rewards.reward_config import (
    CustomReward,
    JsonFormat,
    ModelReward,
    NotMemorized,
    RewardConfig,
    Weighted,
)
from stamm.base.errors import DataError
from stamm.base.user_code import code_files
from stamm.corpus.formats import JSONL
from stamm.runs.arms import trained_arms
from stamm.runs.model_outputs import HEAD

_READABLE = (".txt", *JSONL, ".parquet")


def reward_sources(config: RewardConfig) -> dict[str, Path]:
    """The files that decide a reward, by name: the user's code, a JSON schema, a corpus, a model.

    The manifest of scored answers has their hashes, and a recipe scores again when one has changed.

    Raises   DataError when there is no such corpus or reward model
    """
    match config:
        case Weighted():
            return {
                name: path for each in config.rewards for name, path in reward_sources(each).items()
            }
        case CustomReward():
            return code_files((config.reference,))
        case JsonFormat() if config.schema:
            return {config.schema: Path(config.schema)}
        case NotMemorized():
            return _named(path for each in config.corpus for path in corpus_files(each))
        case ModelReward():
            return _named(sorted(reward_model_folder(config.run).glob("*.safetensors")))
    return {}


def corpus_files(source: str) -> list[Path]:
    """The files of a source of texts: the documents of a run folder, or one file.

    Raises   DataError when there is none, or when its format is not known.
    """
    path = Path(source)
    if path.is_dir():
        folder = path / "corpus" if (path / "corpus").is_dir() else path
        found = sorted(folder.glob("documents-[0-9]*.parquet"))
        if not found:
            raise DataError(
                f"{folder} contains no documents-00000.parquet", fix="Name a run folder"
            )
        return found
    if not path.is_file():
        raise DataError(f"{source} is neither a run folder nor a file")
    if not path.name.endswith(_READABLE):
        raise DataError(f"{source} has an unknown format", fix=f"Use {', '.join(_READABLE)}")
    return [path]


def reward_model_folder(run: str) -> Path:
    """The folder with the weights and the head of a reward model: of a run, an arm, or Hugging Face's.

    Raises   DataError when there is not exactly one reward model.
    """
    root = Path(run)
    folders = [root, *(arm / "model" for arm in trained_arms(root))]
    found = [folder for folder in folders if (folder / HEAD).is_file()]
    if len(found) != 1:
        raise DataError(
            f"{run} holds {len(found) or 'no'} reward models: folders with {HEAD}",
            fix="Name one of its arms" if found else "Train one: `stamm run align.reward`",
        )
    return found[0]


def _named(paths: Iterable[Path]) -> dict[str, Path]:
    return {str(path): path for path in paths}
