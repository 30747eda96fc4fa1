"""Audit one trained decoder for memorization of the planted passages.

Reads    model (a stored decoder), tokenizer, corpus (its probes.json)
Leaves   memorization.json, continuations.jsonl
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stamm.audit.config import AuditConfig
from stamm.audit.interval import LEVEL
from stamm.audit.memorization import (
    Continuation,
    Passage,
    by_repeats,
    continuations,
    metrics,
)
from stamm.base.config import to_plain
from stamm.base.errors import DataError
from stamm.base.files import read_json, write_json, write_text
from stamm.corpus.special_tokens import BEGIN_ID
from stamm.corpus.tokenizer import Tokenizer
from stamm.models.repeatable import settle
from stamm.models.stored import load_decoder
from stamm.runs.job import Workspace

SCHEMA = 1
CORPUS_SCHEMA = 1
OUTPUTS = ("memorization.json", "continuations.jsonl")
PROBES = "probes.json"


def run(config: AuditConfig, workspace: Workspace) -> None:
    """Continue every planted passage, then write down what came of it.

    Nothing is written before all is measured: what an earlier attempt recorded outlives a failure.
    """
    passages = planted_passages(workspace.inputs["corpus"])
    settle(config.threads)
    decoder = load_decoder(workspace.inputs["model"])
    tokenizer = Tokenizer.load(workspace.inputs["tokenizer"])
    given = continuations(config, decoder, tokenizer.encode, BEGIN_ID, passages, workspace.progress)
    report: dict[str, Any] = {
        "schema": SCHEMA,
        **to_plain(config),
        "interval": f"Student's t over passages, {LEVEL:.0%}; differences by Welch",
        "passages": len(passages),
        "buckets": by_repeats(given),
    }
    text = "".join(_line(continuation, tokenizer) for continuation in given)
    write_text(workspace.folder / "continuations.jsonl", text)
    write_json(workspace.folder / "memorization.json", report)


def planted_passages(corpus: Path) -> list[Passage]:
    """The planted passages of a corpus, control included, by repeats and identifier.

    Raises   DataError when the corpus has none, or its list of them cannot be understood.
    """
    path = corpus / PROBES
    stored = read_json(path)
    try:
        if stored["schema"] != CORPUS_SCHEMA:
            raise DataError(
                f"{path} has schema {stored['schema']!r}, this audit reads {CORPUS_SCHEMA}",
                fix="Run the corpus step again with this version",
            )
        found = [
            Passage(probe_id=row["probe_id"], repeats=row["repeat"], text=row["text"])
            for row in stored["probes"]
        ]
    except (KeyError, TypeError) as error:
        raise DataError(
            f"{path} is not a list of planted passages: {type(error).__name__}: {error}",
            fix="Run the corpus step again",
        ) from None
    if not found:
        raise DataError(
            f"{path} names no planted passage: there is nothing to audit",
            fix="Set corpus.probes=ProbesConfig, or run without audit",
        )
    return sorted(found, key=lambda passage: (passage.repeats, passage.probe_id))


def _line(given: Continuation, tokenizer: Tokenizer) -> str:
    """One continuation as a line of JSON. Its texts come from documents and a model: untrusted."""
    record = {
        "probe_id": given.passage.probe_id,
        "repeats": given.passage.repeats,
        "prefix": _text(tokenizer, given.prefix),
        "truth": _text(tokenizer, given.truth),
        "produced": _text(tokenizer, given.produced),
        **metrics(given),
    }
    return json.dumps(record, ensure_ascii=False) + "\n"


def _text(tokenizer: Tokenizer, tokens: Sequence[int]) -> str:
    return tokenizer.decode(tokens)
