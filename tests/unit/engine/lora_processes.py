"""Started by torchrun, or alone: train the adapters of a small decoder with `fit`, and save what it gives.

Arguments   a file for the metrics, then one JSON object a training: folder, start, and what differs.
            "kill": the step in which the process kills itself.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from stamm.base.config import from_plain
from stamm.base.shutdown import exit_immediately
from stamm.engine.config import EngineConfig, Parallel
from stamm.engine.distributed import DistributedContext, destroy_process_group, init_distributed
from stamm.engine.objective import MicroBatches
from stamm.engine.parallel import full_state_dict
from stamm.engine.trainer import InitialCheckpoint
from stamm.engine.trainer_setup import fit
from stamm.models.config import DecoderConfig, PlainFFN
from stamm.models.decoder import Decoder
from stamm.models.lora_config import Lora
from stamm.models.peft_adapter import save_adapted
from stamm.optim.config import AdamW, AdEMAMix, Muon, OptimizerConfig
from stamm.runs.job import Workspace
from stamm.runs.metrics import read_metrics
from tests.unit.engine.processes import CONTEXT, VOCABULARY, Packed

MODEL = DecoderConfig(
    vocab_size=VOCABULARY,
    d_model=32,
    num_layers=2,
    num_kv_heads=2,
    ffn=PlainFFN(width=48),
    max_context=CONTEXT,
)
OPTIMIZERS: dict[str, OptimizerConfig] = {
    "AdamW": AdamW(),
    "AdEMAMix": AdEMAMix(),
    "Muon": Muon(),
}


@dataclass(frozen=True, kw_only=True)
class Adapting:
    """The configuration that `fit` reads."""

    task: str = "train adapters"
    model: DecoderConfig = MODEL
    lora: Lora | None = None
    reward_head: bool = False
    context: int = CONTEXT
    optimizer: OptimizerConfig = field(default_factory=AdEMAMix)
    clip_norm: float = 1.0
    seed: int = 7
    engine: EngineConfig = field(default_factory=EngineConfig)


class Killed(Packed):
    """Packed sequences whose process kills itself in one step."""

    def __init__(
        self, decoder: Decoder, world: DistributedContext, steps: int, short: bool, kill: int
    ) -> None:
        super().__init__(decoder, world, steps, short)
        self._kill = kill

    def micro_batches(self, step: int) -> MicroBatches:
        """Two, unless it is the step."""
        if step == self._kill:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().micro_batches(step)


def float32_muon() -> AbstractContextManager[object]:
    """Muon without its casts to bfloat16, where the last bit of a gradient may turn a number by 2^-8.

    One process and two differ in such bits; that Muon's own bits do not depend on sharding is tested with
    equal gradients, in bfloat16 (tests/unit/optim/muon_processes.py).
    """
    return mock.patch.object(torch.Tensor, "bfloat16", lambda tensor: tensor)


def train(asked: dict[str, Any]) -> list[dict[str, Any]]:
    """Metrics of one training, on the main process."""
    engine = EngineConfig(
        threads=1,
        compile=asked.get("compile", "off"),
        precision=asked.get("precision", "float32"),
        activation_checkpointing=asked.get("recompute", "none"),
        checkpoint_every=2,
        parallel=Parallel(tensor=asked.get("tensor", 1)),
    )
    lora = from_plain(Lora, asked["lora"], "the test") if asked["lora"] else None
    config = Adapting(
        lora=lora, optimizer=OPTIMIZERS[asked.get("optimizer", "AdEMAMix")], engine=engine
    )
    short = engine.precision != "float32"
    world = init_distributed(engine.parallel, torch.device("cpu"), collectives=short)
    folder, steps = Path(asked["folder"]), asked.get("steps", 6)
    start = InitialCheckpoint(Path(asked["start"]), optimizer_state=False)

    def objective(decoder: Decoder) -> Killed:
        return Killed(decoder, world, steps, short, asked.get("kill", 0))

    with float32_muon() if isinstance(config.optimizer, Muon) else nullcontext():
        trained = fit(config, objective, steps, Workspace(folder=folder), world, start)
    weights = full_state_dict(trained.decoder, world)
    if not world.is_main_process:
        return []
    if lora is not None:
        save_adapted(config.model, weights, folder / "model", lora=lora)
    return read_metrics(folder / "metrics.jsonl")


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
