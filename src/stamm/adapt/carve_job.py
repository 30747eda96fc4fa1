"""Carve experts from the dense feed-forward blocks of a trained decoder.

Reads    start (a stored decoder or a Hugging Face folder), tokenizer; pack (a packed corpus), or the configuration's text
Writes   model/ (the decoder with experts, change.json), carve.json, config.json, manifest.json

Letters: B rows, T tokens, N tokens of a batch without padding, C units, D model, E experts.

Checked  tests/unit/adapt/test_carve.py
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from torch import Tensor

from stamm.adapt.blocks import Weigh, block_samples, weighted
from stamm.adapt.carve import (
    BlockCarve,
    carve_at_random,
    carve_block,
    expert_sizes,
    kept_units,
)
from stamm.adapt.change import Parent, open_parent, store_change
from stamm.adapt.config import CarveConfig, carved_config
from stamm.adapt.records import CarveArm, CarveFile
from stamm.adapt.sample import mean_loss
from stamm.base.errors import DataError
from stamm.base.schema import write_record
from stamm.models.config import Experts
from stamm.models.decode_step import DecodeStep, run_prompts
from stamm.models.decoder import Decoder
from stamm.models.experts import expert_weights
from stamm.runs.job import Workspace

RECORD = "carve.json"
_DRAWS = 3
_DECODED = 32


def run(config: CarveConfig, workspace: Workspace) -> None:
    """Write the decoder of inputs["start"] with experts, and what they cost beside their controls.

    Raises   ConfigError when the experts do not fit the model's blocks, or there is no text; DataError when
             the calibration text has fewer tokens than a block has units, or the model is damaged
    """
    progress, experts = workspace.progress, config.experts
    parent = open_parent(config, workspace)
    decoder, texts = parent.decoder, parent.texts
    new = Decoder(carved_config(decoder.config, experts)).eval()
    width, tokens = decoder.config.ffn.width, texts.calibration.tokens
    if tokens < width:
        raise DataError(
            f"the {texts.fitted_name} has {tokens} tokens, fewer than the {width} units of a block",
            fix="Name more text, or raise carve.tokens",
        )
    progress.begin("carve", 4, "stages")
    samples = block_samples(decoder, texts.fitted, config.batch_tokens)
    balanced: list[BlockCarve] = []
    random: list[list[BlockCarve]] = [[] for _ in range(_DRAWS)]
    static: list[Tensor] = []
    for layer, sample in enumerate(samples):
        seed = config.seed + (1 + _DRAWS) * layer
        balanced.append(carve_block(sample, experts, seed))
        for draw, carves in enumerate(random, 1):
            carves.append(carve_at_random(sample, experts, seed + draw))
        static.append(kept_units(sample, experts.active / experts.count))
    progress.advance(1, "experts fitted")
    loss = mean_loss(decoder, texts.measured, config.batch_tokens)
    arms = tuple(_arms(decoder, parent, config, balanced, random, static))
    progress.advance(2, "controls measured")
    _copy_weights(decoder, new, balanced)
    carved_loss = mean_loss(new, texts.measured, config.batch_tokens)
    progress.advance(3, "measured")
    stored = store_change("carve", config, workspace, parent, new, (loss, carved_loss))
    decoded, multiplied = _decoded(new, texts.measured)
    record = CarveFile(
        model_sha256=stored.model_sha256,
        parent_sha256=stored.parent_sha256,
        experts=experts.count,
        active=experts.active,
        shared=experts.shared,
        calibration=stored.calibration,
        measured=stored.measured,
        loss=loss,
        carved_loss=carved_loss,
        arms=arms,
        layer_errors=tuple(carve.error for carve in balanced),
        decoded=decoded,
        multiplied=multiplied,
        slices=decoded * decoder.config.num_layers * experts.count,
    )
    write_record(workspace.folder / RECORD, CarveFile, asdict(record))
    progress.end(f"loss {loss:.4f} -> {carved_loss:.4f}")


def _arms(
    decoder: Decoder,
    parent: Parent,
    config: CarveConfig,
    balanced: list[BlockCarve],
    random: list[list[BlockCarve]],
    static: list[Tensor],
) -> Iterator[CarveArm]:
    """Losses of the dense decoder with units masked as each way to carve and to choose would."""
    experts, sequences = config.experts, parent.texts.measured

    def loss(weigh: Sequence[Weigh]) -> float:
        with weighted(decoder, weigh):
            return mean_loss(decoder, sequences, config.batch_tokens)

    blocks: list[Any] = [layer.mlp for layer in decoder.model.layers]
    for name, draws in (("balanced", [balanced]), ("random", random)):
        by_router = {
            "linear": lambda carve, block: partial(_linear, carve, experts),
            "oracle": lambda carve, block: partial(
                _oracle, carve, experts, block.down_proj.weight.detach()
            ),
        }
        for router, choose in by_router.items():
            losses = [loss(list(map(choose, carves, blocks))) for carves in draws]
            mean = sum(losses) / len(losses)
            yield CarveArm(carve=name, router=router, loss=mean, draws=len(losses))
    kept = [partial(lambda kept_C, x, h: kept_C, kept_C) for kept_C in static]
    yield CarveArm(carve="static", router="", loss=loss(kept))


def _linear(carve: BlockCarve, experts: Experts, x: Tensor, h: Tensor) -> Tensor:
    weights = expert_weights(x @ carve.router.T, experts)
    return _of_units(weights, carve.order, experts)


def _oracle(carve: BlockCarve, experts: Experts, down_DC: Tensor, x: Tensor, h: Tensor) -> Tensor:
    sizes = expert_sizes(h.flatten(0, -2), down_DC, carve.order, experts)
    sizes = sizes.view(*h.shape[:-1], experts.routed)
    chosen = torch.zeros_like(sizes).scatter(-1, sizes.topk(experts.chosen, dim=-1).indices, 1.0)
    shared = chosen.new_ones(*chosen.shape[:-1], experts.shared)
    return _of_units(torch.cat([shared, chosen], -1), carve.order, experts)


def _of_units(weights: Tensor, order_C: Tensor, experts: Experts) -> Tensor:
    """The factor of every unit of the dense block, (..., C), from those of the experts, (..., E)."""
    by_place = weights.repeat_interleave(len(order_C) // experts.count, -1)
    return by_place[..., order_C.argsort()]


@torch.no_grad()
def _copy_weights(old: Decoder, new: Decoder, carves: Sequence[BlockCarve]) -> None:
    """The weights of `old` in `new`, with units in the order of the experts, and the routers."""
    state = dict(old.state_dict())
    for layer, carve in enumerate(carves):
        block = f"model.layers.{layer}.mlp"
        for name in ("gate_proj", "up_proj"):
            if (key := f"{block}.{name}.weight") in state:
                state[key] = state[key][carve.order]
        state[f"{block}.down_proj.weight"] = state[f"{block}.down_proj.weight"][:, carve.order]
        state[f"{block}.router.weight"] = carve.router
    new.load_state_dict(state)


@torch.no_grad()
def _decoded(decoder: Decoder, sequences: Sequence[Sequence[int]]) -> tuple[int, int]:
    """Tokens decoded one by one, and the expert slices that they were multiplied with."""
    longest = max(sequences, key=len)[: _DECODED + 1]
    step = DecodeStep(decoder, 1)
    step.fill(0, run_prompts(decoder, [longest[:1]]), 0)
    for token in longest[1:]:
        step(torch.tensor([token]))
    return len(longest) - 1, step.multiplied_experts
