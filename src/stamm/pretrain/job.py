"""Pretrain one decoder on a packed corpus, or on token files of others.

Reads    pack (a packed corpus) and tokenizer (only recorded); or foreign.0, foreign.1, .. (files of
         others, without their endings) and tokenizer (the one they were made with)
Leaves   config.json, manifest.json, metrics.jsonl, checkpoints/, model/ (the trained decoder),
         summary.json (what was trained, all of it reproducible), log/ (speed and wall clock)
"""

from __future__ import annotations

import dataclasses
import os
import resource
import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stamm.activations.module import Activation, GatedActivation
from stamm.base.config import to_plain
from stamm.base.errors import ConfigError, DataError
from stamm.base.files import read_json, sha256_file, write_json
from stamm.corpus.foreign import ForeignTokens, tokenizer_file
from stamm.corpus.order import Proof, TokenStream
from stamm.corpus.pack import PackedSplit
from stamm.engine.loop import compile_layers, train
from stamm.losses.goldfish import Goldfish, coverage
from stamm.losses.language_model import nll_per_kept_token
from stamm.models.count import count_parameters, training_flops
from stamm.models.decoder import Decoder, build_decoder
from stamm.models.repeatable import settle
from stamm.models.stored import describe_decoder, save_decoder
from stamm.optim.build import build_optimizer
from stamm.pretrain.batches import Windows
from stamm.pretrain.config import PretrainConfig
from stamm.runs.job import Workspace
from stamm.runs.manifest import new_manifest
from stamm.runs.metrics import read_metrics

SCHEMA = 1
COVERAGE_TOKENS = 20_000_000  # a sample of this many tokens tells the rate to 4 digits


class NextToken:
    """The task of predicting the next token under a Goldfish mask (an `engine.loop.Task`)."""

    def __init__(self, config: PretrainConfig, decoder: Decoder, windows: Windows) -> None:
        self._config = config
        self._decoder = decoder
        self._windows = windows
        self.total_sequences = config.total_sequences(windows.per_epoch)
        self._plan = config.batches(self.total_sequences)
        self.num_steps = self._plan.num_steps
        self._kept = 0

    def losses(self, step: int) -> Iterator[Tensor]:
        """The losses of the step's micro-batches."""
        span = self._plan.step(step)
        batch = self._windows.batch(span.first, span.size)
        self._kept = int(batch.keep_BT.sum())
        micro = self._config.micro_batch or span.size
        for start in range(0, span.size, micro):
            part = slice(start, start + micro)
            hidden_BTD = self._decoder.model(batch.tokens_BT[part], batch.document_BT[part])
            yield nll_per_kept_token(
                hidden_BTD.flatten(0, 1),
                self._decoder.lm_head.weight,
                batch.target_BT[part].flatten(),
                batch.keep_BT[part].flatten(),
                kept=float(self._kept),
            )

    def learning_rate(self, step: int) -> float:
        """Learning rate of the step, by the sequences trained on when it ends."""
        span = self._plan.step(step)
        return self._config.schedule.rate(span.first + span.size, self.total_sequences)

    def facts(self, step: int) -> dict[str, float]:
        """Tokens so far, tokens of this step, how many were learned, and the shapes now and then."""
        span = self._plan.step(step)
        context = self._config.context
        facts: dict[str, float] = {
            "tokens": (span.first + span.size) * context,
            "train/tokens": span.size * context,
            "train/kept_tokens": self._kept,
        }
        every = self._config.record_shapes_every
        if (step + 1) % every == 0 or step + 1 == self.num_steps:
            facts.update(shapes(self._decoder))
        return facts


def shapes(decoder: Decoder) -> dict[str, float]:
    """Effective activation parameters by layer: {"shape/layers.0.alpha_p": 0.8, ...}."""
    found: dict[str, float] = {}
    for index, layer in enumerate(decoder.model.layers):
        activation = layer.get_submodule("mlp.act_fn")
        if isinstance(activation, (Activation, GatedActivation)):
            for name, value in activation.effective().items():
                found[f"shape/layers.{index}.{name}"] = value
    return found


def run(config: PretrainConfig, workspace: Workspace) -> None:
    """Train `config.model` on its tokens, from the newest checkpoint when there is one."""
    folder, progress = workspace.folder, workspace.progress
    stream = open_stream(config, workspace.inputs)
    _check_vocabulary(config, stream)
    proof = stream.verify()
    if proof.remark:
        progress.say(f"{proof.remark}.")
    settle(config.engine.threads)
    decoder = build_decoder(config.model, config.seed)
    windows = Windows(stream, config.context, config.seed, config.goldfish)
    task = NextToken(config, decoder, windows)
    write_json(
        folder / "config.json", {"schema": SCHEMA, "kind": "pretrain", "config": to_plain(config)}
    )
    _note_manifest(config, workspace, proof)
    optimizer = build_optimizer(config.optimizer, decoder, task.num_steps)
    progress.begin(f"train {config.model.ffn.activation}", task.num_steps, "steps")
    compiled = compile_layers(decoder.model.layers, config.engine, progress)
    train(task, decoder, optimizer, config.clip_norm, config.engine, folder, progress)
    progress.end(f"loss {_last_loss(folder):.3f}")
    save_decoder(decoder, folder / "model")
    write_json(folder / "summary.json", _summary(config, task, windows, folder))
    write_json(folder / "log" / "timing.json", _timing(folder, compiled))


def open_stream(config: PretrainConfig, inputs: Mapping[str, Path]) -> TokenStream:
    """What a run reads: its packed corpus, or the files of others that it names."""
    if config.foreign is None:
        return PackedSplit.open(inputs["pack"], "train")
    paths = [inputs[f"foreign.{i}"] for i in range(len(config.foreign.prefixes))]
    return ForeignTokens.open(paths, inputs["tokenizer"], config.foreign.end_token)


def _check_vocabulary(config: PretrainConfig, stream: TokenStream) -> None:
    if stream.vocabulary > config.model.vocab_size:
        also = "" if config.foreign else f" or tokenizer.vocab_size={config.model.vocab_size}"
        raise ConfigError(
            f"model.vocab_size = {config.model.vocab_size} is smaller than the tokenizer's "
            f"{stream.vocabulary}",
            fix=f"Set model.vocab_size={stream.vocabulary}{also}",
        )


def _note_manifest(config: PretrainConfig, workspace: Workspace, proof: Proof) -> None:
    """Write the manifest, or see that a run that was begun goes on with the same tokens.

    Raises   DataError when they are others.
    """
    path = workspace.folder / "manifest.json"
    kind = "pack" if config.foreign is None else "foreign"
    if path.exists():
        begun = _recorded_tokens(path, kind)
        if begun != proof.sha256:
            raise DataError(
                f"the tokens are not those that {workspace.folder} was begun with: sha256 "
                f"{proof.sha256}, not {begun}",
                fix="Put them back, or train in another folder with --out",
            )
        return
    inputs: dict[str, dict[str, Any]] = {
        name: {"path": os.path.relpath(place, workspace.folder)}
        for name, place in sorted(workspace.inputs.items())
    }
    inputs[kind] = {**inputs.get(kind, {}), "sha256": proof.sha256, **proof.facts}
    if "tokenizer" in inputs:
        file = tokenizer_file(workspace.inputs["tokenizer"])
        inputs["tokenizer"]["sha256"] = sha256_file(file)
    manifest = new_manifest(
        kind="pretrain",
        seed=config.seed,
        threads=config.engine.threads,
        activation=describe_decoder(config.model)["activation"],
        inputs=inputs,
    )
    write_json(path, manifest)


def _recorded_tokens(manifest: Path, kind: str) -> str:
    try:
        return str(read_json(manifest)["inputs"][kind]["sha256"])
    except (KeyError, TypeError):
        return "told"


def _summary(
    config: PretrainConfig, task: NextToken, windows: Windows, folder: Path
) -> dict[str, Any]:
    steps = read_metrics(folder / "metrics.jsonl")
    sequences = int(steps[-1]["tokens"]) // config.context
    tail = [line["train/loss_nats"] for line in steps[-max(len(steps) // 20, 1) :]]
    return {
        "schema": SCHEMA,
        "parameters": count_parameters(config.model).total,
        "steps": task.num_steps,
        "trained_sequences": sequences,
        "trained_tokens": sequences * config.context,
        "learned_tokens": int(sum(line["train/kept_tokens"] for line in steps)),
        "epochs": sequences / windows.per_epoch,
        "final_loss_nats": statistics.fmean(tail),
        "flops": sequences * training_flops(config.model, config.context),
        "decay_start_step": _decay_start_step(config, task),
        "goldfish": windows_coverage(config.goldfish, windows),
    }


def _decay_start_step(config: PretrainConfig, task: NextToken) -> int:
    start = config.schedule.decay_start(task.total_sequences)
    plan = config.batches(task.total_sequences)
    for step in range(plan.num_steps):
        span = plan.step(step)
        if span.first + span.size > start:
            return step
    return plan.num_steps


def windows_coverage(goldfish: Goldfish | None, windows: Windows) -> dict[str, Any] | None:
    """What the Goldfish mask does to the packed text, in the order in which it stands."""
    if goldfish is None:
        return None
    measured = coverage(goldfish, windows.label_runs(COVERAGE_TOKENS))
    return {**to_plain(goldfish), **dataclasses.asdict(measured)}


def _timing(folder: Path, compiled: bool) -> dict[str, Any]:
    lines = read_metrics(folder / "log" / "speed.jsonl")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "schema": SCHEMA,
        "compiled": compiled,
        "threads": torch.get_num_threads(),
        "tokens_per_s_median": statistics.median(line["speed/tokens_per_s"] for line in lines),
        "seconds": round(sum(line["speed/seconds"] for line in lines), 2),
        "peak_gib": round(peak / 2**30, 3),
    }


def _last_loss(folder: Path) -> float:
    return float(read_metrics(folder / "metrics.jsonl")[-1]["train/loss_nats"])
