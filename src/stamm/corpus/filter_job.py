"""Job of the document filters: raw records to annotated documents, one shard at a time.

Writes for shard k documents-k.parquet (documents kept so far, with text), candidates-k.parquet and
keys-k.parquet (the same rows without text, for the global filters) and ledger-k.parquet (one row for
each input record).
"""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from stamm.base.config import from_plain, to_plain
from stamm.base.errors import DataError
from stamm.base.files import atomic, canonical_json, write_json
from stamm.base.json_text import parse_json
from stamm.base.stopwatch import Stopwatch
from stamm.base.user_code import code_files
from stamm.corpus.classifiers.config import CLASSIFIER_FILES
from stamm.corpus.config import FilterConfig
from stamm.corpus.consent.policies import ConsentPolicies, load_policies
from stamm.corpus.consent.snapshot import index_snapshots
from stamm.corpus.consent.terms import terms_kind
from stamm.corpus.contamination.index import build_index, load_index
from stamm.corpus.contamination.items import read_sets
from stamm.corpus.corpus_filter import at_absolute_path
from stamm.corpus.dedup.cluster import keys_row, keys_schema
from stamm.corpus.dedup.config import DedupConfig
from stamm.corpus.dedup.shingles import EMPTY_VALUE, hash_words, minhash, text_key
from stamm.corpus.document_filter import DocumentFilter
from stamm.corpus.documents import InputRecord
from stamm.corpus.inputs import (
    SKIPPED_FILES,
    check_kind,
    expand,
    is_archive,
    is_repository,
    is_text,
    locate,
    skipped_files,
    skipped_text,
)
from stamm.corpus.ledger import KEPT, UNSCORED, LedgerRow
from stamm.corpus.readers.open import read_input
from stamm.corpus.readers.rows import FieldUse, field_lines
from stamm.corpus.readers.warc import archived_robots
from stamm.corpus.tables import TableWriter, columns, part, with_columns
from stamm.runs.job import Workspace
from stamm.runs.run_sharded import run_shards
from stamm.runs.sharded_job import ShardedJob, ShardResult, ShardTask, common_files

SCREENED_SCHEMA = columns("shard:int32 position:int64 document_id text url source licence language")
"""Documents kept so far. `position` counts the records of the shard, from 0."""

CANDIDATES_SCHEMA = columns(
    "shard:int32 position:int64 document_id language toxicity:double quality:double"
)
"""The same documents for the global filters."""

_INDEX = "contamination"
_TEXT_FILES = 1000


def filter_inputs(config: FilterConfig, workspace: Workspace) -> None:
    """Filter every input, each as a shard; text files share one.

    Raises   DataError for an input that cannot be read; RunError with the failed shards when the
             others are done: also those without a configured field, or without addresses where
             consent is checked by address.
    """
    skipped = skipped_files(config.inputs)
    if line := skipped_text(skipped):
        workspace.progress.log(line)
    manifests = run_shards(filter_batch(config, workspace), workspace, "filter")
    write_json(workspace.folder / SKIPPED_FILES, skipped)
    for line in field_lines(manifest["facts"] for manifest in manifests):
        workspace.progress.log(line)
    facts = (manifest["facts"] for manifest in manifests)
    if line := _unread_terms_text(facts, config.consent.unread_terms):
        workspace.progress.log(line)
    if line := _lossy_pages_text([manifest["facts"] for manifest in manifests], config):
        workspace.progress.log(line)


def _unread_terms_text(facts: Iterable[Mapping[str, Any]], policy: str) -> str:
    """One line for the terminal about terms of use that were not read; "" without any."""
    counts = sum((Counter(shard["unread_terms"]) for shard in facts), Counter())
    if not counts:
        return ""
    shown = ", ".join(f"{kind} ({count:,})" for kind, count in counts.most_common(6))
    return (
        f"Documents whose site names terms of use that were not read: {shown}; column unread_terms of the "
        f"ledger. They are {'dropped' if policy == 'drop' else 'kept'} (corpus.consent.unread_terms)"
    )


def _lossy_pages_text(facts: Sequence[Mapping[str, Any]], config: FilterConfig) -> str:
    """One line for the terminal about pages that lost much text in extraction; "" without any."""
    pages, lossy = (sum(shard[key] for shard in facts) for key in ("pages", "lossy_pages"))
    if not lossy:
        return ""
    return (
        f"{lossy:,} of {pages:,} web pages lost over {config.letters_lost:.0%} of the letters "
        "of their longer lines in extraction: column letters_lost of the ledger"
    )


def filter_batch(config: FilterConfig, workspace: Workspace) -> ShardedJob:
    """The shards of the document filters, for an executor.

    Raises   DataError for an input that cannot be read.
    """
    inputs = expand(config.inputs, "corpus.inputs")
    for name in inputs:
        check_kind(name)
    return ShardedJob(
        folder=workspace.folder,
        work="stamm.corpus.filter_job:screen_shard",
        settings=to_plain(replace(config, inputs=("shards",))),  # each task has its own
        code_packages=("corpus", "tokenizer"),
        common=_common(config, workspace),
        shards=tuple(
            ShardTask(
                name=f"{k:05d}",
                inputs={
                    f"input.{n:05d}": str(inputs[name].absolute()) for n, name in enumerate(names)
                },
                extra={"names": names},
            )
            for k, names in enumerate(_shards(inputs))
        ),
    )


def _shards(inputs: Mapping[str, Path]) -> Iterator[list[str]]:
    """The names of the files of each shard: one, or up to 1,000 files of plain text in a row."""
    for is_plain, group in itertools.groupby(inputs, key=is_text):
        names, size = list(group), _TEXT_FILES if is_plain else 1
        yield from (names[start : start + size] for start in range(0, len(names), size))


def screen_shard(job: ShardedJob, task: ShardTask) -> ShardResult:
    """Filter the input of a shard, or its text files: documents, candidates and ledger.

    Raises   DataError when nothing of the input can be read, or a corpus filter fails.
    """
    config, document_filter, policies = _tools(canonical_json(job.settings), common_files(job))
    files = list(zip(task.extra["names"], map(Path, task.inputs.values()), strict=True))
    name, path = files[0]
    if is_archive(name):
        policies = policies.with_archive(archived_robots(path, config.limits))
    keys = keys_schema(config.dedup or DedupConfig())
    schemas = {
        "documents": SCREENED_SCHEMA,
        "candidates": CANDIDATES_SCHEMA,
        "keys": keys,
        "ledger": with_columns(document_filter.columns),
    }
    outputs = {kind: part(kind, task.name) for kind in schemas}
    dropped: Counter[str] = Counter()
    terms: Counter[str] = Counter()
    count = size = documents = addresses = pages = lossy_pages = 0
    with ExitStack() as stack:
        tables = {
            kind: stack.enter_context(
                TableWriter(stack.enter_context(atomic(job.folder / file)), schemas[kind])
            )
            for kind, file in outputs.items()
        }
        url = config.repository_url(name)
        use = FieldUse()
        records = itertools.chain.from_iterable(
            read_input(*file, config.limits, config.fields, url, use) for file in files
        )
        stopwatch = Stopwatch()
        for position, record in enumerate(records):
            stopwatch.add("read")
            row, text = document_filter.apply(record, policies, stopwatch)
            tables["ledger"].add(row.plain())
            stopwatch.add("write")
            count += 1
            documents += isinstance(record, InputRecord)
            addresses += bool(row.url)
            size += row.bytes_in
            pages += row.letters_lost != UNSCORED
            lossy_pages += row.letters_lost > config.letters_lost
            if row.unread_terms:
                terms[terms_kind(row.unread_terms)] += 1
            if row.decision != KEPT:
                dropped[row.reason] += 1
                continue
            location = {"shard": int(task.name), "position": position}
            tables["documents"].add(vars(row) | location | {"text": text})
            tables["candidates"].add(vars(row) | location)
            stopwatch.add("write")
            tables["keys"].add(_keys(config, location, row, text))
            stopwatch.add("dedup")
        if documents and not addresses and config.consent.needs_addresses:
            raise _no_address(name, use)
    return ShardResult(
        outputs=tuple(outputs.values()),
        num_read=count,
        kept=count - dropped.total(),
        dropped=dropped,
        facts={
            "input": name,
            "files": len(files),
            "bytes": size,
            "pages": pages,
            "lossy_pages": lossy_pages,
            "unread_terms": dict(sorted(terms.items())),
            **use.facts(),
        },
        seconds=stopwatch.seconds,
    )


def _no_address(name: str, use: FieldUse) -> DataError:
    field = "corpus.repositories=PATTERN=URL" if is_repository(name) else "corpus.fields.url"
    like = use.like_url()
    field += f"={like}, which looks like an address" if like and not is_repository(name) else ""
    fields = f" (fields: {use.columns()})" if use.rows else ""
    return DataError(
        f"no document of {name} has an address, so its consent cannot be checked{fields}",
        where="corpus.consent.robots and corpus.consent.domains",
        fix=f"Set {field}, or corpus.consent.no_url=allow for texts of your own",
    )


def _keys(
    config: FilterConfig, location: dict[str, int], row: LedgerRow, text: str
) -> dict[str, Any]:
    """Keys of deduplication. Without near-duplicates a text has the MinHash of an empty one."""
    if config.dedup is None:
        signature = np.full(DedupConfig().hashes, EMPTY_VALUE, np.uint32)
    else:
        signature = minhash(hash_words(text), config.dedup)
    place_and_hash = {
        "shard": location["shard"],
        "row": location["position"],
        "text_hash": hashlib.sha256(text.encode()).digest()[:16],
    }
    return keys_row(key=text_key(text), signature=signature, **vars(row) | place_and_hash)


def _common(config: FilterConfig, workspace: Workspace) -> dict[str, str]:
    """The files that every shard reads, by role."""
    common: dict[str, Path] = {}
    consent = {
        "robots": expand(config.consent.robots, "corpus.consent.robots"),
        "domains": expand(config.consent.domains, "corpus.consent.domains"),
    }
    for role, files in consent.items():
        common |= {f"{role}.{name}": path for name, path in files.items()}
    index_snapshots(consent["robots"].values(), config.limits)
    if config.contamination is not None:
        folder = workspace.folder / _INDEX
        folder.mkdir(exist_ok=True)
        items = read_sets(config.contamination, config.limits)
        index = build_index(config.contamination, items)
        index.save(folder)
        for gap in index.gaps():
            workspace.progress.log(gap)
        common |= {f"{_INDEX}.{file.name}": file for file in sorted(folder.iterdir())}
    common |= {key: locate(name, f"corpus.{key}") for key, name in config.own_files.items()}
    common |= {f"filters.{name}": path for name, path in code_files(config.filters).items()}
    for role in ("toxicity_classifier", "quality_classifier"):
        folder = Path(getattr(config, role))
        if getattr(config, role):
            common |= {f"{role}.{file}": folder / file for file in CLASSIFIER_FILES}
    return {role: str(path.absolute()) for role, path in common.items()}


@functools.lru_cache(maxsize=1)
def _tools(
    settings: bytes, common: tuple[tuple[str, str, str], ...]
) -> tuple[FilterConfig, DocumentFilter, ConsentPolicies]:
    """Configuration, filter and policies; built once in a process and used for every shard."""
    config = from_plain(FilterConfig, parse_json(settings))
    files: dict[str, dict[str, Path]] = {}
    for role, path, _ in common:
        kind, _, name = role.partition(".")
        files.setdefault(kind, {})[name] = Path(path)

    def folder(kind: str) -> Path | None:
        return next(iter(files[kind].values())).parent if kind in files else None

    index, toxicity, quality = map(folder, (_INDEX, "toxicity_classifier", "quality_classifier"))
    # Files as the first process found them: a worker may have another working directory.
    if config.quality and "quality" in files:
        bounds = str(files["quality"]["thresholds"])
        config = replace(config, quality=replace(config.quality, thresholds=bounds))
    if config.language and "language" in files:
        model = str(files["language"]["model"])
        config = replace(config, language=replace(config.language, model=model))
    sources = files.get("filters", {})
    filters = [at_absolute_path(reference, sources) for reference in config.filters]
    document_filter = DocumentFilter(
        config, load_index(index) if index else None, toxicity, quality, filters
    )
    robots = tuple(files.get("robots", {}).values())
    policies = load_policies(config.consent, robots, files.get("domains", {}), config.limits)
    return config, document_filter, policies
