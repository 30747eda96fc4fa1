"""Steps of alignment: prepare, reference, finetune; sample, score, select, compare answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stamm.align.data.config import (
    PrepareConfig,
    SelectConfig,
    evaluation_files,
    locate_file,
    locate_sources,
)
from stamm.align.results.config import AnswersConfig, SampleAnswersConfig
from stamm.align.rewards.config import ScoreConfig, reward_sources
from stamm.align.sampling.config import SampleConfig
from stamm.align.training.config import (
    FineTuneConfig,
    FineTuneJobConfig,
    GRPOJobConfig,
    ReferenceConfig,
    needs_reference,
)
from stamm.models.config import DecoderConfig
from stamm.models.sampling_config import SamplingConfig
from stamm.runs.job import TRAINED, TRAINING_RECORDS, Step

START_AUDIT = "start_audit"


@dataclass(frozen=True, kw_only=True)
class StartModel:
    """Where the steps of a recipe find the model, as paths relative to the run folder.

    name          of the arm that it is, or of the Hugging Face folder
    steps         that make it: the import of a Hugging Face folder
    external      files that identify it, outside the run folder
    pack          the packed corpus that it was trained on, for held-out text; "" when it is not there
    corpus        the corpus that passages were planted in, as its probes.json lists them; "" without
    max_context   longest context of the model
    imported      whether it, or the model that it was tuned from, was trained elsewhere
    decoder       its configuration, and
    vocabulary    its tokenizer.json as it is now; None before they exist
    """

    name: str
    model: str
    tokenizer: str
    max_context: int
    imported: bool = False
    decoder: DecoderConfig | None = None
    vocabulary: Path | None = None
    steps: tuple[Step, ...] = ()
    external: Mapping[str, Path] = field(default_factory=dict)
    pack: str = ""
    corpus: str = ""

    @property
    def inputs(self) -> dict[str, str]:
        """Inputs of a job that reads model and tokenizer."""
        return {"start": self.model, "tokenizer": self.tokenizer}


def prepare_step(
    config: PrepareConfig,
    tokenizer: str,
    *,
    name: str = "prepare",
    folder: str = "data",
    answers: str = "",
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
    prepared = prepare_step(prepare, start.tokenizer)
    training = training_steps(
        FineTuneJobConfig.of(config, imported=start.imported, context=prepare.context),
        arm,
        start.inputs,
        data=prepared.folder,
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
    external: Mapping[str, Path],
    reference: ReferenceConfig,
    base: Mapping[str, str] | None = None,
    pack: str = "",
    chosen: str = "",
    folder: str = "",
    shared: bool = False,
) -> list[Step]:
    """Reference log-probabilities, where the loss needs them, and the training of one arm.

    start    inputs "start" and "tokenizer"
    data     folder of the prepared data
    base     the same of the reference policy; None: the start model is the reference policy
    shared   whether an earlier step computes the reference log-probabilities into "reference"
    """
    steps: list[Step] = []
    inputs = {**start, "data": data}
    if needs_reference(config.loss):
        step_folder = "reference" if shared else f"reference/{arm}"
        if not shared:
            policy = {**inputs, **(base or {})}
            steps.append(reference_step(reference, policy, external, arm, step_folder))
        if base is not None and base["start"] != start["start"]:
            inputs["reference_model"] = base["start"]
        inputs["reference"] = step_folder
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
        external={
            **start.external,
            **config.user_files(),
            **reward_sources(config.reward),
            config.prompts: locate_file(config.prompts, "prompts"),
        },
        outputs=TRAINED,
        records=(*TRAINING_RECORDS, "rollouts/*"),
        costly=True,
    )


def reference_step(
    config: ReferenceConfig,
    inputs: Mapping[str, str],
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
        external=external,
        outputs=("log_probs.parquet", "summary.json"),
        sharded=True,
    )


def sample_config(settings: SamplingConfig, prompts: str, n: int) -> SampleConfig:
    """The configuration of a sample step."""
    return SampleConfig(**vars(settings), prompts=prompts, n=n)


def sample_steps(
    name: str,
    config: SampleConfig,
    reward: ScoreConfig,
    model: Mapping[str, str],
    *,
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
        external=reward_sources(reward.reward),
        outputs=("scored.jsonl", "scored.jsonl.manifest.json"),
    )


def select_step(name: str, config: SelectConfig, answers: str, references: str = "") -> Step:
    """Training examples from scored completions.

    answers, references   names of the sample steps, as in `sample_steps`
    """
    inputs = {"answers": f"scored/{answers}/scored.jsonl"}
    if references and references != answers:
        inputs["references"] = f"scored/{references}/scored.jsonl"
    return Step(
        name=f"select.{name}",
        job="select",
        config=config,
        folder=f"selected/{name}",
        inputs=inputs,
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
    if gold:
        inputs["start_gold"] = f"gold/{before}/scored.jsonl"
        inputs["gold"] = f"gold/{arm}/scored.jsonl"
    if evaluated is not None:
        inputs["evaluate"] = f"arms/{arm}/evaluate"
        inputs["start_evaluate"] = evaluated.folder
    if audited:
        inputs["audit"] = f"arms/{arm}/audit"
        inputs["start_audit"] = START_AUDIT
    return Step(
        name=f"answers.{arm}",
        job="answers",
        config=config,
        folder=f"arms/{arm}/answers",
        inputs=inputs,
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
            external=start.external,
            outputs=("sample_answers.json",),
        )
    ]
