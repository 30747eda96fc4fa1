"""Exact unlearning: a trained model as if some documents had never been in its corpus."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated

from stamm.align.steps import StartModel
from stamm.audit.config import AuditConfig
from stamm.audit.steps import audit_step
from stamm.base.bounds import AtLeastOne, distinct
from stamm.base.config import validate
from stamm.base.errors import ConfigError
from stamm.corpus.dedup.config import DedupConfig
from stamm.corpus.inputs import expand
from stamm.evaluate.config import EvaluateConfig
from stamm.evaluate.steps import evaluate_step
from stamm.pages.config import ReportConfig
from stamm.pretrain.config import PretrainConfig
from stamm.pretrain.forget.config import ForgetConfig, ForgetPlanConfig, ForgetRule, Start
from stamm.pretrain.steps import forget_step, pretrain_step
from stamm.recipes.branches import pretraining_of
from stamm.recipes.start_model import start_model
from stamm.recipes.study import MANIFEST
from stamm.reports.steps import report_step
from stamm.runs.arms import run_of_arm
from stamm.runs.job import Step
from stamm.runs.run import Run

BEFORE, FORGET = "before", "forget"


@dataclass(frozen=True, kw_only=True)
class ForgetRecipe:
    """Train a model again from the last checkpoint before it read some documents, without them.

    run, arm     the trained model: a run folder with a packed corpus, or one of its arms; read only
    documents    files of deletion requests, a line each, as `replay.deletions`
    rule         "replace": each sequence with a token of a document is replaced by the next unread one.
                 "drop": their tokens are hidden from the others and out of the loss, and sequences stay
    start        "exact": the last checkpoint before the first of their tokens was read, or the beginning where
                 there is none. The bits are those of a run from the beginning without them; refused where
                 the machine would give others. "beginning": all steps again, exact on any machine.
                 "approximate": as "exact", but with other bits on another machine, and where no checkpoint
                 is early enough from the oldest one, which has read some of the documents
    near         detection of near duplicates, which are listed; None: none
    passages     forgotten documents that are audited, and as many held-out ones, at most
    evaluate, audit   of the model before and after; None: none
    code         references to the user's code that the run names and this one may execute
    """

    run: str = ""
    arm: str | None = None
    documents: Annotated[tuple[str, ...], distinct("names a file twice")] = ()
    rule: ForgetRule = "replace"
    start: Start = "exact"
    near: DedupConfig | None = field(
        default_factory=lambda: DedupConfig(bands=28, band_hashes=4, threshold=0.5)
    )
    passages: AtLeastOne = 64
    evaluate: EvaluateConfig | None = field(
        default_factory=lambda: EvaluateConfig(tasks=("held_out",))
    )
    audit: AuditConfig | None = field(
        default_factory=lambda: AuditConfig(prefix_tokens=16, new_tokens=16, grid=None, redact=True)
    )
    code: tuple[str, ...] = ()
    report: ReportConfig = field(default_factory=ReportConfig)

    def __post_init__(self) -> None:
        own = self.audit is None or not (self.audit.passages or self.audit.reference)
        validate(self, ("audit", own, "has passages or a reference of its own: leave them out"))

    def steps(self, root: Path) -> tuple[Step, ...]:
        """All steps in the run folder `root`, in order.

        Raises   ConfigError when there is no finished pretraining run with a packed corpus, or no request
        """
        if not self.documents:
            raise ConfigError(
                "documents is empty: there is nothing to forget",
                fix="Set documents=FILE with a URL or document_id on each line",
            )
        files = expand(self.documents, "documents")
        model = start_model(self.run, self.arm, root)
        arm = Path(os.path.normpath(root / model.model)).parent
        config = self._training(model, arm)
        audit = self.audit
        plan = ForgetPlanConfig(
            documents=self.documents,
            start=self.start,
            near=self.near,
            passages=self.passages,
            passage_tokens=audit.prefix_tokens + audit.new_tokens if audit else 0,
            training=config,
        )
        pack = Path(os.path.normpath(root / model.pack)) / MANIFEST
        known = {str(path): path for path in (pack, arm / "config.json", arm / MANIFEST)}
        external = {**model.external, **known}
        source = {"source": os.path.relpath(arm / "config.json", root)}
        inputs = {"pack": model.pack, "tokenizer": model.tokenizer, **source}
        corpus = {"corpus": model.corpus} if model.corpus else {}
        name = f"{model.name}-without"
        steps = [
            forget_step(plan, FORGET, inputs | corpus, external={**external, **files}),
            *self._measured(model, BEFORE, BEFORE, model.model),
            pretrain_step(
                f"pretrain.{name}",
                f"arms/{name}",
                config,
                {**inputs, "forget": FORGET},
                external=external,
                costly=True,
            ),
            *self._measured(model, name, f"arms/{name}", f"arms/{name}/model"),
        ]
        return (*steps, report_step(self.report))

    def _training(self, model: StartModel, arm: Path) -> ForgetConfig:
        if model.steps or not model.pack:
            raise ConfigError(
                f"run = {self.run} has no packed corpus, whose order defines what was read when",
                fix="Name the run that trained the model",
            )
        if why := Run(run_of_arm(arm), "", (), None).unfinished():
            raise ConfigError(f"run = {self.run}: {why}", fix="Finish that run first")
        config = pretraining_of(arm, self.code)
        if config.begin is not None or config.foreign is not None or config.tuned:
            why = "begins from another run's checkpoint" if config.begin else "reads other files"
            raise ConfigError(
                f"run = {self.run} {why}, so that its own order does not define all that was read",
                fix="Forget in the run that it begins from, and repeat this one from there",
            )
        given = {f.name: getattr(config, f.name) for f in fields(PretrainConfig)}
        return ForgetConfig(rule=self.rule, **given)

    def _measured(self, start: StartModel, name: str, folder: str, model: str) -> list[Step]:
        """Evaluation and audit of a model."""
        steps: list[Step] = []
        if self.evaluate is not None:
            steps.append(
                evaluate_step(
                    f"evaluate.{name}",
                    f"{folder}/evaluate",
                    model,
                    self.evaluate,
                    tokenizer=start.tokenizer,
                    pack=start.pack,
                    external=start.external,
                )
            )
        if self.audit is not None:
            steps.append(
                audit_step(
                    f"audit.{name}",
                    f"{folder}/audit",
                    model,
                    self.audit,
                    tokenizer=start.tokenizer,
                    passages=f"{FORGET}/passages.jsonl",
                    external=start.external,
                )
            )
        return steps


def forget() -> ForgetRecipe:
    """A trained model as if documents had never been in its corpus; set run=FOLDER documents=FILE."""
    return ForgetRecipe()
