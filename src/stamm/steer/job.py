"""Fit a direction for every layer on half of the texts, and measure it on the other half.

Letters: B sequences, T tokens, N tokens of all sequences, D model, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stamm.base.config import to_plain
from stamm.base.console import Progress
from stamm.base.errors import DataError, ExportError
from stamm.base.files import sha256_file
from stamm.base.schema import read_record, write_record
from stamm.export.gguf_file import write_control_vector
from stamm.models.decoder import Decoder, normal_values
from stamm.models.generate import nats_of_sequences
from stamm.models.loading import OpenModel
from stamm.models.padding import length_batches, padded
from stamm.models.steering import (
    SteeringHeader,
    SteeringVector,
    parameters_sha256,
    steered,
    write_vector,
)
from stamm.observe.config import ObserveConfig
from stamm.observe.model import text_of_file
from stamm.observe.taps import check_layer, tapped
from stamm.steer.config import SteerConfig
from stamm.steer.records import SteerFile, SteerMeasures, SteerRow, SteerTexts

FILE, VECTOR, GGUF = "steer.json", "vector.safetensors", "vector.gguf"
_RANDOM = 3
_ROWS = 512  # positions whose probabilities are in memory together
_PENALTY = 1e-2
_STEPS = 200


@dataclass(frozen=True, kw_only=True)
class _Texts:
    """Token ids of texts of one kind: those to fit and those to measure."""

    name: str
    sha256: str
    fit: list[list[int]]
    measure: list[list[int]]


def write_steering(
    config: SteerConfig, model: OpenModel, folder: Path, progress: Progress
) -> SteerFile:
    """Measure the directions of a model; write vector.safetensors, vector.gguf and, last, steer.json.

    Raises   DataError for texts that no direction can be fitted to; ConfigError for a layer that does not exist
    """
    decoder = model.decoder
    layers = range(len(decoder.model.layers)) if config.layers is None else config.layers
    for layer in layers:
        check_layer(decoder, layer)
    kinds = [_read(config, path, model) for path in (config.positive, config.negative)]
    if kinds[0].sha256 == kinds[1].sha256:
        raise DataError(
            f"{config.positive} and {config.negative} have the same texts",
            fix="Name texts of two kinds",
        )
    measure = _Measure(config, decoder, *kinds)
    directions, lengths = _directions(config, decoder, kinds, layers, len(model.prefix))
    identity = parameters_sha256(decoder)
    rows: list[SteerRow] = []
    passes = len(layers) * len(config.strengths) * (1 + _RANDOM)
    progress.begin("directions", passes, "measurements")
    for layer in layers:
        direction_D = directions[layer]
        drawn = [
            normal_values(config.seed, f"layer.{layer}.{draw}", direction_D.shape)
            for draw in range(_RANDOM)
        ]
        added = [direction_D, *(d * (direction_D.norm() / d.norm()) for d in drawn)]
        for strength in config.strengths:
            found = []
            for one_D in added:
                header = SteeringHeader(model_sha256=identity, method=config.method, strength=1.0)
                vector = SteeringVector(layers={layer: one_D}, header=header)
                with steered(decoder, vector, strength, any_model=True):
                    found.append(measure())
                progress.advance((len(rows)) * (1 + _RANDOM) + len(found))
            rows.append(
                SteerRow(layer=layer, strength=strength, vector=found[0], random=tuple(found[1:]))
            )
    progress.end(f"{passes} measurements")
    best, verdict = recommended(rows, config.kl)
    files, no_gguf = {}, "there is no recommendation"
    (folder / GGUF).unlink(missing_ok=True)
    (folder / VECTOR).unlink(missing_ok=True)
    if best is not None:
        row = rows[best]
        vector = SteeringVector(
            layers={row.layer: row.strength * directions[row.layer]},
            header=SteeringHeader(
                model_sha256=identity, method=config.method, strength=row.strength
            ),
        )
        write_vector(folder / VECTOR, vector)
        try:
            write_control_vector(folder / GGUF, vector, decoder.config)
            no_gguf = ""
        except ExportError as error:
            no_gguf = error.line()
        files = {n: sha256_file(folder / n) for n in (VECTOR, GGUF) if (folder / n).is_file()}
    settings = {**to_plain(config), "positive": None, "negative": None}
    content = {
        "model_sha256": identity,
        "settings": {key: value for key, value in settings.items() if value is not None},
        "positive": asdict(measure.texts(kinds[0], 0)),
        "negative": asdict(measure.texts(kinds[1], 1)),
        "positive_tokens": int(measure.positive_V.sum()),
        "lengths": lengths,
        "rows": [asdict(row) for row in rows],
        "recommended": best,
        "verdict": verdict,
        "files": files,
        "no_gguf": no_gguf,
    }
    write_record(folder / FILE, SteerFile, content)
    return read_record(SteerFile, folder / FILE)


def recommended(rows: Sequence[SteerRow], kl: float) -> tuple[int | None, str]:
    """The number of the recommended row, or None, and a sentence about it.

    It is the row of the largest effect among those with KL at most `kl`. Its effect must exceed the magnitude of every random
    effect at its layer and strength, and of every random direction of other rows with KL at most `kl`.
    """
    within = [n for n, row in enumerate(rows) if row.vector.kl <= kl]
    if not within:
        least = min(row.vector.kl for row in rows)
        return None, (
            f"no strength has KL at most {kl:g}: the least is {least:.3g}. Measure smaller strengths"
        )
    best = max(within, key=lambda n: rows[n].vector.effect)
    row = rows[best]
    there = max(abs(one.effect) for one in row.random)
    others = [abs(one.effect) for other in rows for one in other.random if one.kl <= kl]
    control = max([there, *others])
    facts = (
        f"effect {row.vector.effect:+.3f} at KL {row.vector.kl:.3f} (layer {row.layer}, strength {row.strength:g}); "
        f"random directions there {there:.3f} at most, at every layer and strength within that bound {control:.3f}"
    )
    if row.vector.effect <= control:
        return None, f"no better than random: {facts}"
    return best, facts


def _read(config: SteerConfig, path: str, model: OpenModel) -> _Texts:
    file = Path(path)
    if not file.is_file():
        raise DataError(f"{path} is not a file", fix='Name JSONL with "text"')
    text = text_of_file(
        ObserveConfig(tokens=config.tokens),
        file,
        model.tokenizer.encode,
        model.prefix,
        model.decoder.config.max_context,
        most_contexts=1,
    )
    if len(text.sequences) < 2:
        raise DataError(
            f"{path} has one text: the direction is fitted to one half and measured on the other",
            fix='Name JSONL with a "text" in each of at least 2 lines',
        )
    sequences = list(text.sequences)
    return _Texts(
        name=file.name, sha256=sha256_file(file), fit=sequences[::2], measure=sequences[1::2]
    )


def _directions(
    config: SteerConfig,
    decoder: Decoder,
    kinds: Sequence[_Texts],
    layers: Sequence[int],
    prefix: int,
) -> tuple[dict[int, Tensor], dict[str, tuple[float, float]]]:
    """The direction of each layer, float32, and its length beside that of the residual stream.

    Memory   with method = probe, the residual stream of all tokens behind all layers
    """
    sums = [{layer: _Sum(config.method == "probe") for layer in layers} for _ in kinds]
    for texts, by_layer in zip(kinds, sums, strict=True):
        for rows in length_batches([len(ids) - 1 for ids in texts.fit], config.batch_tokens):
            tokens_BT, own_BT = padded([texts.fit[row][:-1] for row in rows])
            # What precedes every text has one residual stream.
            own_BT[:, :prefix] = False
            hooks = {f"layers.{n}": partial(one.add, own_BT) for n, one in by_layer.items()}
            with torch.no_grad(), tapped(decoder, hooks):
                decoder.model(tokens_BT)
    directions, lengths = {}, {}
    for layer in layers:
        positive, negative = (by_layer[layer] for by_layer in sums)
        if not (positive.count and negative.count):
            raise DataError("the texts are empty", fix='Name JSONL with "text"')
        means_D = positive.sum_D / positive.count - negative.sum_D / negative.count
        length = float(means_D.norm())
        if not 0 < length < float("inf"):
            raise DataError(
                f"the direction of layer {layer} has length {length}",
                fix="The texts have the same tokens, or the model diverged",
            )
        if config.method == "probe":
            normal_D = _logistic(torch.cat(positive.kept), torch.cat(negative.kept))
            means_D = normal_D * (length / normal_D.norm())
        directions[layer] = means_D.float()
        count = positive.count + negative.count
        lengths[str(layer)] = (length, (positive.length + negative.length) / count)
    return directions, lengths


class _Sum:
    """Sum of the residual stream over tokens, and the tokens themselves for a probe."""

    def __init__(self, keep: bool) -> None:
        self.sum_D: Any = 0.0
        self.count, self.length = 0, 0.0
        self.kept: list[Tensor] = []
        self._keep = keep

    def add(self, own_BT: Tensor, inputs: Any, output: Tensor) -> None:
        x_ND = output[own_BT]
        self.sum_D = self.sum_D + x_ND.double().sum(0)
        self.count += len(x_ND)
        self.length += float(x_ND.double().norm(dim=-1).sum())
        if self._keep:
            self.kept.append(x_ND)


def _logistic(positive_ND: Tensor, negative_ND: Tensor) -> Tensor:
    """Weights of a logistic regression of positive against negative rows, both kinds with equal weight, float64.

    Rows are centred and divided by their root mean square; the penalty is 0.01 / 2 times the squared length.
    """
    x_ND = torch.cat([positive_ND, negative_ND]).double()
    x_ND = x_ND - x_ND.mean(0)
    x_ND = x_ND / x_ND.square().mean().sqrt()
    sign_N = torch.ones(len(x_ND), dtype=torch.float64)
    sign_N[len(positive_ND) :] = -1
    share_N = torch.where(sign_N > 0, 0.5 / len(positive_ND), 0.5 / len(negative_ND))
    weights = torch.zeros(x_ND.shape[1] + 1, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=_STEPS, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        margin_N = sign_N * (x_ND @ weights[:-1] + weights[-1])
        value = -(share_N * torch.nn.functional.logsigmoid(margin_N)).sum()
        value = value + _PENALTY / 2 * weights[:-1].square().sum()
        value.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return value

    optimizer.step(loss)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return weights.detach()[:-1]


class _Measure:
    """Measures the decoder, as it is steered when called, on the second half of the texts.

    positive_V   tokens that are more than twice as frequent in the positive texts to fit as in the negative ones
    """

    def __init__(
        self, config: SteerConfig, decoder: Decoder, positive: _Texts, negative: _Texts
    ) -> None:
        self._config, self._decoder = config, decoder
        self._positive, self._negative = positive, negative
        shares = []
        for kind in (positive, negative):
            ids = torch.tensor([token for sequence in kind.fit for token in sequence[1:]])
            counts_V = torch.bincount(ids, minlength=decoder.config.vocab_size)
            shares.append(counts_V / counts_V.sum())
        self.positive_V = shares[0] > 2 * shares[1]
        if not bool(self.positive_V.any()):
            raise DataError(
                f"no token is more than twice as frequent in {positive.name} as in {negative.name}",
                fix="Name texts of two kinds",
            )
        lengths = [len(ids) - 1 for ids in negative.measure]
        self._batches = [
            padded([negative.measure[row] for row in rows])
            for rows in length_batches(lengths, config.batch_tokens)
        ]
        self._unsteered: list[Tensor] = []
        self._unsteered = [self._hidden(*batch) for batch in self._batches]
        self._losses = (self._positive_loss(), self().negative_loss)

    def texts(self, kind: _Texts, number: int) -> SteerTexts:
        """What is recorded of the texts: `number` 0 of the positive ones, 1 of the negative."""
        return SteerTexts(
            name=kind.name, sha256=kind.sha256, texts=len(kind.fit) + len(kind.measure),
            tokens=sum(len(ids) - 1 for ids in kind.measure), loss=self._losses[number],
        )  # fmt: skip

    @torch.no_grad()
    def __call__(self) -> SteerMeasures:
        """The measures of the decoder as it is now."""
        sums = torch.zeros(3, dtype=torch.float64)
        count = 0
        for batch, before_ND in zip(self._batches, self._unsteered, strict=True):
            tokens_BT, own_BT = batch
            target_N = tokens_BT[:, 1:][own_BT[:, 1:]]
            hidden_ND = self._hidden(tokens_BT, own_BT)
            count += len(target_N)
            for after_ND, base_ND, ids_N in zip(
                *(torch.split(t, _ROWS) for t in (hidden_ND, before_ND, target_N)), strict=True
            ):
                after_NV, base_NV = (
                    self._decoder.lm_head(x_ND).float().log_softmax(-1)
                    for x_ND in (after_ND, base_ND)
                )
                kl = (after_NV.exp() * (after_NV - base_NV)).double().sum()
                effect = (self._log_odds(after_NV) - self._log_odds(base_NV)).double().sum()
                nats = -after_NV.gather(1, ids_N[:, None]).double().sum()
                sums += torch.stack((effect, kl, nats))
        effect_mean, kl_mean, loss = (sums / count).tolist()
        return SteerMeasures(
            effect=effect_mean, kl=max(kl_mean, 0.0), positive_loss=self._positive_loss(), negative_loss=loss,
        )  # fmt: skip

    def _log_odds(self, log_prob_NV: Tensor) -> Tensor:
        positive_N = log_prob_NV[:, self.positive_V].logsumexp(-1)
        return positive_N - log_prob_NV[:, ~self.positive_V].logsumexp(-1)

    def _positive_loss(self) -> float:
        nats = nats_of_sequences(self._decoder, self._positive.measure, self._config.batch_tokens)
        return float(torch.cat(nats).double().mean())

    @torch.no_grad()
    def _hidden(self, tokens_BT: Tensor, own_BT: Tensor) -> Tensor:
        hidden_ND: Tensor = self._decoder.model(tokens_BT[:, :-1])[own_BT[:, 1:]]
        return hidden_ND
