"""From a configuration to a trained decoder: what is built, laid over the processes, and trained.

A decoder whose structured matrices are guided by dense ones (`SelfGuide`) is trained in two parts:
when the guides have nothing left to say, they and their moments are left behind at a checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass

from stamm.engine.checkpoint import checkpoint_steps
from stamm.engine.distributed import World
from stamm.engine.float8 import use_float8
from stamm.engine.parallel import fill, shard, spread
from stamm.engine.peak_flops import peak_flops
from stamm.engine.sharded_optimizer import Updater
from stamm.engine.trainer import Beginning, Training, compile_layers
from stamm.models.config import Dense
from stamm.models.decoder import Decoder, build_blank, build_decoder
from stamm.models.self_guide import guided_steps
from stamm.optim.build import build_optimizer, implementation_of
from stamm.pretrain.config import PretrainConfig
from stamm.pretrain.dataset import Windows
from stamm.pretrain.next_token import NextToken
from stamm.runs.job import Workspace


@dataclass(frozen=True)
class Trained:
    """A decoder at the end of its run, still laid over the processes.

    compiled    whether its layers were
    optimizer   how its update is computed
    """

    decoder: Decoder
    task: NextToken
    compiled: bool
    optimizer: str


def fit(config: PretrainConfig, workspace: Workspace, world: World, windows: Windows) -> Trained:
    """Train from the newest checkpoint, or from the beginning, to the end.

    Raises   what `Training.run` raises, and ConfigError for a division that does not fit
    """
    num_steps = config.batches(config.total_sequences(windows.per_epoch)).num_steps
    guided = guided_steps(config.model.structured.guide, num_steps)
    peak = peak_flops(config.engine, world.device)
    there = checkpoint_steps(workspace.folder / "checkpoints")
    reached: int = world.of_leader(max(there, default=0))
    workspace.progress.begin(f"train {config.model.ffn.activation}", num_steps, "steps")
    while True:
        begins, ends = (0, guided) if reached < guided else (guided, num_steps)
        trained, training = _build(config, workspace, world, windows, peak, guides=begins < guided)
        # A checkpoint that turns out to be damaged may lead back into the first part.
        reached = training.run(first=begins, until=ends)
        if reached == num_steps:
            return trained


def _build(
    config: PretrainConfig,
    workspace: Workspace,
    world: World,
    windows: Windows,
    peak: float,
    *,
    guides: bool,
) -> tuple[Trained, Training]:
    engine = config.engine
    # Many processes hold a model that none of them could; guides are made of whole matrices.
    blank = world.mesh is not None and isinstance(config.model.ffn.linear, Dense)
    decoder = build_blank(config.model) if blank else build_decoder(config.model, config.seed)
    if guides:
        decoder.add_guides()
    if not blank:
        decoder.to(world.device)
    use_float8(decoder, engine, config.context, world.device)
    spread(decoder, world, engine)
    task = NextToken(config, decoder, windows, world)
    compiled = compile_layers(decoder.model.layers, engine, workspace.progress)
    shard(decoder, world, engine)
    if blank:
        fill(decoder, config.seed, world.device)
    updater = Updater(
        decoder, lambda piece: build_optimizer(config.optimizer, decoder, task.num_steps, piece)
    )
    training = Training(
        task,
        decoder,
        updater,
        config.clip_norm,
        engine,
        world,
        workspace.folder,
        workspace.progress,
        peak=peak,
        begin=_beginning(config, workspace),
    )
    return Trained(decoder, task, compiled, implementation_of(updater.optimizer)), training


def _beginning(config: PretrainConfig, workspace: Workspace) -> Beginning | None:
    if config.begin is None:
        return None
    return Beginning(workspace.inputs["begin"], keep_moments=config.begin.moments == "keep")
