"""Fine-tuning on conversations of two turns, and on calls of tools, through the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file
from transformers import PreTrainedTokenizerFast

from stamm.align.data.encoded import FILES, TRAIN, EncodedAnswers
from stamm.base.files import write_json
from stamm.cli.main import main
from stamm.models.config import DecoderConfig, GatedFFN
from stamm.models.decoder import build_decoder
from stamm.models.hub import HubSpecialIds, hub_config, hub_state
from tests.unit.align.prepared import write_rows
from tests.unit.chat.imported_folders import TEMPLATES, imported_folder
from tests.unit.chat.published_templates import QWEN3

pytestmark = pytest.mark.slow

ANSWERS = [f"{first}{second}" for first in "bdfgklmn" for second in ("a", "e", "i", "o", "u")]
SETTINGS = (
    "train.batch.0.size=8", "train.schedule.peak=0.004", "train.optimizer=AdamW",
    "train.engine.compile=off", "train.engine.threads=1", "context=64", "evaluate=none", "audit=none",
    "export=none",
)  # fmt: skip


def hub_folder(folder: Path, template: str, max_context: int = 96) -> Path:
    """A small model with random weights and the chat template, one of `TEMPLATES` or its text."""
    imported_folder(folder, TEMPLATES.get(template, template))
    config = DecoderConfig(
        vocab_size=352,
        d_model=64,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        ffn=GatedFFN(width=128),
        qk_norm=template == "thinking",
        max_context=max_context,
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


def test_calls_and_answers_are_trained_on_after_the_prompts_that_are_served(tmp_path: Path) -> None:
    """Thoughts, calls and outputs by the template, a reduced form of Qwen 3's."""
    model = hub_folder(tmp_path / "hub", QWEN3, max_context=512)
    tool = {
        "type": "function",
        "function": {
            "name": "wind",
            "description": "Wind at a mill.",
            "parameters": {"type": "object", "properties": {"mill": {"type": "string"}}},
        },
    }

    def row(mill: str, asked: str = "") -> list[dict[str, Any]]:
        arguments = {"mill": asked or mill}
        call = {"type": "function", "function": {"name": "wind", "arguments": arguments}}
        return [
            {"role": "user", "content": "Does it turn?"},
            {
                "role": "assistant",
                "content": "",
                "reasoning_content": "I ask.",
                "tool_calls": [call],
            },
            {"role": "tool", "content": "strong"},
            {"role": "assistant", "content": f"Mill {mill} turns."},
        ]

    mills = [f"{first}{second}" for first in "abcd" for second in "xyz"]
    rows = [{"messages": row(mill), "tools": [tool]} for mill in mills]
    rows.append({"messages": row("a", asked="<|im_end|>"), "tools": [tool]})
    data = write_rows(tmp_path / "chats.jsonl", rows)
    settings = [word for word in SETTINGS if not word.startswith("context=")]
    words = [f"run={model}", f"data={data}", "context=512", "train.epochs=2", "prepare.held_out=0"]
    run = tmp_path / "run"
    assert main(["run", "align.sft", *words, *settings, "--out", str(run)]) == 0
    (bad,) = map(json.loads, (run / "data" / "bad_rows.jsonl").read_text().splitlines())
    assert (bad["row"], bad["reason"]) == (13, "bad_row")
    assert "the arguments of the call of wind spell a control token" in bad["detail"]
    theirs = PreTrainedTokenizerFast.from_pretrained(model)
    answers = list(EncodedAnswers(run / "data" / FILES[TRAIN]))
    assert len(answers) == 24
    for number, answer in enumerate(answers):
        end = (1, 3)[number % 2]
        prompt = theirs.apply_chat_template(
            row(mills[number // 2])[:end],
            tools=[tool],
            enable_thinking=True,
            add_generation_prompt=True,
            tokenize=True,
            return_dict=False,
        )
        assert answer.ids[: len(prompt)] == prompt
        kept = [id_ for id_, keep in zip(answer.ids, answer.supervised, strict=True) if keep]
        assert answer.supervised.index(True) == len(prompt)
        text = theirs.decode(kept)
        assert text.endswith("<|im_end|>")
        assert ("wind" in text) == (end == 1)
        assert mills[number // 2] in text
    summary = json.loads((run / "arms" / "sft" / "summary.json").read_text())
    assert summary["steps"] == 6
