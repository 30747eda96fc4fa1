"""NAME.manifest.json beside a scored file: what was rewarded, by which files, and what was not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from stamm.runs.schemas.run import InputFile


@dataclass(frozen=True, kw_only=True)
class RowWithoutReward:
    """A row that could not be read or scored: file, row from 1, and the reason.

    cause   "bad_row", "empty_answer" or "no_reward"
    """

    file: str
    row: int
    reason: str
    cause: str = "bad_row"


@dataclass(frozen=True, kw_only=True)
class ScoreManifest:
    """NAME.manifest.json: a file of rewards.

    reward             name of the reward
    config             resolved, as `stamm.base.config.to_plain` writes it
    reads              files that decide the reward: the user's code, a JSON schema, model weights
    input, output      the file of answers, and the file with their rewards
    rows, answers      rows with rewards, and their answers: a pair has two
    mean_reward        of all answers
    agreement          share of the pairs whose chosen answer has the larger reward, a tie counting
                       1/2; None without pairs
    distinct_rewards   number of different values
    prompts            different prompts
    tied_pairs         share of the pairs of answers to one prompt with equal rewards; None without any
    constant_prompts   share of the prompts with several answers that all have one reward
    length_correlation   Spearman's, of reward and characters of the answer; None if one is constant
    num_bad_rows       rows without a reward; `bad_rows` lists the first 1,000
    """

    SCHEMA: ClassVar[int] = 2

    kind: str = "score"
    reward: str
    config: object = None
    reads: Mapping[str, InputFile]
    input: InputFile
    output: InputFile
    rows: int
    answers: int = 0
    mean_reward: float | None
    agreement: float | None = None
    distinct_rewards: int
    prompts: int = 0
    tied_pairs: float | None = None
    constant_prompts: float | None = None
    length_correlation: float | None = None
    num_bad_rows: int
    bad_rows: tuple[RowWithoutReward, ...]
