"""Configuration of rewards: what is asked of an answer. No torch here."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from stamm.base.config import validate
from stamm.base.user_code import NAMES_CODE, is_reference


@dataclass(frozen=True, kw_only=True)
class Number:
    """1 if the number that the answer ends with equals the row's, else 0.

    A number after "####" or in \\boxed{} comes before others; how numbers are read: docs/evaluation.md.

    column      column of the row that holds the right number
    tolerance   largest absolute difference that counts as equal
    """

    column: str = "answer"
    tolerance: float = 0.0

    def __post_init__(self) -> None:
        validate(
            self,
            ("column", bool(self.column), "is empty"),
            ("tolerance", 0 <= self.tolerance < math.inf, "must be finite and not negative"),
        )


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

    smallest: int = 1
    largest: int = 1000

    def __post_init__(self) -> None:
        fits = 0 <= self.smallest <= self.largest
        validate(self, ("smallest", fits, "must be from 0 to largest"))


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
class NotMemorized:
    """1 if an answer of some length shares no long run of words with a corpus, else 0.

    Case, punctuation and line breaks do not matter. A run that the prompt has too is not counted:
    quoting it is not memorization. Memory: 8 bytes per word of the corpus.

    corpus       run folders with a corpus, and files of text: .txt, or .jsonl, .jsonl.gz, .jsonl.zst,
                 .parquet with a column `column`
    words        shortest run that counts
    min_words    an answer of fewer words has reward 0: an empty one repeats nothing
    column       column of the text
    """

    corpus: tuple[str, ...]
    words: int = 13
    min_words: int = 20
    column: str = "text"

    def __post_init__(self) -> None:
        validate(
            self,
            ("corpus", len(self.corpus) > 0, "is empty: name a run folder or a file"),
            ("words", 2 <= self.words <= 100, "must lie in 2 to 100"),
            ("min_words", self.min_words >= 0, "must not be negative"),
            ("column", bool(self.column), "is empty"),
        )


@dataclass(frozen=True, kw_only=True)
class Stopped:
    """1 if the model ended the answer itself, 0 if it was cut at its longest length.

    The row's column "stopped" records it, as `stamm sample` writes it.
    """


@dataclass(frozen=True, kw_only=True)
class Code:
    """1 if the answer's Python code passes the row's tests in a sandboxed process, else 0.

    The code is the last fenced block, or the whole answer without one. What the sandbox does and does not
    protect from: docs/alignment.md.

    column          column of the row with the tests: Python that raises where the code is wrong, a text or
                    a list of texts
    seconds         processor time of each process; wall time: four times as much
    memory_mib      address space of each process
    output_kib      largest output, and largest file
    processes       processes and threads at one time
    workers         answers that are tested at one time
    allow_network   run also where the kernel gives no namespaces: with the network, and with all files
    """

    column: str = "tests"
    seconds: float = 5.0
    memory_mib: int = 512
    output_kib: int = 64
    processes: int = 8
    workers: int = 2
    allow_network: bool = False

    def __post_init__(self) -> None:
        validate(
            self,
            ("column", bool(self.column), "is empty"),
            ("seconds", 0 < self.seconds <= 3600, "must be positive and at most 3,600"),
            ("memory_mib", self.memory_mib >= 64, "must be at least 64: Python needs as much"),
            ("output_kib", self.output_kib >= 1, "must be at least 1"),
            ("processes", self.processes >= 1, "must be at least 1"),
            ("workers", self.workers >= 1, "must be at least 1"),
        )


@dataclass(frozen=True, kw_only=True)
class ModelReward:
    """Reward of a trained reward model (`stamm run align.reward`).

    run   its run folder, or one arm of it
    """

    run: str

    def __post_init__(self) -> None:
        validate(self, ("run", bool(self.run), "is empty: name the folder of a reward model"))


@dataclass(frozen=True, kw_only=True)
class CustomReward:
    """A user's reward.

    reference   "mine.py:MyReward" or "package.module:Name" (docs/extending/reward.md)
    """

    REFERENCE_KEY: ClassVar = "reference"

    reference: str = field(metadata=NAMES_CODE)

    def __post_init__(self) -> None:
        wrong = "is not of the form mine.py:MyReward"
        validate(self, ("reference", is_reference(self.reference), wrong))


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

    rewards: tuple[SingleReward, ...]
    weights: tuple[float, ...] = ()
    combine: Literal["sum", "mean"] = "sum"

    def __post_init__(self) -> None:
        fits = not self.weights or len(self.weights) == len(self.rewards)
        finite = all(map(math.isfinite, self.weights))
        mean = self.combine == "sum" or not self.weights or sum(self.weights) > 0
        validate(
            self,
            ("rewards", len(self.rewards) > 0, "is empty: name at least one reward"),
            ("weights", fits, f"must be as many as rewards, {len(self.rewards)}"),
            ("weights", finite, "must be finite"),
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
