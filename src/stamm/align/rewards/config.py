"""Configuration of rewards: what is asked of an answer, and the files that decide it. No torch here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from stamm.base.bounds import (
    AtLeastOne,
    Finite,
    Natural,
    NotNegative,
    Text,
    not_empty,
    within,
)
from stamm.base.config import Bounded, validate
from stamm.base.errors import DataError
from stamm.base.files import has_ending
from stamm.base.user_code import NAMES_CODE, code_files, is_reference
from stamm.corpus.inputs import JSONL
from stamm.models.model_source import ModelSource, find_models
from stamm.runs.model_outputs import HEAD


@dataclass(frozen=True, kw_only=True)
class Number(Bounded):
    """1 if the number that the answer ends with equals the row's, else 0.

    A number after "####" or in \\boxed{} comes before others; how numbers are read: docs/evaluation.md.

    column      column of the row that holds the right number
    tolerance   largest absolute difference that counts as equal
    """

    column: Text = "answer"
    tolerance: NotNegative = 0.0


@dataclass(frozen=True, kw_only=True)
class JsonFormat:
    """1 if the answer is one JSON value, valid under a schema, else 0.

    schema   a file with a JSON schema; "": the row's column "schema" if it has one, else any JSON
    fence    whether a Markdown code block around the value is allowed
    """

    schema: str = ""
    fence: bool = True


@dataclass(frozen=True, kw_only=True)
class Length:
    """1 if the answer has a number of characters in a window, else 0.

    smallest, largest   the window, both included
    """

    smallest: Natural = 1
    largest: Natural = 1000

    def __post_init__(self) -> None:
        validate(self, ("smallest", self.smallest <= self.largest, "must be at most largest"))


@dataclass(frozen=True, kw_only=True)
class Language:
    """1 if the answer is in a language, else 0; also 0 if it is too short to identify.

    language   "deu_Latn", "deu" or "de"; "": the row's column "language"
    """

    language: str = ""


@dataclass(frozen=True, kw_only=True)
class Instructions:
    """Whether an answer follows the row's checkable instructions, as in IFEval.

    The row names them in the columns instruction_id_list and kwargs. An empty answer follows none.

    mode    "strict": the answer as it is; "loose": also without its first line, its last line or
            asterisks, if that follows an instruction
    count   "all": 1 if all are followed, else 0; "share": the share of those that are followed
    """

    mode: Literal["strict", "loose"] = "strict"
    count: Literal["all", "share"] = "all"


@dataclass(frozen=True, kw_only=True)
class NotMemorized(Bounded):
    """1 if an answer of some length shares no long run of words with a corpus, else 0.

    Case, punctuation and line breaks do not matter. A run that the prompt has too is not counted:
    quoting it is not memorization. Memory: 8 bytes per word of the corpus.

    corpus       run folders with a corpus, and files of text: .txt, or .jsonl, .jsonl.gz, .jsonl.zst,
                 .parquet with a column `column`
    words        shortest run that counts
    min_words    an answer of fewer words has reward 0: an empty one repeats nothing
    column       column of the text
    """

    corpus: Annotated[tuple[str, ...], not_empty("name a run folder or a file")]
    words: Annotated[int, within("[2, 100]")] = 13
    min_words: Natural = 20
    column: Text = "text"


@dataclass(frozen=True, kw_only=True)
class Stopped:
    """1 if the model ended the answer itself, 0 if it was cut at its longest length.

    The row's column "stopped" records it, as `stamm sample` writes it.
    """


@dataclass(frozen=True, kw_only=True)
class Code(Bounded):
    """1 if the answer's Python code passes the row's tests in a sandboxed process, else 0.

    The code is the last fenced block, or the whole answer without one. What the sandbox does and does not
    protect from: docs/alignment/rewards.md.

    column          column of the row with the tests: Python that raises where the code is wrong, a text or
                    a list of texts
    seconds         processor time of each process; wall time: four times as much
    memory_mib      address space of each process
    output_kib      largest output, and largest file
    processes       processes and threads at one time
    workers         answers that are tested at one time
    allow_network   run also where the kernel gives no namespaces: with the network, and with all files
    """

    column: Text = "tests"
    seconds: Annotated[float, within("(0, 3600]")] = 5.0
    memory_mib: Annotated[int, within("[64, 2^40]", ": Python needs 64")] = 512
    output_kib: Annotated[int, within("[1, 2^40]")] = 64
    processes: Annotated[int, within("[1, 2^20]")] = 8
    workers: AtLeastOne = 2
    allow_network: bool = False


@dataclass(frozen=True, kw_only=True)
class ModelReward(Bounded):
    """Reward of a trained reward model (`stamm run align.reward`).

    run   its run folder, or one arm of it
    """

    run: Annotated[str, not_empty("name the folder of a reward model")]


@dataclass(frozen=True, kw_only=True)
class CustomReward:
    """A user's reward.

    reference   "mine.py:MyReward" or "package.module:Name" (docs/extending/reward.md)
    """

    REFERENCE_KEY: ClassVar = "reference"

    reference: str = field(metadata=NAMES_CODE)

    def __post_init__(self) -> None:
        message = "is not of the form mine.py:MyReward"
        validate(self, ("reference", is_reference(self.reference), message))


SingleReward = (
    Number
    | JsonFormat
    | Length
    | Language
    | Instructions
    | NotMemorized
    | Stopped
    | Code
    | ModelReward
    | CustomReward
)


@dataclass(frozen=True, kw_only=True)
class Weighted:
    """Several rewards in one number.

    sum    weight_1 reward_1 + weight_2 reward_2 + ...
    mean   the same, divided by the sum of the weights

    rewards   "Number,Length" on the command line, and rewards.1.largest=200 for its settings
    weights   one for each; empty: 1 for each
    """

    rewards: Annotated[tuple[SingleReward, ...], not_empty("name at least one reward")]
    weights: tuple[Finite, ...] = ()
    combine: Literal["sum", "mean"] = "sum"

    def __post_init__(self) -> None:
        fits = not self.weights or len(self.weights) == len(self.rewards)
        mean = self.combine == "sum" or not self.weights or sum(self.weights) > 0
        validate(
            self,
            ("weights", fits, f"must be as many as rewards, {len(self.rewards)}"),
            ("weights", mean, "must have a positive sum for a mean"),
        )


RewardConfig = SingleReward | Weighted


@dataclass(frozen=True, kw_only=True)
class ScoreConfig:
    """Configuration of `stamm score`.

    reward     the reward of each answer
    bad_rows   "skip" names rows that cannot be read and goes to the next; "stop" ends at the first
    """

    reward: RewardConfig = field(default_factory=Number)
    bad_rows: Literal["skip", "stop"] = "skip"


_READABLE = (".txt", *JSONL, ".parquet")


def reward_sources(config: RewardConfig) -> dict[str, Path]:
    """The files that decide a reward, by name: the user's code, a JSON schema, a corpus, a model.

    The manifest of scored answers has their hashes, and a recipe scores again when one has changed.

    Raises   DataError when there is no such corpus or reward model
    """
    match config:
        case Weighted():
            return {
                name: path for part in config.rewards for name, path in reward_sources(part).items()
            }
        case CustomReward():
            return code_files((config.reference,))
        case JsonFormat() if config.schema:
            return {config.schema: Path(config.schema)}
        case NotMemorized():
            return _named(path for source in config.corpus for path in corpus_files(source))
        case ModelReward():
            return _named(sorted(reward_model_source(config.run).model.glob("*.safetensors")))
    return {}


def corpus_files(source: str) -> list[Path]:
    """The files of a source of texts: the documents of a run folder, or one file.

    Raises   DataError when there is none, or when its format is not known.
    """
    path = Path(source)
    if path.is_dir():
        folder = path / "corpus" if (path / "corpus").is_dir() else path
        files = sorted(folder.glob("documents-[0-9]*.parquet"))
        if not files:
            raise DataError(
                f"{folder} contains no documents-00000.parquet", fix="Name a run folder"
            )
        return files
    if not path.is_file():
        raise DataError(f"{source} is neither a run folder nor a file")
    if not has_ending(path.name, _READABLE):
        raise DataError(f"{source} has an unknown format", fix=f"Use {', '.join(_READABLE)}")
    return [path]


def reward_model_source(run: str) -> ModelSource:
    """The reward model of a run, of one of its arms, or of a Hugging Face folder.

    Raises   DataError when there is not exactly one, and what `find_models` raises.
    """
    sources = [source for source in find_models(run) if (source.model / HEAD).is_file()]
    if len(sources) != 1:
        raise DataError(
            f"{run} holds {len(sources) or 'no'} reward models: folders with {HEAD}",
            fix="Name one of its arms" if sources else "Train one: `stamm run align.reward`",
        )
    return sources[0]


def _named(paths: Iterable[Path]) -> dict[str, Path]:
    return {str(path): path for path in paths}
