"""Activation patching: the residual stream of a clean prompt in a run of a corrupted one, cell by cell.

A cell is a layer and a position: the tap `layers.N` at that position has the value of the clean prompt, all else follows from the
corrupted one. What is measured is the next token after the prompt.

Letters: L layers, T positions, B cells computed together, D model, V vocabulary.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from stamm.base.errors import ConfigError
from stamm.models.attention import KVCache
from stamm.models.attention_mask import attention_inputs
from stamm.models.decoder import Decoder
from stamm.observe.taps import Hook, tapped
from stamm.pages.svg_figure import Axes, picture
from stamm.pages.text import one_line
from stamm.pages.theme import drawn

PatchMetric = Literal["logit_difference", "kl", "probability"]
_TITLES = {
    "logit_difference": "recovered share of the logit difference",
    "kl": "KL from the clean prediction, nats",
    "probability": "probability of the clean answer",
}
_SHARED_FROM = 3_000_000  # parameters; below, calls cost more than the sums that sharing saves
_CELLS = 32

Cells = tuple[list[tuple[int, int]], Tensor]


@dataclass(frozen=True, kw_only=True)
class PatchGrid:
    """The metric of every cell.

    values            (L, T), float64
    clean, corrupted  the metric of the unpatched prompts
    answers           token ids whose logits are compared: that of the clean prompt, that of the corrupted one
    """

    metric: PatchMetric
    values: Tensor
    clean: float
    corrupted: float
    answers: tuple[int, int]

    def picture(self, tokens: Sequence[str] = ()) -> bytes:
        """The grid as a PNG, 1720 pixels wide: layers from the input upwards, positions from left to right.

        A cell is the stronger the farther it is from the corrupted prompt, in another colour if away from the clean one.

        tokens   texts of the positions
        """
        layers, positions = self.values.shape
        names = [one_line(text, 12) for text in tokens] or [str(n) for n in range(positions)]
        scale = (self.clean - self.corrupted) or 1.0

        def paint(panels: list[Axes]) -> None:
            (axes,) = panels
            for layer, position in itertools.product(range(layers), range(positions)):
                share = (float(self.values[layer, position]) - self.corrupted) / scale
                axes.barh(
                    layer, 0.94, 0.94, left=position - 0.47, color=drawn("series-0" if share >= 0 else "series-1"),
                    alpha=min(abs(share), 1.0),
                )  # fmt: skip
            axes.set_title(
                f"{_TITLES[self.metric]}: clean {self.clean:.4g}, corrupted {self.corrupted:.4g}"
            )
            axes.set_xticks(range(positions), names, rotation=90)
            axes.set_yticks(range(layers))
            axes.set_ylabel("layer")
            axes.grid(visible=False)

        return picture(1.4 + 0.22 * layers, paint)


def patch_grid(
    model: Decoder,
    clean: Sequence[int],
    corrupted: Sequence[int],
    metric: PatchMetric = "logit_difference",
    *,
    answers: tuple[int, int] | None = None,
) -> PatchGrid:
    """The metric of the next token for every layer and position whose residual stream is the clean prompt's.

        model, tokenizer = stamm.load("runs/demo/arms/xielu")
        stamm.patch_grid(model, clean_ids, corrupted_ids, "kl").values

    clean, corrupted   token ids of two prompts of one length
    metric    "logit_difference": (d - corrupted d) / (clean d - corrupted d), d = logit of the clean answer minus that of the
              corrupted one; "kl": KL(clean, patched) in nats; "probability": of the clean answer
    answers   the two tokens; None: the most likely one of each prompt

    A cell shares what precedes it with the corrupted run: earlier layers, and keys and values of earlier positions. Models below
    3 million parameters compute 32 whole cells together instead, which is as fast there.

    Memory    the residual stream of both prompts, and a batch of L rows
    Raises    ConfigError for prompts of different lengths, ids out of the vocabulary, an unknown metric, and for
              "logit_difference" when both prompts have it equal
    Checked   tests/unit/observe/test_patch.py
    """
    if metric not in get_args(PatchMetric):
        raise ConfigError(f"metric = {metric!r}", fix=f"Use one of {', '.join(_TITLES)}")
    _check_prompts(model, clean, corrupted, answers or ())
    with torch.no_grad(), tapped(model, {}):
        ends_2V = model(torch.tensor([list(clean), list(corrupted)]).to(_device(model)))[:, -1]
    if answers is None:
        first, second = ends_2V.argmax(-1).tolist()
        answers = (first, second)
    difference = ends_2V.double()[:, answers[0]] - ends_2V.double()[:, answers[1]]
    if metric == "logit_difference" and bool(difference[0] == difference[1]):
        raise ConfigError(
            f"both prompts have the logit difference {float(difference[0]):.4g} of tokens {answers[0]} and {answers[1]}",
            fix="Name answers=(right, wrong), two tokens that the prompts tell apart",
        )

    def measured(logits_BV: Tensor) -> Tensor:
        logits_BV = logits_BV.double()
        if metric == "logit_difference":
            found_B = logits_BV[:, answers[0]] - logits_BV[:, answers[1]]
            return torch.div(found_B - difference[1], difference[0] - difference[1])
        log_prob_BV = logits_BV.log_softmax(-1)
        if metric == "probability":
            return torch.exp(log_prob_BV[:, answers[0]])
        clean_V = ends_2V[0].double().log_softmax(-1)
        return torch.sum(clean_V.exp() * (clean_V - log_prob_BV), -1)

    values = torch.full((len(model.model.layers), len(clean)), math.nan, dtype=torch.float64)
    size = sum(parameter.numel() for parameter in model.parameters())
    for cells, logits_BV in cell_logits(model, clean, corrupted, shared=size >= _SHARED_FROM):
        for cell, value in zip(cells, measured(logits_BV).tolist(), strict=True):
            values[cell] = value
    of_clean, of_corrupted = measured(ends_2V).tolist()
    return PatchGrid(
        metric=metric, values=values, clean=of_clean, corrupted=of_corrupted, answers=answers
    )


@torch.no_grad()
def cell_logits(
    decoder: Decoder, clean: Sequence[int], corrupted: Sequence[int], *, shared: bool
) -> Iterator[Cells]:
    """Cells, as (layer, position), and their logits of the next token, (B, V).

    shared   compute of a cell only what differs from the corrupted run; False: whole forward passes of 32 cells
    """
    tokens_1T = torch.tensor([list(corrupted)], device=_device(decoder))
    clean_states = _residuals(decoder, tokens_1T.new_tensor([list(clean)]), None)
    with tapped(decoder, {}):
        yield from (_shared if shared else _batched)(decoder, tokens_1T, clean_states)


def _shared(decoder: Decoder, tokens_1T: Tensor, clean: Sequence[Tensor]) -> Iterator[Cells]:
    """All layers of a position together: the rows of a layer are the cells below it."""
    layers: list[Any] = list(decoder.model.layers)
    caches = [KVCache() for _ in layers]
    states = _residuals(decoder, tokens_1T, caches)
    length = tokens_1T.shape[1]
    for position in range(length):
        attention = attention_inputs(
            decoder.model, length - position, None, states[0].dtype, position
        )
        x_BTD = states[0][:0, position:]
        for number, layer in enumerate(layers):
            if number:
                cache = _beginning(caches[number], number, position)
                x_BTD = layer(x_BTD, attention.rotation, attention.mask, cache)
            new_1TD = states[number][:, position:].clone()
            new_1TD[:, 0] = clean[number][:, position]
            x_BTD = torch.cat((x_BTD, new_1TD))
        logits_BV = decoder.lm_head(decoder.model.norm(x_BTD[:, -1]))
        yield [(number, position) for number in range(len(layers))], logits_BV


def _batched(decoder: Decoder, tokens_1T: Tensor, clean: Sequence[Tensor]) -> Iterator[Cells]:
    """Whole forward passes of several cells."""
    cells = list(itertools.product(range(len(clean)), range(tokens_1T.shape[1])))

    def patch(rows: list[tuple[int, int]], state_1TD: Tensor, _: Any, output: Tensor) -> Tensor:
        output = output.clone()
        for row, position in rows:
            output[row, position] = state_1TD[0, position]
        return output

    for first in range(0, len(cells), _CELLS):
        batch = cells[first : first + _CELLS]
        hooks: dict[str, Hook] = {}
        for layer in {layer for layer, _ in batch}:
            rows = [
                (row, position) for row, (number, position) in enumerate(batch) if number == layer
            ]
            hooks[f"layers.{layer}"] = partial(patch, rows, clean[layer])
        with tapped(decoder, hooks):
            hidden_BTD = decoder.model(tokens_1T.expand(len(batch), -1))
        yield batch, decoder.lm_head(hidden_BTD[:, -1])


def _residuals(decoder: Decoder, tokens_1T: Tensor, caches: list[KVCache] | None) -> list[Tensor]:
    """The residual stream behind each layer, (1, T, D)."""
    states: list[Tensor] = []

    def keep(_: Any, output: Tensor) -> None:
        states.append(output)

    hooks: dict[str, Hook] = {f"layers.{n}": keep for n in range(len(decoder.model.layers))}
    with tapped(decoder, hooks):
        decoder.model(tokens_1T, caches=caches)
    return states


def _beginning(cache: KVCache, rows: int, length: int) -> KVCache:
    """The first positions of a cache of one row, for several rows."""
    beginning = KVCache()
    assert cache.keys is not None and cache.values is not None
    if length:
        beginning.keys, beginning.values = (
            states[:, :, :length].expand(rows, -1, -1, -1) for states in (cache.keys, cache.values)
        )
    return beginning


def _check_prompts(
    decoder: Decoder, clean: Sequence[int], corrupted: Sequence[int], answers: Sequence[int]
) -> None:
    config = decoder.config
    if len(clean) != len(corrupted) or not 0 < len(clean) <= config.max_context:
        raise ConfigError(
            f"the prompts have {len(clean)} and {len(corrupted)} tokens, and max_context is {config.max_context}",
            fix="Use two prompts of one length within it",
        )
    wrong = [t for t in (*clean, *corrupted, *answers) if not 0 <= t < config.vocab_size]
    if wrong:
        raise ConfigError(f"token {wrong[0]} is not one of the model's {config.vocab_size}")


def _device(decoder: Decoder) -> torch.device:
    return decoder.lm_head.weight.device
