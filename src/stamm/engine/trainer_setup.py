"""From a configuration to a trained decoder: build, shard and compile it, then train it on an objective.

A decoder with self-guided training (`SelfGuide`) is trained in two parts: when the weight of the dense
guides has reached 0, a checkpoint is written without them and their optimizer state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import nn

from stamm.base.errors import ConfigError
from stamm.engine.background_check import BackgroundCheck
from stamm.engine.checkpoint_files import checkpoint_steps
from stamm.engine.compile import compile_layers
from stamm.engine.config import EIGHT_BITS, EngineConfig
from stamm.engine.custom_optimizer_state import CustomShardedOptimizer
from stamm.engine.distributed import DistributedContext
from stamm.engine.float8 import use_float8
from stamm.engine.objective import Objective
from stamm.engine.parallel import (
    allocate_weights,
    apply_fsdp,
    apply_tensor_parallel,
    copy_shard,
    init_sharded_weights,
)
from stamm.engine.peak_flops import peak_flops
from stamm.engine.sharded_optimizer import ShardedOptimizer
from stamm.engine.stored_decoder import is_stored_decoder
from stamm.engine.trainer import EarlyStopping, Evaluator, InitialCheckpoint, Trainer
from stamm.models.config import DecoderConfig, Dense
from stamm.models.decoder import Decoder, build_blank, build_decoder
from stamm.models.lora import add_adapters, init_adapters, keep_stored_types
from stamm.models.lora_config import Lora
from stamm.models.self_guide import guided_steps
from stamm.models.serialization import stored_types
from stamm.optim.build import build_optimizer, implementation_of
from stamm.optim.config import CustomOptimizer, OptimizerConfig
from stamm.optim.custom import optimizer_file
from stamm.runs.job import Workspace


class TrainConfig(Protocol):
    """The fields of a job's configuration that `fit` reads."""

    @property
    def task(self) -> str:
        """Name of the training for the progress bar: "train swiglu", "fine-tune by DPO"."""

    @property
    def model(self) -> DecoderConfig:
        """The decoder to build."""

    @property
    def lora(self) -> Lora | None:
        """Adapters to train in place of all parameters; None: none."""

    @property
    def reward_head(self) -> bool:
        """Whether to train a reward head on the decoder."""

    @property
    def context(self) -> int:
        """Length of the sequences that the model sees."""

    @property
    def optimizer(self) -> OptimizerConfig:
        """The optimizer, without its learning rate, which the objective sets."""

    @property
    def clip_norm(self) -> float:
        """Gradient clipping: largest gradient norm."""

    @property
    def seed(self) -> int:
        """Seed of the initial weights."""

    @property
    def engine(self) -> EngineConfig:
        """Devices, parallelism, precision, checkpoints."""


@dataclass(frozen=True)
class TrainedModel:
    """A decoder at the end of its run, still sharded over the processes.

    compiled    whether its layers were compiled
    optimizer   implementation of the optimizer
    last_step   the last step that was trained
    best_step   the step whose weights it has because of early stopping; None: the last
    """

    decoder: Decoder
    objective: Objective
    compiled: bool
    optimizer: str
    last_step: int
    best_step: int | None = None


def fit(
    config: TrainConfig,
    make_objective: Callable[[Decoder], Objective],
    num_steps: int,
    workspace: Workspace,
    world: DistributedContext,
    start: InitialCheckpoint | None = None,
    make_evaluator: Callable[[Decoder], Evaluator | None] | None = None,
    stopping: EarlyStopping | None = None,
    check: BackgroundCheck | None = None,
    until: int | None = None,
) -> TrainedModel:
    """Train from the newest checkpoint, or from the beginning, to the end.

    make_objective   makes the objective for the decoder that was built, already split over the
                     processes; it has `num_steps` steps
    start            checkpoint of another run or stored decoder to start from; None: random weights
    make_evaluator   makes what evaluates the decoder between steps
    stopping         early stopping by a metric of the evaluations; None: none
    check            a check of the data that the first checkpoint waits for; None: none
    until            the step to stop at, with a checkpoint; None: the last
    Raises           what `Trainer.run` raises, and ConfigError for parallelism or adapters that do
                     not fit
    """
    if config.lora is not None:
        start = _frozen_start(config.engine, start)
    guided = guided_steps(config.model.structured.guide, num_steps)
    peak = peak_flops(config.engine, world.device)
    end = num_steps if until is None else until
    saved = checkpoint_steps(workspace.folder / "checkpoints")
    reached: int = world.broadcast_object(max(saved, default=0))
    workspace.progress.begin(config.task, num_steps, "steps")
    while True:
        first, last = (0, guided) if reached < guided else (guided, num_steps)
        trained, trainer = _build(
            config, make_objective, workspace, world, peak, start, make_evaluator, stopping, check,
            guides=first < guided,
        )  # fmt: skip
        # A damaged checkpoint may send the run back into the first part.
        reached = trainer.run(first=first, until=min(last, end))
        if reached == end or trainer.stopped_early:
            return replace(trained, last_step=reached, best_step=trainer.best_step)


def _frozen_start(engine: EngineConfig, start: InitialCheckpoint | None) -> InitialCheckpoint:
    """The start of a run that trains adapters.

    Raises   ConfigError without a start model, for its optimizer state, and for products in 8 bits
    """
    if start is None:
        raise ConfigError(
            "lora trains adapters beside frozen weights, and the run starts from random ones",
            fix="Name a model to start from, or set lora=none",
        )
    if start.optimizer_state:
        raise ConfigError(
            f"the optimizer state of {start.path} is not that of adapters",
            fix="Start with a new optimizer state, or set lora=none",
        )
    if engine.precision in EIGHT_BITS:
        raise ConfigError(
            f"lora cannot multiply in 8 bits (engine.precision = {engine.precision!r})",
            fix="Set engine.precision=bfloat16",
        )
    return replace(start, frozen=True)


def _build(
    config: TrainConfig,
    make_objective: Callable[[Decoder], Objective],
    workspace: Workspace,
    world: DistributedContext,
    peak: float,
    start: InitialCheckpoint | None,
    make_evaluator: Callable[[Decoder], Evaluator | None] | None,
    stopping: EarlyStopping | None,
    check: BackgroundCheck | None,
    *,
    guides: bool,
) -> tuple[TrainedModel, Trainer]:
    engine = config.engine
    # Sharded weights are drawn one matrix at a time; guides are made from whole matrices.
    lora = config.lora
    dense = isinstance(config.model.ffn.linear, Dense)
    # Weights that are read from the start are not drawn.
    blank = dense and (world.mesh is not None or start is not None)
    decoder = build_blank(config.model) if blank else build_decoder(config.model, config.seed)
    if guides:
        decoder.add_guides()
    if lora is not None:
        add_adapters(decoder, lora)
        if world.mesh is None and start is not None and is_stored_decoder(start.path):
            keep_stored_types(decoder, stored_types(start.path))
    if config.reward_head:
        decoder.add_reward_head()
    if not blank:
        decoder.to(world.device)
    elif world.mesh is None:
        allocate_weights(decoder, world.device)
        if config.model.tied_embeddings:  # to_empty() makes two of one parameter
            decoder.lm_head.weight = decoder.model.embed_tokens.weight
    use_float8(decoder, engine, config.context, world.device)
    apply_tensor_parallel(decoder, world, engine)
    objective = make_objective(decoder)
    compiled = compile_layers(decoder.model.layers, engine, workspace.progress)
    apply_fsdp(decoder, world, engine)
    if blank and world.mesh is not None and start is None:
        init_sharded_weights(decoder, config.seed, world.device)
    elif blank and world.mesh is not None:
        allocate_weights(decoder, world.device)
    if lora is not None:
        init_adapters(decoder, config.seed if lora.seed is None else lora.seed, copy_shard)

    def build(shard: Callable[[nn.Parameter], nn.Parameter]) -> torch.optim.Optimizer:
        return build_optimizer(config.optimizer, decoder, objective.num_steps, shard)

    optimizer = (
        CustomShardedOptimizer(decoder, build, optimizer_file(config.optimizer))
        if isinstance(config.optimizer, CustomOptimizer)
        else ShardedOptimizer(decoder, build)
    )
    trainer = Trainer(
        objective,
        decoder,
        optimizer,
        config.clip_norm,
        engine,
        world,
        workspace.folder,
        workspace.progress,
        peak=peak,
        start=start,
        evaluate=make_evaluator(decoder) if make_evaluator else None,
        stopping=stopping,
        check=check,
    )
    implementation = implementation_of(optimizer.optimizer)
    trained = TrainedModel(decoder, objective, compiled, implementation, last_step=0)
    return trained, trainer
