"""Pretrain one decoder on a packed corpus, or on token files in Megatron's format; resume if interrupted.

Reads    pack (a packed corpus) and tokenizer (only recorded); or foreign.0, foreign.1, .. (token
         files without .bin and .idx) and tokenizer (the one that they were tokenized with); tuned,
         where the configuration names an entry of it (results of the learning-rate finder); forget
         and source (config.json of an arm), where it trains without some documents
Writes   what `pretrain.training_run` writes
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from stamm.base.config import to_plain
from stamm.base.console import Progress
from stamm.base.errors import ConfigError
from stamm.base.schema import read_record
from stamm.base.units import bytes_text
from stamm.corpus.megatron_dataset import MegatronTokens
from stamm.corpus.packed_dataset import PackedSplit
from stamm.corpus.shuffle import Proof, StoredTokens, TokenStream, WindowOrder
from stamm.engine.background_check import BackgroundCheck
from stamm.engine.checkpoint_files import branch_from
from stamm.engine.distributed import DistributedContext
from stamm.engine.estimate import DEVICES, Devices
from stamm.engine.peak_flops import device_name
from stamm.engine.trainer import InitialCheckpoint
from stamm.losses.config import Goldfish
from stamm.losses.goldfish import coverage
from stamm.pretrain.config import PretrainConfig
from stamm.pretrain.dataset import SequenceSampler
from stamm.pretrain.forget.config import ForgetConfig
from stamm.pretrain.forget.records import FORGET, ForgetFile
from stamm.pretrain.forget.sequences import RemainingSequences, read_spans
from stamm.pretrain.lr_finder import apply_tuning
from stamm.pretrain.plan import plan
from stamm.pretrain.plan_warnings import RARE_STEPS, rare_gradients
from stamm.pretrain.train import load_objective
from stamm.pretrain.training_run import (
    TrainingData,
    TrainingKind,
    recorded_kernels,
    train_run,
)
from stamm.runs.job import Workspace

READ_FIRST = 30 * 10**9
"""Bytes per process up to which a packed corpus is verified before the first step: half a minute at
1 GB/s. SHA-256 took 0.71 s a GB of one core with its instructions (Intel Xeon, OpenSSL)."""
COVERAGE_TOKENS = 20_000_000  # a sample of this many tokens gives the rate to 4 digits


def run(config: PretrainConfig, workspace: Workspace) -> None:
    """Train `config.model` on its tokens, from the newest checkpoint when there is one."""
    branch = None
    if isinstance(config, ForgetConfig):
        record = read_record(ForgetFile, workspace.inputs["forget"] / FORGET)
        branch = RunBranch(source=workspace.inputs["source"].parent, step=record.checkpoint)
    else:
        config = apply_tuning(config, workspace.inputs)
    train(config, workspace, branch)


@dataclass(frozen=True, kw_only=True)
class RunBranch:
    """Training that continues another run to the same bits.

    source   folder of its arm
    step     of the checkpoint to resume from; 0: from the beginning
    until    step to stop at; None: the last
    """

    source: Path
    step: int
    until: int | None = None


def train(config: PretrainConfig, workspace: Workspace, branch: RunBranch | None = None) -> None:
    """Train `config.model` from the newest checkpoint in the folder, from that of `branch`, or from the beginning."""
    stream = open_stream(config, workspace.inputs)
    _check_vocabulary(config, stream)

    def open_data(world: DistributedContext) -> TrainingData:
        if branch is not None and world.is_main_process:
            branch_from(branch.source, branch.step, workspace.folder)
        windows = _sequences(config, stream, workspace.inputs)
        if world.is_main_process:
            for line in plan_lines(config, windows.per_epoch, _devices(world)):
                workspace.progress.log(line)
        proof, check = _verified(stream, world, workspace.progress)
        return TrainingData(
            name="pack" if config.foreign is None else "foreign",
            sequences=windows,
            proof=proof,
            goldfish=lambda: windows_coverage(config.goldfish, windows),
            check=check,
        )

    kind = TrainingKind(
        name="pretrain",
        open_data=open_data,
        make_objective=load_objective(config.objective),
        start=_start(config, workspace.inputs),
        kernels=recorded_kernels(branch.source) if branch else None,
        until=branch.until if branch else None,
    )
    train_run(config, workspace, kind)


def _sequences(
    config: PretrainConfig, stream: TokenStream, inputs: Mapping[str, Path]
) -> SequenceSampler:
    """The sequences of the run, without the documents that it forgets."""
    given = stream, config.context, config.seed, config.goldfish, config.masks
    if not isinstance(config, ForgetConfig):
        return SequenceSampler(*given)
    per_epoch = WindowOrder(stream.stages, config.context, config.seed).count
    return RemainingSequences(
        *given,
        spans=read_spans(inputs["forget"]),
        rule=config.rule,
        first=config.first_sequence,
        total=config.total_sequences(per_epoch),
    )


def plan_lines(config: PretrainConfig, per_epoch: int, devices: Devices | None) -> list[str]:
    """The warnings of `stamm plan` for this run, a line each; every run reports rare gradients itself."""
    facts = plan(config, devices, per_epoch)
    rare = rare_gradients(config.optimizer, min(facts["steps"], RARE_STEPS))
    shown = [warning for warning in facts["warnings"] if warning["what"] != rare]
    return [f"Warning: {warning['what']}. {warning['fix']}." for warning in shown]


def _devices(world: DistributedContext) -> Devices | None:
    """The devices that train, where they are known GPUs."""
    if world.device.type != "cuda":
        return None
    name = device_name(world.device).replace(" ", "")
    known = [key for key in DEVICES if key in name]
    return Devices(world.size, max(known, key=len)) if known else None


def _start(config: PretrainConfig, inputs: Mapping[str, Path]) -> InitialCheckpoint | None:
    """The checkpoint that `config.begin` names; None: random weights."""
    if config.begin is None:
        return None
    if "begin" not in inputs:
        raise ConfigError(
            f"begin.checkpoint = {config.begin.checkpoint} is not among the inputs of this run",
            fix="Use a recipe that trains from a checkpoint, or set begin=none",
        )
    return InitialCheckpoint(inputs["begin"], optimizer_state=config.begin.moments == "keep")


def _verified(
    stream: StoredTokens, world: DistributedContext, progress: Progress
) -> tuple[Proof, BackgroundCheck | None]:
    """Checks of every byte of the tokens; each process reads its part of the files, for all processes.

    A large packed corpus, whose manifest has all hashes, is read during the first steps: the check that
    has begun. Megatron files are identified by what is read in them, so that training waits.
    """
    files = range(world.rank, stream.num_files, world.size)
    if isinstance(stream, PackedSplit) and stream.num_bytes > READ_FIRST * world.size:
        size = bytes_text(stream.num_bytes)
        progress.log(
            f"The packed corpus, {size}, is verified during the first steps; the first checkpoint waits for it."
        )
        passed = partial(progress.log, f"The packed corpus, {size}, is verified.")
        check = BackgroundCheck(partial(stream.examine, files), world, passed)
        return stream.proof({}), check
    mine = stream.examine(files)
    seen = {n: examined for part in world.all_gather_object(mine) for n, examined in part.items()}
    return stream.proof(seen), None


def open_stream(config: PretrainConfig, inputs: Mapping[str, Path]) -> StoredTokens:
    """The token stream of a run: its packed corpus, or the Megatron files of its configuration."""
    if config.foreign is None:
        return PackedSplit.open(inputs["pack"], "train", examined=True)
    paths = [inputs[f"foreign.{i}"] for i in range(len(config.foreign.prefixes))]
    return MegatronTokens.open(paths, inputs["tokenizer"], config.foreign.end_token)


def _check_vocabulary(config: PretrainConfig, stream: TokenStream) -> None:
    if stream.vocabulary > config.model.vocab_size:
        also = "" if config.foreign else f" or tokenizer.vocab_size={config.model.vocab_size}"
        raise ConfigError(
            f"model.vocab_size = {config.model.vocab_size} is smaller than the tokenizer's "
            f"{stream.vocabulary}",
            fix=f"Set model.vocab_size={stream.vocabulary}{also}",
        )


def windows_coverage(goldfish: Goldfish | None, windows: SequenceSampler) -> dict[str, Any] | None:
    """Statistics of the Goldfish mask on the packed text, in corpus order; None without a mask."""
    if goldfish is None:
        return None
    measured = coverage(goldfish, windows.label_runs(COVERAGE_TOKENS))
    return {**to_plain(goldfish), **dataclasses.asdict(measured)}
