"""Helpers: a start model, prepared data and fine-tuning runs of toy size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stamm.align.training import job, reference_job
from stamm.align.training.config import (
    SFT,
    FineTuneJobConfig,
    FineTuneRun,
    Loss,
    Preference,
    ReferenceConfig,
    needs_reference,
    preference_loss,
)
from stamm.base.files import read_json
from stamm.engine.config import EngineConfig
from stamm.models.config import DecoderConfig, PlainFFN
from stamm.models.decoder import Decoder, build_decoder
from stamm.models.serialization import load_decoder, save_decoder
from stamm.optim.config import AdamW
from stamm.optim.schedules import BatchStage, ConstantRate
from stamm.runs.executors import LocalExecutor
from stamm.runs.job import Workspace
from stamm.runs.metrics import read_metrics
from tests.unit.align.prepared import prepare
from tests.unit.chat.conversations import TOKENIZER

CONTEXT = 96
MODEL = DecoderConfig(
    vocab_size=TOKENIZER.size,
    d_model=32,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    ffn=PlainFFN(width=48),
    max_context=CONTEXT,
    init_std=0.1,
)
PROMPTS = ["2+2?", "2+3?", "Bern?", "Name a colour.", "Hello.", "Why?", "Say yes.", "Count to two."]
GOOD = ["4", "5", "A city.", "Red.", "Hello!", "Because.", "Yes.", "One, two."]
BAD = ["I do not know.", "No.", "Blue", "Stop it.", "Bye.", "Never ask.", "No!", "Three."]


def chats() -> list[dict[str, Any]]:
    """Conversations of one turn."""
    return [{"prompt": p, "completion": c} for p, c in zip(PROMPTS, GOOD, strict=True)]


def pairs() -> list[dict[str, Any]]:
    """Preference pairs with rewards and reference rewards."""
    return [
        {
            "prompt": prompt,
            "chosen": good,
            "rejected": bad,
            "chosen_reward": 1.0 + number / 10,
            "rejected_reward": -1.0,
            "ref_rewards": [-2.0, 0.0, 0.5, 1.05],
        }
        for number, (prompt, good, bad) in enumerate(zip(PROMPTS, GOOD, BAD, strict=True))
    ]


def rated() -> list[dict[str, Any]]:
    """The same answers one by one."""
    keys = (("chosen", "chosen_reward"), ("rejected", "rejected_reward"))
    return [
        {
            "prompt": row["prompt"],
            "completion": row[answer],
            "reward": row[reward],
            "ref_rewards": row["ref_rewards"],
        }
        for row in pairs()
        for answer, reward in keys
    ]


def start_model(folder: Path, seed: int = 5) -> Path:
    """A stored decoder."""
    save_decoder(build_decoder(MODEL, seed), folder)
    return folder


def workspace(folder: Path, inputs: dict[str, Path]) -> Workspace:
    """A workspace whose shards run in this process."""
    return Workspace(folder=folder, inputs=inputs, execution=LocalExecutor(workers=1))


def fine_tune(
    folder: Path, rows: list[dict[str, Any]], loss: Loss | None = None, **changes: Any
) -> Path:
    """Prepare `rows`, compute what the loss needs and train; the arm's folder.

    Edge   what is in the folder already is used
    """
    loss = SFT() if loss is None else loss
    inputs = {"tokenizer": folder / "tokenizer"}
    if not (folder / "start").is_dir():
        start_model(folder / "start")
    inputs["start"] = folder / "start"
    if not (folder / "prepared").is_dir():
        prepare(folder, rows, context=CONTEXT)
    inputs["data"] = folder / "prepared"
    if needs_reference(loss) and isinstance(loss, Preference):
        inputs["reference"] = folder / "reference"
        inputs["reference"].mkdir(exist_ok=True)
        settings = ReferenceConfig(
            mismatched=preference_loss(loss).NEEDS_MISMATCHED, answers_per_shard=5
        )
        reference_job.run(settings, workspace(inputs["reference"], inputs))
    arm = folder / "arms" / "tuned"
    arm.mkdir(parents=True, exist_ok=True)
    job.run(config(loss, **changes), Workspace(folder=arm, inputs=inputs))
    return arm


def config(loss: Loss, **changes: Any) -> FineTuneJobConfig:
    """Settings that learn eight examples in a few steps."""
    settings: dict[str, Any] = {
        "loss": loss,
        "context": CONTEXT,
        "batch": (BatchStage(size=2),),
        "epochs": 4.0,
        "optimizer": AdamW(weight_decay=0.0),
        "schedule": ConstantRate(peak=3e-3),
        "engine": EngineConfig(threads=1, compile="off", checkpoint_every=3),
    }
    return FineTuneJobConfig(**{**settings, **changes})


def metrics(arm: Path) -> list[dict[str, Any]]:
    """Metrics of a run by step."""
    return read_metrics(arm / "metrics.jsonl")


def trained(arm: Path) -> Decoder:
    """The model of a run."""
    return load_decoder(arm / "model")


def manifest(arm: Path) -> dict[str, Any]:
    """manifest.json of a run."""
    found: dict[str, Any] = read_json(arm / "manifest.json")
    return found


def run_config(loss: Loss, **changes: Any) -> FineTuneRun:
    """The same as the job has them, with the model."""
    return FineTuneRun.of(config(loss, **changes), model=MODEL)
