"""Evaluation at intervals during training, on samples that cost a bounded share of it.

The evaluated model is a plain copy of the decoder, uncompiled and whole, in the main process; on a CPU
it shares the weights' memory, apart from matrices that adapters are merged into. Nothing of the
training changes: no random number is drawn.

The size of a sample follows from FLOPs and not from a clock, so that a resumed run evaluates the same
items at the same steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from stamm.base.console import NoProgress
from stamm.base.errors import ConfigError
from stamm.base.files import sha256_bytes
from stamm.base.schema import decode
from stamm.corpus.packed_dataset import PackedSplit
from stamm.engine.distributed import DistributedContext
from stamm.engine.parallel import full_state_dict
from stamm.engine.trainer import Evaluator
from stamm.evaluate.config import EvaluateConfig
from stamm.evaluate.file_task import ItemScorer
from stamm.evaluate.held_out import windows
from stamm.evaluate.items import TaskItem, read_items
from stamm.evaluate.records import ItemLine
from stamm.evaluate.task import TaskContext
from stamm.evaluate.task_file import GENERATED, TaskData, open_task
from stamm.models.decoder import Decoder
from stamm.models.generate import nats_of_sequences
from stamm.models.loading import OpenModel, with_tokenizer
from stamm.models.lora import merged_weights
from stamm.pretrain.config import HELD_OUT, DecoderTrainingConfig, PeriodicEvaluation
from stamm.runs.job import Workspace
from stamm.statistics.clustered_ratio import ClusteredRatio

TOKEN_COST = 1.0
"""Assumed cost of a scored token relative to a trained one: 1/3 in FLOPs, in small uncompiled batches."""
FEWEST = 8
"""Items or windows of a sample, below which its metric would be noise."""
_BATCH_TOKENS = 4096

Probe = Callable[[], tuple[str, ClusteredRatio]]


def make_evaluator(
    config: DecoderTrainingConfig,
    trained: Decoder,
    num_steps: int,
    workspace: Workspace,
    world: DistributedContext,
) -> Evaluator | None:
    """Evaluates `trained` after a step: metrics by name, {} on most steps; None where not configured.

    The names are "evaluate/TASK/METRIC" and "evaluate/TASK/standard_error". Every process calls it.

    Raises   ConfigError without held-out text, for a task that generates, and for an interval that
             leaves too small a sample; as `open_task`.
    """
    wanted = config.evaluate
    if wanted is None:
        return None
    with torch.random.fork_rng(devices=[]):
        decoder = Decoder(config.model).eval()
    dtype = torch.float32 if config.engine.precision == "float32" else torch.bfloat16
    model = with_tokenizer(decoder, _input(workspace, "tokenizer"))
    probes = _probes(config, wanted, model, workspace, world.size) if world.is_main_process else {}

    @torch.no_grad()
    def evaluate(step: int) -> dict[str, float]:
        if not step or (step % wanted.every and step != num_steps):
            return {}
        alone = world.size == 1
        weights: Mapping[str, Tensor] = (
            dict(trained.named_parameters()) if alone else full_state_dict(trained, world)
        )
        metrics: dict[str, float] = {}
        if world.is_main_process:
            if config.lora is not None:
                weights = merged_weights(weights, config.lora)
            decoder.to(world.device)
            for name, parameter in decoder.named_parameters():
                parameter.data = weights[name].detach().to(world.device, dtype)
            for task, probe in probes.items():
                metric, ratio = probe()
                metrics[f"evaluate/{task}/{metric}"] = ratio.value
                if ratio.standard_error is not None:
                    metrics[f"evaluate/{task}/standard_error"] = ratio.standard_error
        return metrics

    return evaluate


def sample_tokens(config: DecoderTrainingConfig, wanted: PeriodicEvaluation, processes: int) -> int:
    """Tokens of the sample of each task: together they cost `share` of the steps between evaluations."""
    trained = wanted.every * config.batch[0].size * config.context / processes
    return int(wanted.share * trained / TOKEN_COST / len(wanted.tasks))


def _probes(
    config: DecoderTrainingConfig,
    wanted: PeriodicEvaluation,
    model: OpenModel,
    workspace: Workspace,
    processes: int,
) -> dict[str, Probe]:
    limit = sample_tokens(config, wanted, processes)
    probes: dict[str, Probe] = {}
    for name in wanted.tasks:
        if name == HELD_OUT:
            pack = _input(workspace, "pack")
            size, there, probes[name] = _held_out(model, pack, config.context, limit)
        else:
            task = open_task(name, wanted.task_folder)
            size, there, probes[task.name] = _task(model, task, limit, workspace.folder)
        if there < FEWEST:
            raise ConfigError(
                f"{name} has {there} items, fewer than {FEWEST}; windows of held-out text have "
                f"{config.context} tokens",
                where="pretrain.evaluate.tasks",
                fix="Name a task with more items, hold out more text, or set a smaller context",
            )
        if size < FEWEST:
            raise ConfigError(
                f"{limit:,} tokens, {wanted.share:.1%} of {wanted.every} steps, hold {size} items of "
                f"{name}, fewer than {FEWEST}",
                where="pretrain.evaluate.every",
                fix=f"Set it to {wanted.every * 2 * FEWEST // max(size, 1)}, or name smaller tasks",
            )
    return probes


def _held_out(model: OpenModel, pack: Path, context: int, limit: int) -> tuple[int, int, Probe]:
    """Windows of held-out documents, by hash, as the task held_out reads them.

    Returns   the number in the sample, the number of all, and the evaluation
    """
    split = PackedSplit.open(pack, "held_out")
    documents = split.documents().select(["document_id", "start", "stop"]).to_pylist()
    by_rank = {
        _rank(f"{document['document_id']} {window.start}"): (document, window)
        for document in documents
        for window in windows(document["stop"] - document["start"], context, context // 2)
    }
    chosen = []
    for _, (document, window) in sorted(by_rank.items(), key=lambda pair: pair[0]):
        limit -= window.stop - window.start
        if limit < 0:
            break
        first, last = document["start"] + window.start, document["start"] + window.stop
        chosen.append((document["document_id"], window, split.read(first, last).tolist()))

    def probe() -> tuple[str, ClusteredRatio]:
        sequences = [tokens for _, _, tokens in chosen]
        ratio = ClusteredRatio()
        costs = nats_of_sequences(model.decoder, sequences, _BATCH_TOKENS)
        for (document, window, tokens), cost in zip(chosen, costs, strict=True):
            scored = window.scored - window.start
            size = len(model.tokenizer.decode(tokens[scored:]).encode())
            nats = float(cost[scored - 1 :].double().sum())
            ratio.add(nats / math.log(2), size, document)
        return "bits_per_byte", ratio

    return len(chosen), len(by_rank), probe


def _task(model: OpenModel, task: TaskData, limit: int, folder: Path) -> tuple[int, int, Probe]:
    """Items of a task from a file, by hash; the numbers that `_held_out` returns."""
    described = task.description
    if described.kind in GENERATED:
        raise ConfigError(
            f"task {task.name} generates text, which is too slow during training",
            where="pretrain.evaluate.tasks",
            fix="Evaluate it after the run: stamm evaluate RUN checkpoints=all",
        )
    settings = EvaluateConfig(batch_tokens=_BATCH_TOKENS)
    context = TaskContext(
        config=settings, pack=None, progress=NoProgress(), model=model, folder=folder
    )
    items = [item for item in read_items(task) if isinstance(item, TaskItem)]
    chosen = []
    for item in sorted(items, key=lambda item: _rank(str(item.line))):
        # The choices are scored twice: with the question and without.
        texts = (item.context, *(item.choices or (item.answer,)) * 2)
        limit -= sum(len(model.tokenizer.encode(text)) for text in texts)
        if limit < 0:
            break
        chosen.append(item)
    scorer = ItemScorer(described, context, {})

    def probe() -> tuple[str, ClusteredRatio]:
        ratio = ClusteredRatio()
        for plain in scorer.lines(chosen):
            line = decode(ItemLine, plain, task.name, "item")
            if not line.rejected:
                value = line.values[described.main_metric]
                ratio.add(value * line.weight, line.weight, line.cluster)
        return described.main_metric, ratio

    return len(chosen), len(items), probe


def _rank(key: str) -> str:
    return sha256_bytes(key.encode())


def _input(workspace: Workspace, name: str) -> Path:
    """An input folder of the run; the tokenizer of a run that names none is beside its packed corpus."""
    pack = workspace.inputs.get("pack")
    folder = workspace.inputs.get(name) or (pack and pack.resolve().parent / name)
    if folder is None:
        raise ConfigError(
            f"evaluation during training reads the {name} of the run, which has none",
            where="pretrain.evaluate",
            fix="Set pretrain.evaluate=none",
        )
    return folder
