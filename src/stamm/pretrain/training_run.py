"""One training run of a decoder, whatever it is trained on: the files of an arm, and how it resumes.

Writes   config.json, manifest.json, metrics.jsonl, checkpoints/, model/ (the trained decoder),
         summary.json (steps, tokens, loss; reproducible), log/ (throughput and wall clock)
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import resource
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stamm.base.config import to_plain
from stamm.base.errors import ConfigError, DataError
from stamm.base.files import read_json, sha256_file, sha256_value
from stamm.base.schema import write_record
from stamm.base.torch_private import untested_torch
from stamm.base.user_code import load_reference, source_file
from stamm.corpus.megatron_dataset import tokenizer_file
from stamm.corpus.shuffle import Proof
from stamm.engine.background_check import BackgroundCheck
from stamm.engine.cpu_allocator import caching_allocator
from stamm.engine.distributed import (
    DistributedContext,
    destroy_process_group,
    init_distributed,
    report_lost_peers,
    select_device,
)
from stamm.engine.events import NONFINITE, Events, read_events
from stamm.engine.out_of_memory import out_of_memory_explained
from stamm.engine.parallel import full_state_dict
from stamm.engine.peak_flops import device_name
from stamm.engine.portable_bits import arithmetic, check_portable
from stamm.engine.trainer import EarlyStopping, InitialCheckpoint
from stamm.engine.trainer_setup import TrainedModel
from stamm.models.config import DecoderConfig
from stamm.models.determinism import set_determinism
from stamm.models.flops import count_parameters, guide_flops, training_flops
from stamm.models.guide_draws import guide_uses
from stamm.models.lora import lora_sizes
from stamm.models.serialization import describe_decoder, save_weights
from stamm.pretrain.config import DecoderTrainingConfig
from stamm.pretrain.dataset import TrainingSequences
from stamm.pretrain.kernel_choice import (
    Choices,
    activation_backend,
    choices_of_run,
    chosen_kernels,
    prepare_kernels,
)
from stamm.pretrain.next_token import LOSS
from stamm.pretrain.plan_warnings import RARE_STEPS, rare_gradients
from stamm.pretrain.records import TimingFile, TrainingSummary
from stamm.pretrain.sequence_objective import steps_before
from stamm.pretrain.train import MakeObjective, MakeValidation, train_decoder
from stamm.runs.job import Workspace
from stamm.runs.manifest import MANIFEST_FIX, new_manifest
from stamm.runs.metrics import read_metrics
from stamm.runs.model_outputs import read_change, weights_sha256, write_change
from stamm.runs.records import ConfigFile, ManifestFile
from stamm.runs.tracking import tracking

EVALUATION = "speed/evaluation_seconds"
_USER_CODE = ("loss", "objective", "optimizer")


@dataclass(frozen=True, kw_only=True)
class TrainingData:
    """Data of a training run.

    name        key of the manifest under which its identity is recorded: "pack", "data"
    proof       identity of every byte that is read
    goldfish    statistics of the Goldfish mask for summary.json; None without one
    check       the check of what `open_data` has not read; None: it has read every byte
    """

    name: str
    sequences: TrainingSequences[Any]
    proof: Proof
    goldfish: Callable[[], Mapping[str, Any] | None] = lambda: None
    check: BackgroundCheck | None = None


def save_trained(config: DecoderConfig, weights: dict[str, Tensor], folder: Path) -> None:
    """Store a trained decoder from its weights by name, not divided over processes."""
    save_weights(config, weights.__getitem__, folder)


def _carry_change(start: InitialCheckpoint | None, model: Path, tokens: int) -> None:
    """The record of how the model that training began with was changed, beside the trained one."""
    change = None if start is None else read_change(start.path)
    if change is not None:
        trained = change.trained_tokens + tokens
        write_change(
            model, replace(change, model_sha256=weights_sha256(model), trained_tokens=trained)
        )


@dataclass(frozen=True, kw_only=True)
class TrainingKind:
    """Differences between kinds of training runs.

    name             of the job: "pretrain", "finetune"
    open_data        opens the data and checks every byte, or starts to; called on every process
    start            weights to start from; None: random weights
    validation       a further evaluation during training; None: none
    stopping         early stopping; None: none
    save             writes the trained model: its configuration, its weights by name, its folder
    kernels          of a run that this one continues to the same bits; None: chosen here
    until            the step to stop at; None: the last
    """

    name: str
    open_data: Callable[[DistributedContext], TrainingData]
    make_objective: MakeObjective
    start: InitialCheckpoint | None = None
    validation: MakeValidation | None = None
    stopping: EarlyStopping | None = None
    save: Callable[[DecoderConfig, dict[str, Tensor], Path], None] = save_trained
    kernels: Choices | None = None
    until: int | None = None


FLOAT32_FLOPS = 2.4e17
"""Work above which float32 on a GPU must be asked for: an hour of an H100's 67 TFLOP/s in float32."""


def check_precision(config: DecoderTrainingConfig, device_type: str, sequences: int) -> None:
    """Refuse long training in float32 on a GPU that was not asked for by engine.device=cuda.

    Raises   ConfigError
    """
    engine = config.engine
    if device_type != "cuda" or engine.precision != "float32" or engine.device != "auto":
        return
    work = sequences * training_flops(config.model, config.context)
    if work > FLOAT32_FLOPS:
        raise ConfigError(
            f'engine.precision = "float32" on a GPU, for {work:.1e} FLOP: bfloat16 is many times faster',
            fix="Set engine.precision=bfloat16, or engine.device=cuda to train in float32 all the same",
        )


@report_lost_peers()
def train_run(config: DecoderTrainingConfig, workspace: Workspace, kind: TrainingKind) -> None:
    """Train `config.model` from the newest checkpoint when there is one, and write the files of an arm.

    Raises   what `pretrain.train.train_decoder` raises; DataError when the run was started with other
             data or other code of the user's
    """
    set_determinism(config.engine.threads)
    device = select_device(config.engine.device)
    with caching_allocator() if device.type == "cpu" else contextlib.nullcontext("") as missing:
        if missing:
            workspace.progress.log(f"Memory may exceed the plan's by two thirds: {missing}.")
        _train(config, workspace, kind, device)


def _train(
    config: DecoderTrainingConfig, workspace: Workspace, kind: TrainingKind, device: torch.device
) -> None:
    folder, progress = workspace.folder, workspace.progress
    short = config.engine.precision != "float32"
    world = init_distributed(config.engine.parallel, device, collectives=short)
    plain = to_plain(dataclasses.replace(config, trackers=()))
    world.assert_same_on_all_ranks("the configuration", sha256_value(plain))
    data = kind.open_data(world)
    proof, sequences = data.proof, data.sequences
    check_precision(config, device.type, config.total_sequences(sequences.per_epoch))
    if warning := untested_torch(torch.__version__):
        progress.log(f"{warning}.")
    if proof.remark:
        progress.log(f"{proof.remark}.")
    if rare := rare_gradients(config.optimizer, RARE_STEPS):
        progress.log(f"{rare}.")
    world.assert_same_on_all_ranks("the data", proof.sha256)
    facts: dict[str, Any] = {}
    if config.engine.portable_bits:
        check_portable(device, world.size)
        facts = {"arithmetic": arithmetic(config.model)}
        progress.log(
            f"Portable bits: AVX2 and own products; arithmetic {facts['arithmetic'][:12]}."
        )
    choices: Choices = {}
    if device.type == "cpu":
        choices = world.broadcast_object(
            _choices(config, sequences.per_epoch, world, folder, kind.kernels)
            if world.is_main_process
            else None
        )
        slower = [name for name, chosen in choices.items() if chosen == "torch"]
        if slower and config.engine.kernels == "auto":
            progress.log(f"Computed by torch, measured to be faster here: {', '.join(slower)}.")
        if missing := prepare_kernels(config, choices):
            progress.log(
                f"Attention is computed by torch, with other bits and more memory: {missing}."
            )
    if not isinstance(config.model.ffn.activation, str):  # the user's own
        progress.log(activation_backend(config, choices, device))
    if world.is_main_process:
        described = {"kind": kind.name, "config": plain}
        write_record(folder / "config.json", ConfigFile, described)
        _note_manifest(config, workspace, kind, data, choices, facts)
    trackers = config.trackers if world.is_main_process else ()
    name = f"{folder.parents[1].name}/{folder.name}"
    with (
        _events_noted(folder, world),
        tracking(trackers, folder, name, progress, {"seed": config.seed}),
        out_of_memory_explained(),
        chosen_kernels(config, choices) as chosen,
    ):
        trained = train_decoder(
            chosen,
            workspace,
            world,
            sequences,
            kind.make_objective,
            kind.start,
            kind.validation,
            kind.stopping,
            data.check,
            kind.until,
        )
    weights = full_state_dict(trained.decoder, world)
    devices = Counter(world.all_gather_object(device_name(world.device)))
    if world.is_main_process:
        progress.end(_outcome(folder, trained.objective.primary_metric))
        kind.save(config.model, weights, folder / "model")
        summary = _summary(config, data, trained, folder)
        _carry_change(kind.start, folder / "model", int(summary["trained_tokens"]))
        write_record(folder / "summary.json", TrainingSummary, summary)
        timing = _timing(config, folder, trained, world, devices)
        spent = timing["evaluation_seconds"] / max(timing["seconds"], 1e-9)
        if config.evaluate is not None and spent > config.evaluate.share:
            progress.log(f"Evaluation took {spent:.1%} of the training time; raise evaluate.every.")
        write_record(folder / "log" / "timing.json", TimingFile, timing)
    world.broadcast_object(None)  # the other processes wait until all is written
    if world.size == 1:
        destroy_process_group()


def _choices(
    config: DecoderTrainingConfig,
    per_epoch: int,
    world: DistributedContext,
    folder: Path,
    given: Choices | None = None,
) -> Choices:
    """The kernels recorded when the run started, those `given` for a new one, or new choices."""
    if (folder / "manifest.json").exists():
        return recorded_kernels(folder)
    return (
        choices_of_run(config, config.total_sequences(per_epoch), world) if given is None else given
    )


def recorded_kernels(folder: Path) -> Choices:
    """The kernels that the manifest of the arm in `folder` records."""
    manifest = read_json(folder / "manifest.json", MANIFEST_FIX)
    held = manifest.get("kernels", {}) if isinstance(manifest, dict) else {}
    return dict(held) if isinstance(held, dict) else {}


def _note_manifest(
    config: DecoderTrainingConfig,
    workspace: Workspace,
    kind: TrainingKind,
    data: TrainingData,
    choices: Choices,
    facts: Mapping[str, str],
) -> None:
    """Write the manifest, with `facts`, or check that a run resumes with the same data, user code and facts.

    Raises   DataError when they differ
    """
    path = workspace.folder / "manifest.json"
    proof = data.proof
    code = _user_code(config)
    if path.exists():
        expected = {data.name: proof.sha256}
        expected |= {name: code.get(name, {}).get("sha256", "") for name in _USER_CODE}
        for name, sha256 in expected.items():
            begun = _recorded_hash(path, name)
            if begun != sha256:
                what = f"the code of the {name} is" if name in _USER_CODE else "the data are"
                raise DataError(
                    f"{what} not the same as when {workspace.folder} was started: sha256 {sha256}, "
                    f"not {begun}",
                    fix="Restore it, or train in another folder with --out",
                )
        if facts and read_json(path, MANIFEST_FIX).get("arithmetic") != facts["arithmetic"]:
            raise DataError(
                f"engine.portable_bits: {workspace.folder} was started where kernels, libraries or the compiler give"
                " other bits",
                fix="Use the versions in manifest.json, or train in another folder with --out",
            )
        return
    inputs: dict[str, dict[str, Any]] = {
        name: {"path": os.path.relpath(folder, workspace.folder)}
        for name, folder in sorted(workspace.inputs.items())
    }
    inputs[data.name] = {**inputs.get(data.name, {}), "sha256": proof.sha256, **proof.facts}
    inputs |= code
    if "tokenizer" in inputs:
        file = tokenizer_file(workspace.inputs["tokenizer"])
        inputs["tokenizer"]["sha256"] = sha256_file(file)
    manifest = new_manifest(
        kind=kind.name,
        seed=config.seed,
        threads=config.engine.threads,
        activation=describe_decoder(config.model)["activation"],
        kernels=choices,
        inputs=inputs,
        **facts,
    )
    write_record(path, ManifestFile, manifest)


@contextlib.contextmanager
def _events_noted(folder: Path, world: DistributedContext) -> Iterator[None]:
    """Record events in the manifest however training ends; after a kill, the resumed run records them."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError, DataError):  # the first error is reported
            _note_events(folder, world)
        raise
    _note_events(folder, world)


def _note_events(folder: Path, world: DistributedContext) -> None:
    if not world.is_main_process:
        return
    events = read_events(folder / "events.json")
    manifest = read_json(folder / "manifest.json", MANIFEST_FIX)
    if manifest.get("events", []) != events:
        write_record(folder / "manifest.json", ManifestFile, {**manifest, "events": events})


def _recorded_hash(manifest: Path, name: str) -> str:
    try:
        return str(read_json(manifest, MANIFEST_FIX)["inputs"][name]["sha256"])
    except (KeyError, TypeError):
        return "" if name in _USER_CODE else "unknown"


def _user_code(config: DecoderTrainingConfig) -> dict[str, dict[str, str]]:
    """The user's code that training calls, each with the hash of its source file; {} for built-in code."""
    return {
        name: {
            "path": reference,
            "sha256": sha256_file(source_file(reference, load_reference(reference, None, name))),
        }
        for name, reference in config.user_code().items()
    }


def _summary(
    config: DecoderTrainingConfig, data: TrainingData, trained: TrainedModel, folder: Path
) -> dict[str, Any]:
    primary_metric = trained.objective.primary_metric
    per_sequence = training_flops(config.model, config.context, **lora_sizes(trained.decoder))
    steps = [line for line in read_metrics(folder / "metrics.jsonl") if line["step"]]
    per_epoch = data.sequences.per_epoch
    total = config.total_sequences(per_epoch)
    plan = config.batches(total)
    spans = [plan.step(line["step"] - 1) for line in steps]
    sequences = sum(span.size for span in spans)
    tokens = sum(int(line["train/tokens"]) for line in steps)
    guided = sum(
        int(line["train/tokens"])
        * guide_uses(config.model, line["step"], plan.num_steps, config.seed)
        for line in steps
    )
    tail = [line[LOSS] for line in steps[-max(len(steps) // 20, 1) :] if LOSS in line]
    return {
        "parameters": count_parameters(config.model).total,
        "trainable_parameters": sum(
            parameter.numel()
            for parameter in trained.decoder.parameters()
            if parameter.requires_grad
        ),
        "steps": trained.last_step,
        **({} if trained.best_step is None else {"best_step": trained.best_step}),
        "trained_sequences": sequences,
        "trained_tokens": tokens,
        "learned_tokens": int(sum(line.get("train/kept_tokens", 0) for line in steps)),
        "epochs": sequences / per_epoch,
        "final_loss_nats": statistics.fmean(tail) if tail and primary_metric == LOSS else None,
        "flops": (per_sequence * tokens + guide_flops(config.model, config.context) * guided)
        // config.context,
        "decay_start_step": steps_before(plan, config.schedule.decay_start(total)),
        "events": read_events(folder / "events.json"),
        "goldfish": data.goldfish(),
    }


def _timing(
    config: DecoderTrainingConfig,
    folder: Path,
    trained: TrainedModel,
    world: DistributedContext,
    devices: Mapping[str, int],
) -> dict[str, Any]:
    """Throughput, and the devices that computed.

    devices   number of processes on each kind of device, by its name
    """
    lines = read_metrics(folder / "log" / "speed.jsonl")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "compiled": trained.compiled,
        "optimizer": trained.optimizer,
        "threads": torch.get_num_threads(),
        "device": str(world.device),
        "devices": dict(sorted(devices.items())),
        "precision": config.engine.precision,
        "processes": {"data": world.data, "context": world.context, "tensor": world.tensor},
        "tokens_per_s_median": _median(lines, "speed/tokens_per_s"),
        "mfu_median": _median(lines, "speed/mfu"),
        "seconds": round(sum(line["speed/seconds"] for line in lines), 2),
        "evaluation_seconds": round(sum(line.get(EVALUATION, 0.0) for line in lines), 3),
        "peak_gib": round(peak / 2**30, 3),
    }


def _median(lines: list[dict[str, Any]], key: str) -> float | None:
    values = [line[key] for line in lines if key in line]
    return statistics.median(values) if values else None


def _outcome(folder: Path, primary_metric: str) -> str:
    """Last line of the progress: the mean loss of the last 5 % of the steps, skipped updates, skipped steps."""
    lines = [line for line in read_metrics(folder / "metrics.jsonl") if line["step"]]
    if not lines:
        return "no update was made: every loss was non-finite"
    events = Events(folder / "events.json", writes=False)
    left_out = sum(event["event"] == NONFINITE for event in events.all)
    passed = len(events.skipped_steps())
    last = [line[primary_metric] for line in lines[-max(len(lines) // 20, 1) :]]
    said = [f"loss {statistics.fmean(last):.3f}"]
    said += [f"skipped updates: {left_out:,}"] if left_out else []
    said += [f"skipped steps: {passed:,}"] if passed else []
    return ", ".join(said)
