"""Fine-tuning on conversations of two turns: the model answers first questions, in every format."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import save_file

from stamm.base.files import write_json
from stamm.cli.main import main
from stamm.models.config import DecoderConfig, GatedFFN
from stamm.models.decoder import build_decoder
from stamm.models.hub import HubSpecialIds, hub_config, hub_state
from tests.unit.align.prepared import write_rows
from tests.unit.chat.imported_folders import TEMPLATES, imported_folder

pytestmark = pytest.mark.slow

ANSWERS = [f"{first}{second}" for first in "bdfgklmn" for second in ("a", "e", "i", "o", "u")]
SETTINGS = (
    "train.batch.0.size=8", "train.schedule.peak=0.004", "train.optimizer=AdamW",
    "train.engine.compile=off", "train.engine.threads=1", "context=64", "evaluate=none", "audit=none",
    "export=none",
)  # fmt: skip


def hub_folder(folder: Path, template: str) -> Path:
    """A small model with random weights and the chat template."""
    imported_folder(folder, TEMPLATES[template])
    config = DecoderConfig(
        vocab_size=352,
        d_model=64,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        ffn=GatedFFN(width=128),
        qk_norm=template == "thinking",
        max_context=96,
    )
    state = hub_state(build_decoder(config, seed=3))
    write_json(folder / "config.json", hub_config(config, HubSpecialIds(begin=1, end=2, pad=3)))
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize(("template", "epochs"), [("thinking", 20), ("llama3", 40)])
def test_first_questions_are_answered(tmp_path: Path, template: str, epochs: int) -> None:
    model = hub_folder(tmp_path / "hub", template)
    questions = [f"Word {number}?" for number in range(len(ANSWERS))]
    assert len(questions) == 40
    rows = []
    for number in range(80):
        place, other = number % 40, number % 7
        texts = (questions[place], ANSWERS[place], f"And {other}?", f"So {other}.")
        roles = ("user", "assistant", "user", "assistant")
        messages = [{"role": r, "content": t} for r, t in zip(roles, texts, strict=True)]
        rows.append({"messages": messages})
    data = write_rows(tmp_path / "chats.jsonl", rows)
    prompts = write_rows(tmp_path / "prompts.jsonl", [{"prompt": q} for q in questions])
    run, out = str(tmp_path / "run"), str(tmp_path / "answers")
    words = (
        f"run={model}",
        f"data={data}",
        f"train.epochs={epochs}",
        "prepare.held_out=0",  # every question is trained on
        *SETTINGS,
    )
    assert main(["run", "align.sft", *words, "--out", run]) == 0
    sampled = ["sample", run, f"prompts={prompts}", "temperature=0", "max_new_tokens=8"]
    assert main([*sampled, "--out", out]) == 0
    lines = (Path(out) / "completions.jsonl").read_text().splitlines()
    found = [line["completion"][0]["content"] for line in map(json.loads, lines)]
    assert sum(a == b for a, b in zip(found, ANSWERS, strict=True)) == 40
