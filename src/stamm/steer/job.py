"""Fit a direction for every layer on half of the texts, and measure it on the other half.

Letters: B sequences, T tokens, N tokens of all sequences, D model, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stamm.base.config import to_plain
from stamm.base.console import Progress
from stamm.base.errors import DataError, ExportError
from stamm.base.files import sha256_file
from stamm.base.schema import write_record
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
_PATHS = ("positive", "negative")
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

    def record(self, loss: float) -> SteerTexts:
        """The record of the texts; `loss` of the unsteered model."""
        tokens = sum(len(ids) - 1 for ids in self.measure)
        texts = len(self.fit) + len(self.measure)
        return SteerTexts(name=self.name, sha256=self.sha256, texts=texts, tokens=tokens, loss=loss)


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
        what = f"{config.positive} and {config.negative} have the same texts"
        raise DataError(what, fix="Name texts of two kinds")
    measure = _Measure(config, decoder, *kinds)
    unsteered = measure()
    identity = parameters_sha256(decoder)
    directions: dict[int, Tensor] = {}
    lengths: dict[str, tuple[float, float]] = {}
    rows: list[SteerRow] = []

    def vector_of(layer: int, added_D: Tensor, strength: float) -> SteeringVector:
        header = SteeringHeader(model_sha256=identity, method=config.method, strength=strength)
        return SteeringVector(layers={layer: strength * added_D}, header=header)

    def measured(layer: int, added_D: Tensor, strength: float) -> SteerMeasures:
        with steered(decoder, vector_of(layer, added_D, strength), any_model=True):
            return measure()

    count = len(layers) * len(config.strengths)
    progress.begin("directions", count, "rows")
    for layer in layers:
        states = [_residual(config, decoder, texts, layer, len(model.prefix)) for texts in kinds]
        directions[layer] = direction_D = _direction(config, layer, *states)
        stream = float(torch.cat(states).double().norm(dim=-1).mean())
        lengths[str(layer)] = (float(direction_D.norm()), stream)
        names = [f"layer.{layer}.{draw}" for draw in range(_RANDOM)]
        drawn = [normal_values(config.seed, name, direction_D.shape) for name in names]
        drawn = [one_D * (direction_D.norm() / one_D.norm()) for one_D in drawn]
        for strength in config.strengths:
            vector, *random = (measured(layer, d, strength) for d in (direction_D, *drawn))
            row = SteerRow(layer=layer, strength=strength, vector=vector, random=tuple(random))
            rows.append(row)
            progress.advance(len(rows))
    progress.end(f"{count} rows")
    best, verdict = recommended(rows, config.kl)
    for name in (FILE, VECTOR, GGUF):  # of an earlier measurement
        (folder / name).unlink(missing_ok=True)
    files, no_gguf = [], "there is no recommendation"
    if best is not None:
        steering = vector_of(rows[best].layer, directions[rows[best].layer], rows[best].strength)
        write_vector(folder / VECTOR, steering)
        files, no_gguf = [VECTOR], ""
        try:
            write_control_vector(folder / GGUF, steering, decoder.config)
            files.append(GGUF)
        except ExportError as error:
            no_gguf = error.line()
    settings = {name: value for name, value in to_plain(config).items() if name not in _PATHS}
    steer_file = SteerFile(
        model_sha256=identity,
        settings=settings,
        positive=kinds[0].record(unsteered.positive_loss),
        negative=kinds[1].record(unsteered.negative_loss),
        positive_tokens=int(measure.positive_V.sum()),
        lengths=lengths,
        rows=tuple(rows),
        recommended=best,
        verdict=verdict,
        files={name: sha256_file(folder / name) for name in files},
        no_gguf=no_gguf,
    )
    write_record(folder / FILE, SteerFile, asdict(steer_file))
    return steer_file


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
    there = max(abs(measures.effect) for measures in row.random)
    random = [measures for other in rows for measures in other.random]
    others = [abs(measures.effect) for measures in random if measures.kl <= kl]
    control = max([there, *others])
    facts = (
        f"effect {row.vector.effect:+.3g} at KL {row.vector.kl:.3g} (layer {row.layer}, strength {row.strength:g}); "
        f"random directions there {there:.3g} at most, at every layer and strength within that bound {control:.3g}"
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


def _residual(
    config: SteerConfig, decoder: Decoder, texts: _Texts, layer: int, prefix: int
) -> Tensor:
    """The residual stream behind a layer at the tokens of the texts to fit, (N, D), without what precedes every text."""
    states: list[Tensor] = []
    for rows in length_batches([len(ids) - 1 for ids in texts.fit], config.batch_tokens):
        tokens_BT, own_BT = padded([texts.fit[row][:-1] for row in rows])
        own_BT[:, :prefix] = False

        def keep(_: Any, output: Tensor, own_BT: Tensor = own_BT) -> None:
            states.append(output[own_BT])

        with torch.no_grad(), tapped(decoder, {f"layers.{layer}": keep}):
            decoder.model(tokens_BT)
    return torch.cat(states)


def _direction(config: SteerConfig, layer: int, positive_ND: Tensor, negative_ND: Tensor) -> Tensor:
    """The direction of a layer, float32, from residual streams."""
    means_D = positive_ND.double().mean(0) - negative_ND.double().mean(0)
    length = float(means_D.norm())
    if not 0 < length < float("inf"):
        raise DataError(
            f"the direction of layer {layer} has length {length}",
            fix="The texts are empty or have the same tokens, or the model diverged",
        )
    if config.method == "probe":
        normal_D = _logistic(positive_ND, negative_ND)
        means_D = normal_D * (length / normal_D.norm())
    return means_D.float()


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
        self._decoder, self._batch_tokens = decoder, config.batch_tokens
        self._positive = positive.measure
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
        self._unsteered = [self._hidden(*batch) for batch in self._batches]

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
        mean = (sums / count).tolist()
        of_positive = nats_of_sequences(self._decoder, self._positive, self._batch_tokens)
        return SteerMeasures(
            effect=mean[0], kl=max(mean[1], 0.0), negative_loss=mean[2],
            positive_loss=float(torch.cat(of_positive).double().mean()),
        )  # fmt: skip

    def _log_odds(self, log_prob_NV: Tensor) -> Tensor:
        positive_N = log_prob_NV[:, self.positive_V].logsumexp(-1)
        return positive_N - log_prob_NV[:, ~self.positive_V].logsumexp(-1)

    @torch.no_grad()
    def _hidden(self, tokens_BT: Tensor, own_BT: Tensor) -> Tensor:
        hidden_ND: Tensor = self._decoder.model(tokens_BT[:, :-1])[own_BT[:, 1:]]
        return hidden_ND
