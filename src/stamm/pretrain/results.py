"""Training of one arm: its configuration, metrics by step, summary and timing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import ClassVar

from stamm.activations.describe import known_spec
from stamm.activations.spec import Spec
from stamm.base.config import from_plain
from stamm.base.errors import ConfigError, DataError
from stamm.base.files import read_json
from stamm.base.receipts import is_present
from stamm.base.schema import decode, read_record_if_present
from stamm.losses.preference_types import closed_form_beta
from stamm.pretrain.records import TimingFile, TrainingSummary
from stamm.runs.metric_series import Metrics, read_series
from stamm.runs.model_outputs import DECODER
from stamm.runs.records import ConfigFile
from stamm.runs.run_view import IMPORT, ArmView


@dataclass(frozen=True, kw_only=True)
class _Ffn:
    OPEN: ClassVar[bool] = True

    activation: object
    kind: str
    width: int
    shapes: str = "layer"


@dataclass(frozen=True, kw_only=True)
class _Model:
    ffn: _Ffn


@dataclass(frozen=True, kw_only=True)
class _StoredDecoder:
    """decoder.json of an imported model, whose configuration does not name its layers."""

    decoder: _Model


@dataclass(frozen=True, kw_only=True)
class _Loss:
    OPEN: ClassVar[bool] = True

    kind: str = ""
    beta: float | None = None
    transform: str = ""
    normalize: str = ""
    largest_beta: float | None = None


@dataclass(frozen=True, kw_only=True)
class _ArmConfig:
    model: _Model
    loss: _Loss | None = None
    seed: int | None = None


@dataclass(frozen=True, kw_only=True)
class ArmTraining:
    """The configuration of an arm and how it was trained; None where a file is missing.

    per_neuron   every neuron has a shape of its own; metrics have the means
    kind   of the job that made it ("pretrain", "finetune", "import"); "" where it is not recorded
    loss   name of what was minimised in fine-tuning ("SFT", "DPO"); "" in pretraining
    beta   of QRPO with the identity transform and without length normalisation, whose optimum is
           known in closed form; None for others
    spec   of the activation; None for a name that the catalogue does not have
    """

    kind: str
    loss: str
    beta: float | None
    activation: str | None
    spec: Spec | None
    ffn_kind: str | None
    ffn_width: int | None
    per_neuron: bool
    seed: int | None
    metrics: Metrics | None
    summary: TrainingSummary | None
    timing: TimingFile | None


def read_training(folder: Path) -> ArmTraining:
    """The training of the arm in `folder`.

    Raises   DataError when a file does not follow its schema.
    """
    path = folder / "config.json"
    file = read_record_if_present(ConfigFile, path)
    if file is None:
        config = None
    elif file.kind == IMPORT:
        path = folder / "model" / DECODER
        stored = decode(_StoredDecoder, read_json(path), str(path))
        config = _ArmConfig(model=stored.decoder)
    else:
        config = decode(_ArmConfig, file.config, str(path), "config")
    ffn = config.model.ffn if config else None
    metrics = folder / "metrics.jsonl"
    activation, spec = _activation(ffn.activation, str(path)) if ffn else (None, None)
    return ArmTraining(
        kind=file.kind if file else "",
        loss=config.loss.kind if config and config.loss else "",
        beta=_closed_form_beta(config.loss) if config and config.loss else None,
        activation=activation,
        spec=spec,
        ffn_kind=ffn.kind if ffn else None,
        ffn_width=ffn.width if ffn else None,
        per_neuron=ffn is not None and ffn.shapes == "neuron",
        seed=config.seed if config else None,
        metrics=read_series(metrics) if is_present(metrics) else None,
        summary=read_record_if_present(TrainingSummary, folder / "summary.json"),
        timing=read_record_if_present(TimingFile, folder / "log" / "timing.json"),
    )


def same_tokens(arms: Sequence[tuple[ArmView, ArmTraining]]) -> bool:
    """Whether all arms were trained on the same tokens in the same order.

    True when seed, number of tokens and the hash of the packed corpus are recorded and equal.
    """
    facts = [
        (
            training.seed,
            training.summary.trained_tokens,
            pack.sha256 if (pack := arm.manifest.inputs.get("pack")) else None,
        )
        for arm, training in arms
        if training.summary and arm.manifest
    ]
    known = len(facts) == len(arms) and all(None not in fact for fact in facts)
    return known and len(set(facts)) == 1


def _closed_form_beta(loss: _Loss) -> float | None:
    if loss.kind != "QRPO" or loss.beta is None:
        return None
    return closed_form_beta(loss.beta, loss.transform, loss.normalize, loss.largest_beta)


def _activation(plain: object, where: str) -> tuple[str, Spec | None]:
    """Name and spec of an activation: a name of the catalogue, or the spec of a user's own."""
    where_ffn = f"{where}, config, model, ffn"
    if not isinstance(plain, Mapping):
        name: str = decode(str, plain, where_ffn, "activation")
        return name, known_spec(name)
    try:
        spec = _own_spec(json.dumps(plain, sort_keys=True))
    except ConfigError as error:
        raise DataError(error.what, where=f"{where_ffn}, activation", fix=error.fix) from None
    return spec.name, spec


@cache
def _own_spec(text: str) -> Spec:
    """A user's spec from its JSON text; seconds of validation, once for all seeds of an arm."""
    return from_plain(Spec, json.loads(text))
