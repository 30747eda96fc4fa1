"""Steps that alignment recipes share: prepare, reference, finetune; sample, score, select, compare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from stamm.align.data.data_files import evaluation_files, locate_file, locate_sources
from stamm.align.data.prepare_config import PrepareConfig
from stamm.align.data.select_config import SelectConfig
from stamm.align.policy.config import GRPOJobConfig
from stamm.align.results.answers_config import AnswersConfig, SampleAnswersConfig
from stamm.align.rewards.reward_config import ScoreConfig
from stamm.align.rewards.sources import reward_sources
from stamm.align.sampling.sample_config import SampleConfig
from stamm.align.training.finetune_config import FineTuneConfig, FineTuneJobConfig
from stamm.align.training.loss_config import needs_reference
from stamm.align.training.reference_config import ReferenceConfig
from stamm.audit.config import AuditConfig
from stamm.base.errors import ConfigError
from stamm.evaluate.config import EvaluateConfig, check_step, task_inputs
from stamm.export.config import (
    NOT_MEASURED,
    ExportConfig,
    check_held_out_file,
    check_without_text,
)
from stamm.models.sampling_config import SamplingConfig
from stamm.recipes.checks import check_reference, check_tuned_export
from stamm.recipes.start_model import StartModel
from stamm.runs.job import TRAINED, TRAINING_RECORDS, Step

START_AUDIT = "start_audit"


def prepare_step(
    config: PrepareConfig,
    tokenizer: str,
    *,
    name: str = "prepare",
    folder: str = "data",
    answers: str = "",
    after: Sequence[str] = (),
) -> Step:
    """Encode the files of `config`; or, with `answers`, a file that an earlier step wrote."""
    inputs = {"tokenizer": tokenizer, **({"rows": answers} if answers else {})}
    files: dict[str, Path] = {}
    for _, of_source in [] if answers else locate_sources(config):
        files |= of_source
    return Step(
        name=name,
        job="prepare",
        config=config,
        folder=folder,
        inputs=inputs,
        after=tuple(after),
        external={**files, **evaluation_files(config)},
        outputs=(
            "examples.parquet",
            "held_out.parquet",
            "alignment_ledger-00000.parquet",
            "summary.json",
            "prompts.json",
            "bad_rows.jsonl",
        ),
    )


def offline_steps(
    config: FineTuneConfig,
    arm: str,
    start: StartModel,
    prepare: PrepareConfig,
    reference: ReferenceConfig,
) -> list[Step]:
    """Prepared data and the training of one arm on it; `prepare` names the files and the context."""
    prepared = prepare_step(prepare, start.tokenizer, after=start.after)
    training = training_steps(
        FineTuneJobConfig.of(config, imported=start.imported, context=prepare.context),
        arm,
        start.inputs,
        data=prepared.folder,
        after=(*start.after, prepared.name),
        external=start.external,
        reference=reference,
        pack=start.pack,
    )
    return [prepared, *training]


def training_steps(
    config: FineTuneJobConfig,
    arm: str,
    start: Mapping[str, str],
    *,
    data: str,
    after: Sequence[str],
    external: Mapping[str, Path],
    reference: ReferenceConfig,
    base: Mapping[str, str] | None = None,
    pack: str = "",
    chosen: str = "",
    folder: str = "",
    shared: str = "",
) -> list[Step]:
    """Reference log-probabilities, where the loss needs them, and the training of one arm.

    start    inputs "start" and "tokenizer"
    data     folder of the prepared data
    base     the same of the reference policy; None: the start model is the reference policy
    shared   name of an earlier step that computes the reference log-probabilities into "reference"
    """
    steps: list[Step] = []
    inputs = {**start, "data": data}
    needed = tuple(after)
    if needs_reference(config.loss):
        place = "reference" if shared else f"reference/{arm}"
        if not shared:
            policy = {**inputs, **(base or {})}
            steps.append(reference_step(reference, policy, needed, external, arm, place))
        if base is not None and base["start"] != start["start"]:
            inputs["reference_model"] = base["start"]
        inputs["reference"] = place
        needed += (shared or steps[-1].name,)
    if pack:
        inputs["pack"] = pack
    if chosen:
        inputs["chosen"] = chosen
    steps.append(
        Step(
            name=f"finetune.{arm}",
            job="finetune",
            config=config,
            folder=folder or f"arms/{arm}",
            inputs=inputs,
            after=needed,
            external={**external, **config.user_files()},
            outputs=TRAINED,
            records=TRAINING_RECORDS,
            costly=True,
        )
    )
    return steps


def grpo_step(config: GRPOJobConfig, arm: str, start: StartModel) -> Step:
    """The training of an arm on its own answers."""
    return Step(
        name=f"finetune.{arm}",
        job="grpo",
        config=config,
        folder=f"arms/{arm}",
        inputs={**start.inputs, **({"pack": start.pack} if start.pack else {})},
        after=start.after,
        external={
            **start.external,
            **config.user_files(),
            **reward_sources(config.reward),
            config.prompts: locate_file(config.prompts, "prompts"),
        },
        outputs=TRAINED,
        records=TRAINING_RECORDS,
        costly=True,
    )


def reference_step(
    config: ReferenceConfig,
    inputs: Mapping[str, str],
    after: Sequence[str],
    external: Mapping[str, Path],
    arm: str = "",
    folder: str = "reference",
) -> Step:
    """Log-probabilities of the prepared answers under the start model."""
    return Step(
        name=f"reference.{arm}" if arm else "reference",
        job="reference",
        config=config,
        folder=folder,
        inputs={name: inputs[name] for name in ("start", "tokenizer", "data")},
        after=tuple(after),
        external=external,
        outputs=("log_probs.parquet", "summary.json"),
        sharded=True,
    )


def sample_config(settings: SamplingConfig, prompts: str, n: int) -> SampleConfig:
    """The configuration of a sample step."""
    plain = {f.name: getattr(settings, f.name) for f in fields(settings)}
    return SampleConfig(**plain, prompts=prompts, n=n)


def sample_steps(
    name: str,
    config: SampleConfig,
    reward: ScoreConfig,
    model: Mapping[str, str],
    *,
    after: Sequence[str],
    external: Mapping[str, Path],
) -> list[Step]:
    """Completions by a model, and their rewards: samples/NAME/completions.jsonl, scored/NAME.

    model   inputs "start" (the folder of a stored decoder) and "tokenizer"
    """
    prompts = {config.prompts: locate_file(config.prompts, "prompts")}
    sample = Step(
        name=f"sample.{name}",
        job="sample",
        config=config,
        folder=f"samples/{name}",
        inputs={"model": model["start"], "tokenizer": model["tokenizer"]},
        after=tuple(after),
        external={**external, **prompts},
        outputs=("completions.jsonl",),
        sharded=True,
    )
    return [sample, score_step(name, reward)]


def score_step(name: str, reward: ScoreConfig, *, gold: bool = False) -> Step:
    """Rewards of the completions of a sample step, in scored/NAME; of a second reward, in gold/NAME."""
    kind = "gold" if gold else "score"
    return Step(
        name=f"{kind}.{name}",
        job="score",
        config=reward,
        folder=f"{'gold' if gold else 'scored'}/{name}",
        inputs={"answers": f"samples/{name}/completions.jsonl"},
        after=(f"sample.{name}",),
        external=reward_sources(reward.reward),
        outputs=("scored.jsonl", "scored.jsonl.manifest.json"),
    )


def select_step(name: str, config: SelectConfig, answers: str, references: str = "") -> Step:
    """Training examples from scored completions.

    answers, references   names of the sample steps, as in `sample_steps`
    """
    inputs = {"answers": f"scored/{answers}/scored.jsonl"}
    after = [f"score.{answers}"]
    if references and references != answers:
        inputs["references"] = f"scored/{references}/scored.jsonl"
        after.append(f"score.{references}")
    return Step(
        name=f"select.{name}",
        job="select",
        config=config,
        folder=f"selected/{name}",
        inputs=inputs,
        after=tuple(after),
        outputs=("examples.jsonl", "summary.json"),
    )


def answers_step(
    arm: str,
    config: AnswersConfig,
    start: Mapping[str, str],
    *,
    before: str,
    gold: bool,
    evaluated: Step | None,
    external: Mapping[str, Path],
    audited: bool = False,
) -> Step:
    """The comparison of an aligned arm's answers with those of the start model.

    before      name of the sample step of the start model; that of the arm is called like it
    gold        whether both have rewards of a second kind
    evaluated   the evaluation of the start model, if both models are evaluated
    audited     whether both models are audited
    """
    inputs = {
        "start": f"scored/{before}/scored.jsonl",
        "aligned": f"scored/{arm}/scored.jsonl",
        "reference": start["start"],
        "model": f"arms/{arm}/model",
        "tokenizer": start["tokenizer"],
    }
    after = [f"score.{before}", f"score.{arm}", f"finetune.{arm}"]
    if gold:
        inputs["start_gold"] = f"gold/{before}/scored.jsonl"
        inputs["gold"] = f"gold/{arm}/scored.jsonl"
        after += [f"gold.{before}", f"gold.{arm}"]
    if evaluated is not None:
        inputs["evaluate"] = f"arms/{arm}/evaluate"
        inputs["start_evaluate"] = evaluated.folder
        after += [f"evaluate.{arm}", evaluated.name]
    if audited:
        inputs["audit"] = f"arms/{arm}/audit"
        inputs["start_audit"] = START_AUDIT
        after += [f"audit.{arm}", "audit.start"]
    return Step(
        name=f"answers.{arm}",
        job="answers",
        config=config,
        folder=f"arms/{arm}/answers",
        inputs=inputs,
        after=tuple(after),
        external=external,
        outputs=("alignment.json",),
    )


def sample_answers_steps(
    arm: str, config: SampleAnswersConfig | None, start: StartModel, training: Sequence[Step]
) -> list[Step]:
    """Answers of the start model and of an arm to prompts of its data; none without `config`.

    training   the steps of the arm, of which the last is its fine-tuning
    """
    if config is None:
        return []
    finetune = training[-1]
    return [
        Step(
            name=f"sample_answers.{arm}",
            job="sample_answers",
            config=config,
            folder=f"{finetune.folder}/sample_answers",
            inputs={
                **start.inputs,
                "model": f"{finetune.folder}/model",
                "data": finetune.inputs["data"],
            },
            after=(finetune.name,),
            external=start.external,
            outputs=("sample_answers.json",),
        )
    ]


def evaluate_step(
    arm: str, config: EvaluateConfig, start: StartModel, *, of_start: bool = False
) -> Step:
    """Held-out loss and other tasks of an arm, or of the start model.

    Raises   ConfigError for a setting that none of the tasks reads
    """
    check_step(config)
    return Step(
        name="evaluate.start" if of_start else f"evaluate.{arm}",
        job="evaluate",
        config=config,
        folder="start_evaluate" if of_start else f"arms/{arm}/evaluate",
        inputs={
            "model": start.model if of_start else f"arms/{arm}/model",
            "tokenizer": start.tokenizer,
            "pack": start.pack,
        },
        after=start.after if of_start else (f"finetune.{arm}",),
        external={**start.external, **task_inputs(config.tasks, config.task_folder)},
        outputs=(".",),
    )


def audit_steps(arm: str, config: AuditConfig | None, start: StartModel) -> list[Step]:
    """Audits of the start model and of an arm.

    None without planted passages, and where the default settings do not fit into the model's context.

    Raises   ConfigError for settings that do not fit into the model's context
    """
    if config is None or not start.corpus:
        return []
    check_reference(config)
    needed = 1 + config.prefix_tokens + config.new_tokens
    if needed > start.max_context:
        if config == AuditConfig():
            return []
        raise ConfigError(
            f"<s>, audit.prefix_tokens and audit.new_tokens are {needed} tokens, more than the "
            f"model's max_context = {start.max_context}",
            fix="Lower them, or set audit=none",
        )
    return [
        Step(
            name=f"audit.{name}",
            job="audit",
            config=config,
            folder=folder,
            inputs={"model": model, "tokenizer": start.tokenizer, "corpus": start.corpus},
            after=after,
            external={**start.external, **config.files()},
            outputs=(".",),
        )
        for name, folder, model, after in (
            ("start", START_AUDIT, start.model, start.after),
            (arm, f"arms/{arm}/audit", f"arms/{arm}/model", (f"finetune.{arm}",)),
        )
    ]


def export_step(
    arm: str, config: ExportConfig, start: StartModel, *, own_rows: bool = False
) -> Step:
    """The export of an arm.

    own_rows   whether its alignment data keeps rows from training

    Raises   ConfigError for a setting that is not read, and for a model that the target cannot hold
    """
    check_held_out_file(config)
    pack: dict[str, Any] = {"pack": start.pack} if start.pack else {}
    unmeasured = config.held_out == NOT_MEASURED
    has_text = not unmeasured and bool(pack or own_rows or config.held_out_file)
    if not has_text:
        why = f"export.held_out = {NOT_MEASURED}" if unmeasured else "there is no held-out text"
        check_without_text(config, why)
    if start.decoder is not None and start.vocabulary is not None:
        check_tuned_export(config, arm, start.decoder, start.vocabulary, has_text=has_text)
    return Step(
        name=f"export.{arm}",
        job="export",
        config=config,
        folder=f"arms/{arm}/export",
        inputs={"model": f"arms/{arm}/model", "tokenizer": start.tokenizer, **pack},
        after=(f"finetune.{arm}",),
        external={**start.external, **config.files()},
        outputs=(".",),
    )
