"""Sample completions of prompts, in shards that are proven by manifests.

Reads    model (a stored decoder or a Hugging Face folder), tokenizer, and a file of prompts
Writes   prompts-00000.jsonl, .. (what each shard answers), completions-00000.jsonl, ..,
         unanswered-00000.jsonl, .., manifests/, completions.jsonl (all of them, in the order of the
         prompts), bad_rows.jsonl (rows without a prompt, and prompts that were left out: file, row,
         reason and cause); hub/ (a stored decoder for engine=vllm)

A shard is sampled again when its prompts, the settings, the weights, the tokenizer, the chat format or
the code change.

docs/alignment/sampling.md has the columns of completions.jsonl.

Checked  tests/unit/align/test_sample_job.py, tests/cli/test_sample_command.py
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from stamm.align.data.config import locate_file
from stamm.align.import_config import BESIDE
from stamm.align.records import BadRow
from stamm.align.sampling.config import SampleConfig
from stamm.align.sampling.prompts import (
    BAD_ROWS,
    SamplePrompt,
    completion_row,
    encoded_prompt,
    log_unanswered,
    read_prompts,
)
from stamm.align.sampling.vllm_engine import VllmEngine, check_installed
from stamm.align.shard_device import device_type, on_device
from stamm.base.config import from_plain, to_plain
from stamm.base.errors import ConfigError, DataError
from stamm.base.files import atomic, json_line, read_json, remove_leftovers, write_lines, write_text
from stamm.base.known_keys import UnknownKeys
from stamm.base.schema import read_objects
from stamm.base.user_code import load_reference
from stamm.chat.formats import ChatFormat
from stamm.chat.template_files import CONFIG as TOKENIZER_CONFIG
from stamm.chat.template_files import TEMPLATE
from stamm.engine.distributed import select_device
from stamm.models.determinism import set_determinism
from stamm.models.hf_architecture import hub_class, unsupported_reasons
from stamm.models.hf_chat_format import load_chat_format
from stamm.models.hf_files import CONFIG, GENERATION, INDEX
from stamm.models.loading import OpenModel, open_model
from stamm.models.model_source import ModelSource
from stamm.models.sampling import sample
from stamm.models.serialization import checked_config, load_decoder
from stamm.models.steering import check_vector, read_vector, steered
from stamm.runs.job import Workspace
from stamm.runs.model_outputs import DECODER, weights_sha256
from stamm.runs.run_sharded import run_shards
from stamm.runs.sharded_job import ShardedJob, ShardResult, ShardTask, common_files
from stamm.tokenizer.tokenizer import FILE

COMPLETIONS = "completions.jsonl"
# Loaded when it is needed: it loads transformers.
_WRITER = "stamm.export.transformers_target:write_folder"
CODE_PACKAGES = ("activations", "align", "base", "chat", "models", "tokenizer")
"""Folders of the package whose code decides a completion."""


def run(config: SampleConfig, workspace: Workspace) -> None:
    """Sample `config.n` completions of every prompt.

    Raises   DataError when the file has no prompt; ConfigError for an engine that is not installed
    """
    folder = workspace.folder
    remove_leftovers(folder)
    source = ModelSource(model=workspace.inputs["model"], tokenizer=workspace.inputs["tokenizer"])
    if config.engine == "vllm":
        check_installed()
        source = _for_vllm(source, folder)
    common = _files(source)
    if config.vector:
        check_vector(
            open_model(source, chat=True).decoder,
            read_vector(Path(config.vector)),
            config.strength,
            any_model=config.any_model,
        )
        common["vector"] = str(Path(config.vector).resolve())
    device = "cuda" if config.engine == "vllm" else device_type(config.device, "device")
    workspace = on_device(workspace, device)
    bad: list[BadRow] = []
    unknown = UnknownKeys()
    shards = tuple(_write_prompts(config, folder, bad, unknown))
    log_unanswered(bad, unknown, workspace.progress)
    job = ShardedJob(
        folder=folder,
        work="stamm.align.sampling.sample_job:sample_shard",
        settings={
            # Paths are not part of a shard's identity; the content of their files is.
            "sample": to_plain(
                dataclasses.replace(
                    config, prompts="-", vector=config.vector and "-", device=device
                )
            ),
            "chat_format_sha256": load_chat_format(source.tokenizer).sha256,
        },
        code_packages=CODE_PACKAGES,
        common=common,
        places={"model": str(source.model.resolve()), "tokenizer": str(source.tokenizer.resolve())},
        shards=shards,
    )
    run_shards(job, workspace, "sample")
    _join(folder / COMPLETIONS, (), (_completions(folder, shard.name) for shard in job.shards))
    _join(folder / BAD_ROWS, bad, (_unanswered(folder, shard.name) for shard in job.shards))


def sample_shard(job: ShardedJob, task: ShardTask) -> ShardResult:
    """Answer the prompts of one shard."""
    config = from_plain(SampleConfig, job.settings["sample"])
    chat, engine, context = _loaded(
        config.engine,
        config.device,
        job.places["model"],
        job.places["tokenizer"],
        common_files(job),
    )
    answered: list[SamplePrompt] = []
    tokens: list[list[int]] = []
    keys: list[int] = []
    left_out: list[BadRow] = []
    for index, (_, plain) in enumerate(read_objects(Path(task.inputs["prompts"]))):
        prompt = SamplePrompt(**plain)
        ids = encoded_prompt(prompt, chat, context)
        if isinstance(ids, BadRow):
            left_out.append(ids)
            continue
        answered.append(prompt)
        first = (task.extra["first"] + index) * config.n
        tokens += [ids] * config.n
        keys += range(first, first + config.n)
    if isinstance(engine, VllmEngine):
        sampled = engine.sample(tokens, config, chat.stop_ids, keys)
    else:
        with contextlib.ExitStack() as steering:
            if config.vector:
                vector = job.common["vector"]  # that `run` has checked
                added = steered(engine.decoder, vector, config.strength, any_model=True)
                steering.enter_context(added)
            unordered = sample(engine.decoder, tokens, config, chat.stop_ids, keys)
            sampled = sorted(unordered, key=lambda completion: completion.request)
    rows = (
        completion_row(answered[completion.request // config.n], completion, config.n, chat)
        for completion in sampled
    )
    completions, unanswered = (
        _completions(job.folder, task.name),
        _unanswered(job.folder, task.name),
    )
    write_lines(completions, rows)
    write_lines(unanswered, map(vars, left_out))
    return ShardResult(
        outputs=(completions.name, unanswered.name),
        num_read=len(answered) + len(left_out),
        kept=len(answered),
        dropped=dict(Counter(row.cause for row in left_out)),
        facts={"tokens": sum(len(completion.tokens) for completion in sampled)},
    )


def _write_prompts(
    config: SampleConfig, folder: Path, bad: list[BadRow], unknown: UnknownKeys
) -> Iterator[ShardTask]:
    """Write the prompts of each shard; rows that cannot be read are added to `bad`."""
    path = locate_file(config.prompts, "prompts")
    batch: list[SamplePrompt] = []
    first = 0
    for prompt in read_prompts(path, unknown):
        if isinstance(prompt, BadRow):
            bad.append(prompt)
            continue
        batch.append(prompt)
        if len(batch) == config.prompts_per_shard:
            yield _written(batch, first, config, folder)
            first += len(batch)
            batch = []
    if batch:
        yield _written(batch, first, config, folder)
    elif not first:
        example = f": {bad[0].line()}" if bad else ""
        raise DataError(f"{config.prompts} has no prompt{example}")


def _written(
    batch: Sequence[SamplePrompt], first: int, config: SampleConfig, folder: Path
) -> ShardTask:
    name = f"{first // config.prompts_per_shard:05d}"
    path = folder / f"prompts-{name}.jsonl"
    lines = "".join(json_line(vars(prompt)) for prompt in batch)
    if not path.is_file() or path.read_bytes() != lines.encode():
        write_text(path, lines)
    return ShardTask(name=name, inputs={"prompts": str(path)}, extra={"first": first})


def _join(out: Path, rows: Iterable[BadRow], parts: Iterable[Path]) -> None:
    with atomic(out) as temporary, temporary.open("wb") as file:
        for row in rows:
            file.write(json_line(vars(row)).encode())
        for part in parts:
            file.write(part.read_bytes())


def _completions(folder: Path, name: str) -> Path:
    return folder / f"completions-{name}.jsonl"


def _unanswered(folder: Path, name: str) -> Path:
    return folder / f"unanswered-{name}.jsonl"


_TOKENIZER_FILES = (FILE, TOKENIZER_CONFIG, *BESIDE, TEMPLATE, GENERATION)


def _files(source: ModelSource) -> dict[str, str]:
    """The files that decide a completion, by name."""
    names = [DECODER, CONFIG, INDEX, *(path.name for path in source.model.glob("*.safetensors"))]
    files = [source.model / name for name in names]
    files += [source.tokenizer / name for name in _TOKENIZER_FILES]
    return {path.name: str(path.resolve()) for path in files if path.is_file()}


def _for_vllm(source: ModelSource, folder: Path) -> ModelSource:
    """The source in the layout of transformers, which is written for a stored decoder.

    Raises   ConfigError for a model that vLLM does not have
    """
    if source.kind == "hub":
        return source
    config = checked_config(source.model)
    reasons = unsupported_reasons(config)
    if not reasons and hub_class(config).own_code:
        reasons = (f"its activation {config.ffn.spec.name!r} is not one of transformers",)
    if reasons:
        raise ConfigError(
            f"engine = vllm cannot run {source.model}: {reasons[0].rstrip('.')}",
            fix="Use engine=stamm",
        )
    out, weights = folder / "hub", weights_sha256(source.model)
    stamp = out / "weights_sha256"
    if not (stamp.is_file() and stamp.read_text() == weights):
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        write: Any = load_reference(_WRITER, None, "a writer of models")
        write(out, load_decoder(source.model).merged(), source.tokenizer / FILE)
        write_text(stamp, weights)  # last: the folder is whole
    return ModelSource(model=out, tokenizer=source.tokenizer)


@functools.lru_cache(maxsize=1)
def _loaded(
    engine: str, device: str, model: str, tokenizer: str, files: tuple[tuple[str, str, str], ...]
) -> tuple[ChatFormat, OpenModel | VllmEngine, int]:
    """Chat format, model and context. `files` has the hash of every file, for the cache."""
    set_determinism(1)
    source = ModelSource(model=Path(model), tokenizer=Path(tokenizer))
    if engine == "vllm":
        context = int(read_json(source.model / CONFIG)["max_position_embeddings"])
        chat = load_chat_format(source.tokenizer)
        return chat, VllmEngine(source.model, source.model, context), context
    loaded = open_model(source, chat=True)
    loaded.decoder.to(select_device(device))
    return loaded.chat, loaded, loaded.decoder.config.max_context
