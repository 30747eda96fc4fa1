"""Training of one arm: its configuration, metrics by step, summary and timing."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from stamm.activations.spec import Spec
from stamm.base.config import from_plain
from stamm.base.errors import ConfigError, DataError
from stamm.base.files import read_json
from stamm.base.receipts import is_present
from stamm.base.schema import decode, read_lines, read_record_if_present
from stamm.losses.preference_types import closed_form_beta
from stamm.reports.learned_curve import known_spec
from stamm.runs.model_outputs import DECODER
from stamm.runs.schemas.run import ConfigFile
from stamm.runs.schemas.training import MetricsLine, TimingFile, TrainingSummary

FINETUNE, IMPORT = "finetune", "import"
_SHAPE = re.compile(r"shape/layers\.([0-9]{1,4})\.([a-z][a-z0-9_]{0,63})")
_PREFERENCE = re.compile(r"(reward|representation)/[a-z][a-z0-9_]{0,63}")
_EVALUATION = re.compile(r"evaluate/[a-z0-9_]{1,40}/[a-z_]{1,40}")
_COLUMNS = ("train/loss_nats", "optim/learning_rate", "optim/gradient_norm")


@dataclass(frozen=True, kw_only=True)
class Series:
    """A quantity by step."""

    steps: tuple[int, ...] = ()
    values: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """Metrics of a training run.

    loss            nats per kept token, of each step
    learning_rate   of each step
    gradient_norm   before clipping, of each step
    shapes          effective activation parameter by (name, layer), on some steps
    preference      metrics of a preference objective by name ("reward/accuracy"), of each step;
                    "representation/..", on some steps
    evaluations     metrics of evaluation during training ("evaluate/held_out/bits_per_byte")
    """

    loss: Series
    learning_rate: Series
    gradient_norm: Series
    shapes: Mapping[tuple[str, int], Series]
    preference: Mapping[str, Series]
    evaluations: Mapping[str, Series]

    def shape_names(self) -> tuple[str, ...]:
        """Names of the trainable shape parameters, in alphabetical order."""
        return tuple(sorted({name for name, _ in self.shapes}))

    def layers(self, name: str) -> tuple[int, ...]:
        """Layers that have the parameter `name`, from the first on."""
        return tuple(sorted(layer for other, layer in self.shapes if other == name))


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
        metrics=_read_metrics(metrics) if is_present(metrics) else None,
        summary=read_record_if_present(TrainingSummary, folder / "summary.json"),
        timing=read_record_if_present(TimingFile, folder / "log" / "timing.json"),
    )


def _closed_form_beta(loss: _Loss) -> float | None:
    if loss.kind != "QRPO" or loss.beta is None:
        return None
    return closed_form_beta(loss.beta, loss.transform, loss.normalize, loss.largest_beta)


def _activation(plain: object, where: str) -> tuple[str, Spec | None]:
    """Name and spec of an activation: a name of the catalogue, or the spec of a user's own."""
    place = f"{where}, config, model, ffn"
    if not isinstance(plain, Mapping):
        name: str = decode(str, plain, place, "activation")
        return name, known_spec(name)
    try:
        spec = _own_spec(json.dumps(plain, sort_keys=True))
    except ConfigError as error:
        raise DataError(error.what, where=f"{place}, activation", fix=error.fix) from None
    return spec.name, spec


@cache
def _own_spec(text: str) -> Spec:
    """A user's spec from its JSON text; seconds of validation, once for all seeds of an arm."""
    return from_plain(Spec, json.loads(text))


def _read_metrics(path: Path) -> Metrics:
    columns: dict[Any, tuple[list[int], list[float]]] = {}
    last = -1
    for number, line in enumerate(read_lines(MetricsLine, path), start=1):
        where = f"{path}, line {number}"
        if line.step <= last:
            raise DataError(
                f"{where}: step {line.step} follows step {last}",
                fix="Two runs wrote this file: delete the folder and run the step again",
            )
        last = line.step
        for key, value in line.values.items():
            match = _SHAPE.fullmatch(key)
            known = key in _COLUMNS or _PREFERENCE.fullmatch(key) or _EVALUATION.fullmatch(key)
            if match or known:
                column = (match[2], int(match[1])) if match else key
                steps, values = columns.setdefault(column, ([], []))
                steps.append(line.step)
                values.append(decode(float, value, where, key))
    series = {
        key: Series(steps=tuple(steps), values=tuple(values))
        for key, (steps, values) in columns.items()
    }
    loss, rate, norm = (series.pop(name, Series()) for name in _COLUMNS)
    named = {key: series.pop(key) for key in sorted(k for k in series if isinstance(k, str))}
    evaluations = {key: named.pop(key) for key in list(named) if key.startswith("evaluate/")}
    return Metrics(
        loss=loss,
        learning_rate=rate,
        gradient_norm=norm,
        shapes=dict(sorted(series.items())),
        preference=named,
        evaluations=evaluations,
    )
