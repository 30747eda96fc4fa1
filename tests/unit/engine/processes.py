"""Started by torchrun, or alone: train one small decoder under each division that is asked for.

Arguments   a file for the results, then one JSON object a division. Writes [losses and norms by step]
            per division, by the leader.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from stamm.base.console import NoProgress
from stamm.base.shutdown import exit_immediately
from stamm.engine.compile import compile_layers
from stamm.engine.config import EIGHT_BITS, EngineConfig, Parallel
from stamm.engine.custom_optimizer_state import CustomShardedOptimizer
from stamm.engine.distributed import DistributedContext, destroy_process_group, init_distributed
from stamm.engine.float8 import convert
from stamm.engine.objective import MicroBatch, MicroBatches, Objective, StepLoss
from stamm.engine.parallel import apply_fsdp, apply_tensor_parallel
from stamm.engine.sequence_sharding import SequenceShard
from stamm.engine.sharded_optimizer import ShardedOptimizer
from stamm.engine.trainer import InitialCheckpoint, Trainer
from stamm.models.config import DecoderConfig, GatedFFN, PlainFFN
from stamm.models.decoder import Decoder, build_decoder
from stamm.optim.build import build_optimizer
from stamm.optim.config import AdamW, AdEMAMix, CustomOptimizer, OptimizerConfig
from stamm.optim.custom import optimizer_file
from stamm.runs.metrics import read_metrics

CONTEXT, SEQUENCES, VOCABULARY = 32, 8, 64


class Packed(Objective):
    """Eight packed sequences of several documents, over and over."""

    primary_metric = "train/loss_nats"
    unit = "tokens"

    def __init__(
        self, decoder: Decoder, world: DistributedContext, steps: int, short: bool
    ) -> None:
        draw = torch.Generator().manual_seed(3)
        shape = (SEQUENCES, CONTEXT + 1)
        self._tokens = torch.randint(0, VOCABULARY, shape, generator=draw)
        self._document = (torch.rand(shape, generator=draw) < 0.1).cumsum(1)
        self._keep = torch.rand(SEQUENCES, CONTEXT, generator=draw) > 0.1
        self._decoder, self._share = decoder, SequenceShard(world, CONTEXT)
        self._dtype = torch.bfloat16 if short else torch.float32
        self.num_steps = steps

    def micro_batches(self, step: int) -> MicroBatches:
        """Two."""
        return MicroBatches([MicroBatch(partial(self._compute, n)) for n in (0, SEQUENCES // 2)])

    def _compute(self, first: int) -> StepLoss:
        rows = self._share.rows(first, SEQUENCES // 2)
        part = slice(rows.start, rows.stop)
        tokens, document = self._tokens[part], self._document[part]
        found = self._decoder.losses(
            self._share.tokens(tokens[:, :-1]),
            self._share.tokens(tokens[:, 1:]),
            self._share.tokens(self._keep[part]),
            float(self._keep.sum()),
            attention=self._share.attention_inputs(
                self._decoder.model, document[:, :-1], self._dtype
            ),
        )
        return StepLoss(found.loss, {"train/loss_nats": found.nll})

    def learning_rate(self, step: int) -> float:
        """Constant."""
        return 1e-2

    def num_items(self, step: int) -> float:
        """Tokens of the step."""
        return SEQUENCES * CONTEXT


def train(asked: dict[str, Any]) -> list[dict[str, Any]]:
    """Losses and norms of one training, on the leader."""
    ffn = GatedFFN(width=32) if asked.get("gated") else PlainFFN(width=48)
    model = DecoderConfig(
        vocab_size=VOCABULARY,
        d_model=32,
        num_layers=2,
        num_kv_heads=2,
        ffn=ffn,
        qk_norm=not asked.get("bias", False),
        qkv_bias=asked.get("bias", False),
        tied_embeddings=asked.get("tied", False),
        max_context=CONTEXT,
    )
    config = EngineConfig(
        threads=1,
        compile=asked.get("compile", "off"),
        precision=asked.get("precision", "float32"),
        activation_checkpointing=asked.get("recompute", "none"),
        checkpoint_every=3,
        async_checkpointing=asked.get("background", False),
        parallel=Parallel(
            **{name: asked.get(name, 1) for name in ("context", "tensor", "replicas")}
        ),
    )
    short = config.precision != "float32"
    world = init_distributed(config.parallel, torch.device("cpu"), collectives=short)
    decoder = build_decoder(model, seed=7)
    if config.precision in EIGHT_BITS:
        convert(decoder.model.layers, config.precision, emulated=True)
    apply_tensor_parallel(decoder, world, config)
    compile_layers(decoder.model.layers, config, NoProgress())
    apply_fsdp(decoder, world, config)
    task = Packed(decoder, world, asked.get("steps", 6), short)
    updater = _updater(asked.get("optimizer", "AdEMAMix"), decoder)
    folder = Path(asked["folder"])
    start = InitialCheckpoint(Path(asked["start"]), False) if "start" in asked else None
    Trainer(task, decoder, updater, 1.0, config, world, folder, NoProgress(), start=start).run()
    return read_metrics(folder / "metrics.jsonl") if world.is_main_process else []


def _updater(name: str, decoder: Decoder) -> ShardedOptimizer:
    """AdamW, AdEMAMix or a user's optimizer, "mine.py:Name"."""
    chosen: OptimizerConfig = AdamW() if name == "AdamW" else AdEMAMix()
    if ":" in name:
        chosen = CustomOptimizer(reference=name)

    def build(piece: Callable[[nn.Parameter], nn.Parameter]) -> torch.optim.Optimizer:
        return build_optimizer(chosen, decoder, 6, piece)

    if isinstance(chosen, CustomOptimizer):
        return CustomShardedOptimizer(decoder, build, optimizer_file(chosen))
    return ShardedOptimizer(decoder, build)


def main() -> None:
    """Do every training that the command line asks for."""
    torch.set_num_threads(1)
    results = [train(json.loads(text)) for text in sys.argv[2:]]
    if any(results):
        Path(sys.argv[1]).write_text(json.dumps(results))
    destroy_process_group()
    exit_immediately(0)


if __name__ == "__main__":
    main()
