"""Sample completions of prompts, in shards that are proven by manifests.

Reads    model (a stored decoder), tokenizer, and a file of prompts
Leaves   prompts-00000.jsonl, .. (what each shard answers), completions-00000.jsonl, .., manifests/,
         completions.jsonl (all of them, in the order of the prompts), bad_rows.jsonl

A row of completions has "prompt" and "completion" as messages, "id", "sample" (from 0), "log_prob" (at
temperature 1, in nats), "num_tokens" and "stopped" (false: cut at its longest length).

Checked  tests/cli/test_sample_command.py
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stamm.align.data.dataset_reader import BadRow, read_examples
from stamm.align.data.examples import ChatExample
from stamm.align.data.inputs import locate_file
from stamm.align.sampling.sample_config import SampleConfig
from stamm.base.config import from_plain, to_plain
from stamm.base.errors import DataError
from stamm.base.files import atomic, remove_leftovers, write_text
from stamm.chat.conversation import AssistantTurn, Conversation, read_conversation, to_messages
from stamm.chat.parse import parse_assistant, segments_of_ids
from stamm.chat.render import ASSISTANT_END, encode_conversation
from stamm.corpus.special_tokens import END_ID
from stamm.corpus.tokenizer.tokenizer import FILE, Tokenizer
from stamm.models.decoder import Decoder
from stamm.models.determinism import set_determinism
from stamm.models.sampling import sample
from stamm.models.serialization import load_decoder
from stamm.runs.job import Workspace
from stamm.runs.model_outputs import DECODER, WEIGHTS
from stamm.runs.run_sharded import run_shards
from stamm.runs.sharded_job import ShardedJob, ShardResult, ShardTask, common_files

COMPLETIONS = "completions.jsonl"
TOO_LONG = "too_long"


def run(config: SampleConfig, workspace: Workspace) -> None:
    """Sample `config.n` completions of every prompt.

    Raises   DataError when the file has no prompt
    """
    folder = workspace.folder
    remove_leftovers(folder)
    model = workspace.inputs["model"]
    # The path of the prompts is not part of a shard's identity; their content is.
    settings = to_plain(dataclasses.replace(config, prompts="-"))
    job = ShardedJob(
        folder=folder,
        work="stamm.align.sampling.sample_job:sample_shard",
        settings=settings,
        code_packages=("align", "chat", "models"),
        common={
            "weights": str((model / WEIGHTS).resolve()),
            "decoder": str((model / DECODER).resolve()),
            "tokenizer": str((workspace.inputs["tokenizer"] / FILE).resolve()),
        },
        shards=tuple(_write_prompts(config, folder)),
    )
    run_shards(job, workspace, "sample")
    with atomic(folder / COMPLETIONS) as temporary, temporary.open("wb") as file:
        for shard in job.shards:
            file.write((folder / f"completions-{shard.name}.jsonl").read_bytes())


def sample_shard(job: ShardedJob, task: ShardTask) -> ShardResult:
    """Answer the prompts of one shard."""
    config = from_plain(SampleConfig, job.settings)
    decoder, tokenizer = _loaded(common_files(job))
    rows: list[dict[str, Any]] = []
    prompts: list[list[int]] = []
    keys: list[int] = []
    dropped = 0
    for place, row in enumerate(_lines(Path(task.inputs["prompts"]))):
        conversation = read_conversation(
            row["prompt"], tools=row["tools"], deliberation=row["deliberation"]
        )
        ids = encode_conversation(conversation, tokenizer, prompt=True).ids
        if len(ids) >= decoder.config.max_context:
            dropped += 1
            continue
        rows.append(row)
        first = (task.extra["first"] + place) * config.n
        prompts += [ids] * config.n
        keys += range(first, first + config.n)
    stop = frozenset({tokenizer.control_id(ASSISTANT_END), END_ID})
    found = sorted(sample(decoder, prompts, config, stop, keys), key=lambda each: each.request)
    lines = []
    for each in found:
        row, number = rows[each.request // config.n], each.request % config.n
        blocks = parse_assistant(segments_of_ids(each.tokens, tokenizer))
        answer = {
            **row,
            "completion": to_messages(None, [AssistantTurn(blocks)]),
            "sample": number,
            "log_prob": each.log_prob,
            "num_tokens": len(each.tokens),
            "stopped": each.stopped,
        }
        lines.append(json.dumps(answer, ensure_ascii=False) + "\n")
    name = f"completions-{task.name}.jsonl"
    write_text(job.folder / name, "".join(lines))
    return ShardResult(
        outputs=(name,),
        num_read=len(rows) + dropped,
        kept=len(rows),
        dropped={TOO_LONG: dropped} if dropped else {},
        facts={"tokens": sum(len(each.tokens) for each in found)},
    )


def _write_prompts(config: SampleConfig, folder: Path) -> Iterator[ShardTask]:
    """Write the prompts of each shard, and the rows that cannot be read."""
    prompts, bad = _prompts(locate_file(config.prompts, "prompts"))
    text = "".join(json.dumps(vars(row), ensure_ascii=False) + "\n" for row in bad)
    write_text(folder / "bad_rows.jsonl", text)
    if not prompts:
        example = f": {bad[0].line()}" if bad else ""
        raise DataError(f"{config.prompts} has no prompt{example}")
    for first in range(0, len(prompts), config.prompts_per_shard):
        name = f"{first // config.prompts_per_shard:05d}"
        path = folder / f"prompts-{name}.jsonl"
        rows = prompts[first : first + config.prompts_per_shard]
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        if not path.is_file() or path.read_text(encoding="utf-8") != lines:
            write_text(path, lines)
        yield ShardTask(name=name, inputs={"prompts": str(path)}, extra={"first": first})


def _prompts(path: Path) -> tuple[list[dict[str, Any]], list[BadRow]]:
    prompts, bad = [], []
    for example in read_examples(path):
        if isinstance(example, BadRow):
            bad.append(example)
            continue
        if isinstance(example, ChatExample):
            whole = example.conversation
            prompt = dataclasses.replace(whole, turns=whole.turns[:-1])
        else:
            prompt = example.prompt
        prompts.append(_row(example.origin.id, prompt))
    return prompts, bad


def _row(identifier: str, prompt: Conversation) -> dict[str, Any]:
    return {
        "id": identifier,
        "prompt": to_messages(prompt.system, prompt.turns),
        "tools": [dict(tool) for tool in prompt.tools] or None,
        "deliberation": prompt.deliberation,
    }


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        yield from map(json.loads, file)


@functools.lru_cache(maxsize=1)
def _loaded(files: tuple[tuple[str, str, str], ...]) -> tuple[Decoder, Tokenizer]:
    """The model and the tokenizer: role, path and hash of each file, as `common_files` gives them."""
    set_determinism(1)
    paths = {role: Path(path) for role, path, _ in files}
    return load_decoder(paths["weights"].parent), Tokenizer.load(paths["tokenizer"])
