"""Steps of a recipe that train models: activation check, step times, training, learning rate, average."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from stamm.activations.spec import Spec
from stamm.base.errors import ConfigError
from stamm.models.config import GatedFFN, PlainFFN
from stamm.pretrain.activation_check_config import ActivationCheckConfig
from stamm.pretrain.average_config import WeightAverage
from stamm.pretrain.config import PretrainConfig
from stamm.pretrain.forget.config import ForgetPlanConfig
from stamm.pretrain.forget.records import DOCUMENTS, FORGET, NEAR, PASSAGES
from stamm.pretrain.lr_finder import CHOSEN, REFINED, ChoiceConfig
from stamm.pretrain.step_timing_config import STEP_TIMING, StepTimingConfig
from stamm.runs.job import TRAINED, TRAINING_RECORDS, Step


def pretrain_step(
    name: str,
    folder: str,
    config: PretrainConfig,
    inputs: Mapping[str, str],
    *,
    external: Mapping[str, Path] | None = None,
    after: tuple[str, ...] = (),
    costly: bool = False,
) -> Step:
    """Training of one model.

    name       of the step, "pretrain.xielu"
    inputs     "pack" and "tokenizer", "begin" for other weights, "tuned" for a chosen learning rate
    external   further files that identify the inputs
    """
    return Step(
        name=name,
        job="pretrain",
        config=config,
        folder=folder,
        inputs=dict(inputs),
        after=after,
        external={**(external or {}), **config.user_files()},
        outputs=TRAINED,
        records=TRAINING_RECORDS,
        costly=costly,
    )


def activation_steps(blocks: Iterable[PlainFFN | GatedFFN]) -> list[Step]:
    """One step for each activation of `blocks` that is not an entry of the catalogue.

    Raises   ConfigError when two different activations have the same name.
    """
    own: dict[str, Spec] = {}
    for block in blocks:
        spec = block.spec
        if isinstance(block.activation, str):
            continue
        known = own.setdefault(spec.name, spec)
        if known.content_hash != spec.content_hash:
            raise ConfigError(
                f"two activations are called {spec.name!r}: content hashes {known.content_hash[:12]}"
                f" and {spec.content_hash[:12]}",
                fix="Give one of them another name",
            )
    return [
        Step(
            name=f"activation.{name}",
            job="activation",
            config=ActivationCheckConfig(spec=spec),
            folder=f"activations/{name}",
            outputs=("spec.json", "accuracy.json"),
        )
        for name, spec in own.items()
    ]


def step_timing_step(config: StepTimingConfig) -> Step:
    """Times of the training steps of all arms of a comparison at equal time."""
    return Step(
        name="step_timing",
        job="step_timing",
        config=config,
        folder="step_timing",
        inputs={"pack": "pack", "tokenizer": "tokenizer"},
        outputs=(STEP_TIMING,),
    )


def rate_step(
    job: Literal["refine", "choose"],
    name: str,
    folder: str,
    config: ChoiceConfig,
    trials: Sequence[Step],
    *,
    timed: bool,
) -> Step:
    """Two more learning rates to try, or the chosen one, from the short runs of an arm.

    timed   whether step times set the length of the run
    """
    inputs = {f"trial.{i}": step.folder for i, step in enumerate(trials)}
    if timed:
        inputs["step_timing"] = f"step_timing/{STEP_TIMING}"
    return Step(
        name=name,
        job=job,
        config=config,
        folder=f"tune/{config.arm}/{folder}",
        inputs=inputs,
        outputs=({"refine": REFINED, "choose": CHOSEN}[job],),
    )


def forget_step(
    config: ForgetPlanConfig,
    folder: str,
    inputs: Mapping[str, str],
    *,
    external: Mapping[str, Path],
) -> Step:
    """Plan of the training that forgets documents.

    inputs     "pack", "tokenizer" and "source" (config.json of the arm); "corpus" where there is one
    external   the requests, and further files that identify the inputs
    """
    return Step(
        name="forget",
        job="forget",
        config=config,
        folder=folder,
        inputs=dict(inputs),
        external=external,
        outputs=(FORGET, DOCUMENTS, NEAR, PASSAGES),
    )


def average_step(name: str, config: WeightAverage, run: str) -> Step:
    """The mean of the weights of checkpoints of the run in a folder, in its folder averaged/."""
    return Step(
        name=name,
        job="average",
        config=config,
        folder=f"{run}/averaged",
        inputs={"run": run},
        outputs=("model",),
    )
