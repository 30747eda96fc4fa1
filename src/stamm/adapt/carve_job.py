"""Carve experts from the dense feed-forward blocks of a trained decoder.

Reads    start (a stored decoder or a Hugging Face folder), tokenizer; pack (a packed corpus), or the configuration's text
Writes   model/ (the decoder with experts, change.json), carve.json, config.json, manifest.json

Letters: B rows, T tokens, N tokens of a batch without padding, C units, D model, E experts.

Checked  tests/unit/adapt/test_carve.py
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from torch import Tensor

from stamm.adapt.blocks import block_samples, weighted
from stamm.adapt.carve import (
    BlockCarve,
    carve_at_random,
    carve_block,
    expert_sizes,
    kept_units,
    of_units,
    refit_matrix,
)
from stamm.adapt.change import Parent, check_tokens, open_parent, store_change
from stamm.adapt.config import CarveConfig, carved_config
from stamm.adapt.records import CarveArm, CarveFile
from stamm.adapt.sample import mean_loss
from stamm.base.schema import write_record
from stamm.models.config import Experts
from stamm.models.decode_step import DecodeStep, run_prompts
from stamm.models.decoder import Decoder
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
    check_tokens(parent, "carve.tokens")
    progress.begin("carve", 4, "stages")
    samples = block_samples(decoder, texts.fitted, config.batch_tokens)
    balanced: list[BlockCarve] = []
    random: list[list[BlockCarve]] = [[] for _ in range(_DRAWS)]
    static: list[list[Tensor]] = []
    for layer, sample in enumerate(samples):
        seed = config.seed + (1 + _DRAWS) * layer
        balanced.append(carve_block(sample, experts, seed))
        for draw, carves in enumerate(random, 1):
            carves.append(carve_at_random(sample, experts, seed + draw))
        kept_C = kept_units(sample, experts.active / experts.count)
        static.append([down_DC * kept_C for down_DC in (sample.down, refit_matrix(sample, kept_C))])
    progress.advance(1, "experts fitted")
    loss = mean_loss(decoder, texts.measured, config.batch_tokens)
    arms = tuple(_arms(parent, config, new, balanced, random, static))
    progress.advance(2, "controls measured")
    carved_loss = mean_loss(
        carved_decoder(decoder, new, balanced), texts.measured, config.batch_tokens
    )
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
    parent: Parent,
    config: CarveConfig,
    new: Decoder,
    balanced: list[BlockCarve],
    random: list[list[BlockCarve]],
    static: list[list[Tensor]],
) -> Iterator[CarveArm]:
    """Losses with each way to carve and to choose; the weights of `new` are overwritten."""
    decoder, experts = parent.decoder, config.experts

    def loss(model: Decoder) -> float:
        return mean_loss(model, parent.texts.measured, config.batch_tokens)

    def oracle(carves: Sequence[BlockCarve]) -> float:
        matrices = [block.down_proj.weight.detach() for block in _blocks(decoder)]
        pairs = zip(carves, matrices, strict=True)
        with weighted(decoder, [partial(_oracle, carve, experts, down) for carve, down in pairs]):
            return loss(decoder)

    for name, draws in (("balanced", [balanced]), ("random", random)):
        ways: tuple[tuple[str, bool, list[float]], ...] = (
            ("linear", False, [loss(carved_decoder(decoder, new, c, refit=False)) for c in draws]),
            ("linear", True, [loss(carved_decoder(decoder, new, c, refit=True)) for c in draws]),
            ("oracle", False, [oracle(carves) for carves in draws]),
        )
        for router, refit, losses in ways:
            mean = sum(losses) / len(losses)
            yield CarveArm(carve=name, router=router, refit=refit, loss=mean, draws=len(losses))
    pruned = copy.deepcopy(decoder)
    for refit in (False, True):
        for block, matrices in zip(_blocks(pruned), static, strict=True):
            block.down_proj.weight.data.copy_(matrices[refit])
        yield CarveArm(carve="static", router="", refit=refit, loss=loss(pruned))


def _blocks(decoder: Decoder) -> list[Any]:
    return [layer.mlp for layer in decoder.model.layers]


def _oracle(carve: BlockCarve, experts: Experts, down_DC: Tensor, h: Tensor) -> Tensor:
    sizes = expert_sizes(h.flatten(0, -2), down_DC, carve.order, experts)
    sizes = sizes.view(*h.shape[:-1], experts.routed)
    chosen = torch.zeros_like(sizes).scatter(-1, sizes.topk(experts.chosen, dim=-1).indices, 1.0)
    shared = chosen.new_ones(*chosen.shape[:-1], experts.shared)
    return of_units(torch.cat([shared, chosen], -1), carve.order)


@torch.no_grad()
def carved_decoder(
    old: Decoder, new: Decoder, carves: Sequence[BlockCarve], *, refit: bool = True
) -> Decoder:
    """`new` with the weights of `old`, units in the order of the experts, and the routers."""
    state = dict(old.state_dict())
    for layer, carve in enumerate(carves):
        block = f"model.layers.{layer}.mlp"
        for name in ("gate_proj", "up_proj"):
            if (key := f"{block}.{name}.weight") in state:
                state[key] = state[key][carve.order]
        down_DC = carve.down if refit else state[f"{block}.down_proj.weight"]
        state[f"{block}.down_proj.weight"] = down_DC[:, carve.order]
        state[f"{block}.router.weight"] = carve.router
    new.load_state_dict(state)
    return new


@torch.no_grad()
def _decoded(decoder: Decoder, sequences: Sequence[Sequence[int]]) -> tuple[int, int]:
    """Tokens decoded one by one, and the expert slices that they were multiplied with."""
    longest = max(sequences, key=len)[: _DECODED + 1]
    step = DecodeStep(decoder, 1)
    step.fill(0, run_prompts(decoder, [longest[:1]]), 0)
    for token in longest[1:]:
        step(torch.tensor([token]))
    return len(longest) - 1, step.multiplied_experts
