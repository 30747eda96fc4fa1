"""Charter recipe: answers rated by a judge that reads a written charter, and rewards made of it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from stamm.align.data.config import SelectConfig
from stamm.align.judge.charter import read_charter, shipped
from stamm.align.judge.config import (
    CharterConfig,
    EndpointJudge,
    JudgeConfig,
    RatingConfig,
    ValidationConfig,
)
from stamm.base.errors import ConfigError
from stamm.pages.config import ReportConfig
from stamm.reports.steps import report_step
from stamm.runs.job import Step

_WEIGHTS = (
    "*.safetensors",
    "model.safetensors.index.json",
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "tokenizer/tokenizer.json",
    "decoder.json",
    "model/decoder.json",
    "arms/*/model/decoder.json",
)
_OUTPUTS = ("ratings.jsonl", "rewards.jsonl", "summary.json", "bad_rows.jsonl", "requests.jsonl")


@dataclass(frozen=True, kw_only=True)
class CharterRecipe:
    """Answers rated 1 to 9 by the articles of a charter, the best of each prompt ordered by comparisons.

    charter      a Markdown file with numbered articles, or "package:apertus"
    answers      a file of rows with a prompt and an answer, such as `stamm sample` writes; required
    judge        the model that judges; its `model` is required
    validation   of the judge, before anything is rated; None: it is not validated
    select       makes rows with `ref_rewards` of sampled answers, for `stamm run align.qrpo data=…`;
                 None: none are made
    """

    charter: str = "package:apertus"
    answers: str = ""
    judge: JudgeConfig = field(default_factory=EndpointJudge)
    rating: RatingConfig = field(default_factory=RatingConfig)
    validation: ValidationConfig | None = field(default_factory=ValidationConfig)
    select: SelectConfig | None = None
    report: ReportConfig = field(default_factory=ReportConfig)

    def steps(self) -> tuple[Step, ...]:
        """All steps, in order.

        Raises   ConfigError when the answers or the judge are not named; DataError when a file is
                 missing or the charter cannot be read
        """
        self._check_named()
        charter = read_charter(shipped(self.charter, "charter"))
        charter.chosen(self.rating.articles, "rating.articles")
        config = CharterConfig(
            charter=self.charter,
            answers=self.answers,
            judge=self.judge,
            rating=self.rating,
            validation=self.validation,
        )
        common = {self.charter: shipped(self.charter, "charter"), **_judge_files(self.judge)}
        steps = []
        if self.validation is not None:
            charter.chosen(self.validation.articles, "validation.articles")
            name = self.validation.good_answers
            steps.append(
                Step(
                    name="judge",
                    job="judge",
                    config=replace(config, answers=""),
                    folder="judge",
                    external={**common, name: shipped(name, "validation.good_answers")},
                    outputs=("judge.json", "requests.jsonl"),
                    sharded=True,  # stored replies are kept when an input changes
                )
            )
        steps.append(
            Step(
                name="charter",
                job="charter",
                config=config,
                folder="charter",
                inputs={"judge": "judge"} if steps else {},
                external={**common, self.answers: shipped(self.answers, "answers")},
                outputs=_OUTPUTS,
                sharded=True,
            )
        )
        if self.select is not None:
            steps.append(
                Step(
                    name="select",
                    job="select",
                    config=self.select,
                    folder="select",
                    inputs={"answers": "charter/rewards.jsonl"},
                    outputs=("examples.jsonl", "summary.json"),
                )
            )
        return (*steps, report_step(self.report))

    def _check_named(self) -> None:
        needed = {"answers": self.answers, "judge.model": self.judge.model}
        if isinstance(self.judge, EndpointJudge):
            needed["judge.connection.base_url"] = self.judge.connection.base_url
        if missing := [name for name, value in needed.items() if not value]:
            raise ConfigError(
                f"{' and '.join(missing)} must be set",
                fix="Set answers=FILE and judge.model=NAME judge.connection.base_url=http://…/v1, "
                "or judge=LocalJudge judge.model=FOLDER",
            )


def charter() -> CharterRecipe:
    """Rate answers by a written charter with a judge, and turn their order into rewards."""
    return CharterRecipe()


def _judge_files(judge: JudgeConfig) -> dict[str, Path]:
    """The files that identify the judge's model and its recorded replies."""
    files = {}
    if judge.recorded:
        files[judge.recorded] = shipped(judge.recorded, "judge.recorded")
    if not isinstance(judge, EndpointJudge):
        root = Path(judge.model)
        paths = [path for name in _WEIGHTS for path in sorted(root.glob(name))]
        files |= {f"judge/{path.relative_to(root)}": path for path in paths}
    return files
