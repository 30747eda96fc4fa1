"""Train a model on its own answers by the group-relative policy gradient (GRPO).

Reads    start (a stored decoder), tokenizer, and a file of prompts
Writes   what `pretrain.training_run` writes; rollouts/ (`align.training.rollouts`), bad_rows.jsonl (prompts
         that are not answered: file, row, reason and cause); with LoRA as `align.training.job`

Checked  tests/unit/align/test_grpo.py, tests/unit/align/test_grpo_processes.py, tests/cli/test_grpo_command.py
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from stamm.align.data.config import locate_file
from stamm.align.records import BadRow
from stamm.align.rewards.config import reward_sources
from stamm.align.sampling.prompts import (
    BAD_ROWS,
    SamplePrompt,
    encoded_prompt,
    log_unanswered,
    read_prompts,
)
from stamm.align.training.config import GRPOJobConfig, GRPORun
from stamm.align.training.grpo_objective import GRPOObjective
from stamm.align.training.rollouts import Prompts
from stamm.base.errors import DataError
from stamm.base.files import sha256_file, sha256_value, write_lines
from stamm.base.known_keys import UnknownKeys
from stamm.corpus.shuffle import Proof
from stamm.engine.distributed import DistributedContext
from stamm.engine.trainer import InitialCheckpoint
from stamm.models.config import DecoderConfig
from stamm.models.hf_chat_format import load_folder_chat
from stamm.models.loading import check_vocabulary
from stamm.models.peft_adapter import save_adapted
from stamm.models.self_guide import without_guide
from stamm.models.serialization import checked_config
from stamm.pretrain.training_run import TrainingData, TrainingKind, save_trained, train_run
from stamm.runs.job import Workspace
from stamm.runs.metrics import read_metrics
from stamm.runs.model_outputs import weights_sha256, write_chat_record
from stamm.runs.torchrun_env import rank_and_size


def run(settings: GRPOJobConfig, workspace: Workspace) -> None:
    """Train the start model on its answers to the prompts, from the newest checkpoint when there is one.

    Raises   DataError without a prompt that leaves room for an answer
    """
    is_main = rank_and_size()[0] == 0
    start, tokenizer = workspace.inputs["start"], workspace.inputs["tokenizer"]
    model = checked_config(start)
    loaded = load_folder_chat(tokenizer)
    check_vocabulary(model, loaded.tokenizer.size, tokenizer)
    chat = loaded.chat
    config = GRPORun.of(settings, model=without_guide(model))
    unknown = UnknownKeys()
    prompts: list[SamplePrompt] = []
    ids: list[list[int]] = []
    bad: list[BadRow] = []
    longest = config.sampling.max_new_tokens
    for prompt in read_prompts(locate_file(settings.prompts, "prompts"), unknown):
        if isinstance(prompt, BadRow):
            bad.append(prompt)
            continue
        encoded = encoded_prompt(prompt, chat, config.context, longest)
        if isinstance(encoded, BadRow):
            bad.append(encoded)
            continue
        prompts.append(prompt)
        ids.append(encoded)
    if is_main:
        write_lines(workspace.folder / BAD_ROWS, map(vars, bad))
    log_unanswered(bad, unknown, workspace.progress)
    if not prompts:
        example = f": {bad[0].line()}" if bad else ""
        raise DataError(f"{settings.prompts} has no prompt to answer{example}")
    hashes = [sha256_file(path) for _, path in sorted(reward_sources(config.reward).items())]
    read = sha256_value([[i, p.messages, p.columns] for i, p in zip(ids, prompts, strict=True)])
    proof = Proof(
        sha256=sha256_value([read, weights_sha256(start), chat.sha256, *hashes]),
        facts={"prompts": read},
    )
    asked = Prompts(prompts, ids)

    if remark := settings.rate_remark():
        workspace.progress.log(remark)

    def open_data(_: DistributedContext) -> TrainingData:
        return TrainingData(name="data", sequences=asked, proof=proof)

    def save(model: DecoderConfig, weights: dict[str, torch.Tensor], folder: Any) -> None:
        if config.lora is None:
            save_trained(model, weights, folder)
        else:
            save_adapted(model, weights, folder, lora=config.lora)
        write_chat_record(folder, chat.name, chat.sha256)

    kind = TrainingKind(
        name="finetune",
        open_data=open_data,
        make_objective=functools.partial(
            GRPOObjective,
            chat=chat,
            start=start,
            folder=workspace.folder,
            progress=workspace.progress,
        ),
        start=InitialCheckpoint(start, optimizer_state=False),
        save=save,
    )
    train_run(config, workspace, kind)
    if not is_main:
        return
    steps = [line for line in read_metrics(workspace.folder / "metrics.jsonl") if line["step"]]
    part = max(len(steps) // 10, 1)
    first, last = (
        sum(line["reward/mean"] for line in lines) / part for lines in (steps[:part], steps[-part:])
    )
    workspace.progress.log(
        f"Mean reward of the answers: {first:.4f} in the first {part} steps, {last:.4f} in the last."
    )
