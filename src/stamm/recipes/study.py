"""Study recipe: one corpus, several arms that differ in their feed-forward block or more, one report."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from stamm.audit.config import AuditConfig
from stamm.audit.steps import audit_step
from stamm.base.bounds import NotNegative
from stamm.base.config import check_all, validate
from stamm.base.errors import ConfigError
from stamm.corpus.config import CorpusConfig, PackConfig
from stamm.corpus.steps import corpus_steps, token_steps
from stamm.corpus.tokenizer.config import TekkenConfig, TokenizerConfig
from stamm.engine.checkpoint_files import STATE
from stamm.evaluate.config import EvaluateConfig
from stamm.evaluate.steps import evaluate_step
from stamm.export.config import ExportConfig
from stamm.export.steps import export_step
from stamm.models.config import DecoderConfig
from stamm.models.flops import count_parameters
from stamm.pages.config import ReportConfig
from stamm.pretrain.config import PretrainConfig
from stamm.pretrain.steps import activation_steps, pretrain_step
from stamm.recipes.arm import Arm
from stamm.recipes.checks import check_audit, check_evaluation, check_export
from stamm.reports.steps import report_step
from stamm.runs.executors import Execution, LocalExecutor
from stamm.runs.job import Step
from stamm.runs.model_outputs import DECODER

MANIFEST = "manifest.json"


@dataclass(frozen=True, kw_only=True)
class Study:
    """From raw pages to trained, audited and exported models.

    pretrain   shared by the arms, which differ in the feed-forward block, and in what they override
    evaluate   None: the models are not evaluated; likewise audit and export
    exported   names of the arms that are exported, unless export is None
    tolerance  largest difference in parameters between arms, as a share of the largest
    execution  executor of the corpus shards; may change when a run is resumed

    Raises     ConfigError for problems that would otherwise stop it after hours of training.
    """

    corpus: CorpusConfig
    tokenizer: TokenizerConfig | TekkenConfig
    pack: PackConfig
    pretrain: PretrainConfig
    arms: tuple[Arm, ...]
    evaluate: EvaluateConfig | None
    audit: AuditConfig | None
    export: ExportConfig | None
    exported: tuple[str, ...] = ("xielu",)
    report: ReportConfig = field(default_factory=ReportConfig)
    tolerance: NotNegative = 0.001
    execution: Execution = field(default_factory=LocalExecutor)

    def __post_init__(self) -> None:
        check_all(
            self._check_training,
            self._check_arms,
            self._check_evaluation,
            self._check_audit,
            self._check_export,
        )

    def _check_training(self) -> None:
        sizes = {arm.name: count_parameters(self.model_of(arm)).total for arm in self.arms}
        spread = (max(sizes.values()) - min(sizes.values())) / max(sizes.values()) if sizes else 0
        listed = ", ".join(f"{name}: {size}" for name, size in sizes.items())
        vocabulary = self.pretrain.model.vocab_size
        if self.pretrain.foreign is not None:
            raise ConfigError(
                "pretrain.foreign is set, but a study packs its own corpus",
                fix="Train on Megatron files with a PretrainConfig recipe",
            )
        if self.pretrain.pack:
            raise ConfigError(
                f"pretrain.pack = {self.pretrain.pack} is set, but a study packs its own corpus",
                fix="Leave it out, or train on it with a PretrainConfig recipe",
            )
        if vocabulary != self.tokenizer.vocab_size:
            raise ConfigError(
                f"pretrain.model.vocab_size = {vocabulary} is not tokenizer.vocab_size = "
                f"{self.tokenizer.vocab_size}",
                fix="Set both",
            )
        if spread > self.tolerance:
            raise ConfigError(
                f"the arms differ by {spread:.2%} in parameters ({listed}), more than tolerance = "
                f"{self.tolerance:.2%}",
                fix="Give a plain block 1.5 times the width of a gated one",
            )

    def _check_arms(self) -> None:
        names = [arm.name for arm in self.arms]
        unknown = not set(self.exported) <= set(names) and self.export is not None
        validate(
            self,
            ("arms", bool(names), "is empty"),
            ("arms", len(set(names)) == len(names), "has two arms of one name"),
            ("exported", len(set(self.exported)) == len(self.exported), "names an arm twice"),
            ("exported", not unknown, f"names no arm; there are {', '.join(names)}"),
        )

    def _check_evaluation(self) -> None:
        if self.evaluate is not None:
            check_evaluation(self.evaluate, self.corpus, self.pretrain.model)

    def _check_audit(self) -> None:
        if self.audit is not None:
            check_audit(self.audit, self.corpus, self.pretrain.model)

    def _check_export(self) -> None:
        models = {arm.name: self.model_of(arm) for arm in self.arms}
        if self.export is not None:
            known = {name: models[name] for name in self.exported if name in models}
            check_export(self.export, known)

    def model_of(self, arm: Arm) -> DecoderConfig:
        """The decoder of one arm."""
        return arm.model_of(self.pretrain.model)

    def pretrain_of(self, arm: Arm) -> PretrainConfig:
        """The pretraining run of one arm."""
        return arm.pretrain_of(self.pretrain)

    def steps(self) -> tuple[Step, ...]:
        """All steps, in order."""
        steps = [
            *activation_steps(arm.ffn for arm in self.arms),
            *corpus_steps(self.corpus),
            *token_steps(self.tokenizer, self.pack),
        ]
        steps.extend(_pretrain_step(arm.name, self.pretrain_of(arm)) for arm in self.arms)
        for arm in self.arms:
            if self.evaluate is not None:
                folder = f"arms/{arm.name}"
                steps.append(
                    evaluate_step(
                        f"evaluate.{arm.name}",
                        f"{folder}/evaluate",
                        f"{folder}/model",
                        self.evaluate,
                    )
                )
            if self.audit is not None:
                folder = f"arms/{arm.name}"
                steps.append(
                    audit_step(
                        f"audit.{arm.name}", f"{folder}/audit", f"{folder}/model", self.audit
                    )
                )
        if self.export is not None:
            steps.extend(export_step(name, self.export) for name in self.exported)
        return (*steps, report_step(self.report))


def single_steps(
    config: PretrainConfig, root: Path, inputs: Mapping[str, Path], external: Sequence[Path]
) -> tuple[Step, ...]:
    """Steps of one pretraining run in `root` on existing tokens: train, then report.

    An activation of the user's own is checked before.

    inputs     input paths by the names of the pretraining job
    external   files whose hash identifies the inputs
    """
    step = _pretrain_step(config.model.ffn.spec.name, config)
    train = replace(
        step,
        inputs={
            name: os.path.relpath(path, root)
            for name, path in {**_start_of(config), **inputs}.items()
        },
        external={**step.external, **{str(path): path for path in external}},
    )
    checks = activation_steps([config.model.ffn])
    return (*checks, train, report_step(ReportConfig()))


def _pretrain_step(arm: str, config: PretrainConfig) -> Step:
    start = _start_of(config)
    identity = {str(path): path for folder in start.values() for path in _identity_of(folder)}
    # Outside the run folder, wherever that is.
    outside = {name: str(path.absolute()) for name, path in start.items()}
    return pretrain_step(
        f"pretrain.{arm}",
        f"arms/{arm}",
        config,
        {"pack": "pack", "tokenizer": "tokenizer", **outside},
        external=identity,
        costly=True,
    )


def _start_of(config: PretrainConfig) -> dict[str, Path]:
    """The folder that the run starts from, by the name of the pretraining job's input; {} for none.

    Raises   ConfigError when it is neither a checkpoint nor a stored decoder
    """
    if config.begin is None:
        return {}
    folder = Path(config.begin.checkpoint)
    if not _identity_of(folder):
        raise ConfigError(
            f"begin.checkpoint = {folder} holds neither a checkpoint ({STATE}) nor a stored decoder "
            f"({DECODER})",
            fix="Name a folder checkpoints/step-… or model of a run",
        )
    return {"begin": folder}


def _identity_of(folder: Path) -> list[Path]:
    """The file with the hashes of a checkpoint or a stored decoder; [] when it is neither."""
    return [folder / name for name in (DECODER, STATE) if (folder / name).is_file()][:1]
