"""Answers of the start model and of the tuned model to a few prompts of the data.

Reads    start, model (stored decoders), tokenizer, data (prepared examples)
Writes   sample_answers.json (`align.records.SampleAnswersFile`)

The prompts are the first of the held-out rows, then of the rows that were trained on. Both models take
the most likely token.

Checked  tests/unit/align/test_sample_answers.py
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stamm.align.data.encoded import HELD_OUT, PROMPTS
from stamm.align.records import PreparedPrompts, SampleAnswersFile
from stamm.align.results.completions import answer_text
from stamm.align.results.config import SampleAnswersConfig
from stamm.base.schema import read_record, write_record
from stamm.chat.conversation import AssistantTurn, to_messages
from stamm.engine.distributed import select_device
from stamm.models.determinism import set_determinism
from stamm.models.hf_chat_format import load_folder_chat
from stamm.models.sampling import sample
from stamm.models.sampling_config import SamplingConfig
from stamm.models.serialization import load_decoder
from stamm.runs.job import Workspace
from stamm.runs.model_outputs import weights_sha256

SAMPLE_ANSWERS = "sample_answers.json"
_LONGEST = 4000


def run(config: SampleAnswersConfig, workspace: Workspace) -> None:
    """Answer the first prompts of the data with both models.

    Edge     a prompt that fills a model's context is left out
    """
    inputs = workspace.inputs
    rows = read_record(PreparedPrompts, inputs["data"] / PROMPTS).prompts
    rows = tuple(sorted(rows, key=lambda row: row.split != HELD_OUT))[: config.number]
    prompts = [list(row.ids) for row in rows]
    workspace.progress.begin("sample answers", 2, "models")
    before, start_sha256 = _answers(config, inputs["start"], inputs["tokenizer"], prompts)
    workspace.progress.advance(1)
    after, model_sha256 = _answers(config, inputs["model"], inputs["tokenizer"], prompts)
    fields = {
        "start_sha256": start_sha256,
        "model_sha256": model_sha256,
        "max_new_tokens": config.max_new_tokens,
        "answers": [
            {
                "file": row.file,
                "row": row.row,
                "held_out": row.split == HELD_OUT,
                "question": row.question[:_LONGEST],
                "before": before[index],
                "after": after[index],
            }
            for index, row in enumerate(rows)
            if index in before and index in after
        ],
    }
    write_record(workspace.folder / SAMPLE_ANSWERS, SampleAnswersFile, fields)
    workspace.progress.end()


def _answers(
    config: SampleAnswersConfig, model: Path, tokenizer: Path, prompts: Sequence[list[int]]
) -> tuple[dict[int, str], str]:
    """The answers of a model by the place of their prompt, and the SHA-256 of its weights."""
    set_determinism(1)
    device = select_device(config.device, "sample_answers.device")
    chat = load_folder_chat(tokenizer).chat
    decoder = load_decoder(model).to(device)
    fitting = [k for k, ids in enumerate(prompts) if len(ids) < decoder.config.max_context]
    drawn = SamplingConfig(temperature=0.0, max_new_tokens=config.max_new_tokens)
    sampled = sample(decoder, [prompts[k] for k in fitting], drawn, chat.stop_ids)
    texts = {
        fitting[completion.request]: answer_text(
            to_messages(None, [AssistantTurn(chat.parse(completion.tokens))])
        )[:_LONGEST]
        for completion in sampled
    }
    return texts, weights_sha256(model)
