"""Inputs written to a temporary folder, and the corpus step run on them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stamm.corpus.config import CorpusConfig
from stamm.corpus.job import build_corpus
from stamm.corpus.tables import read_rows
from stamm.runs.job import Workspace

Row = dict[str, Any]
Built = tuple[list[Row], list[Row], dict[str, Any]]


@pytest.fixture
def write_jsonl(tmp_path: Path) -> Callable[..., str]:
    """Writes rows (or raw lines) to a JSONL file and gives its name."""

    def write(*rows: Row | bytes, name: str = "in.jsonl") -> str:
        lines = [r if isinstance(r, bytes) else json.dumps(r).encode() for r in rows]
        path = tmp_path / name
        path.write_bytes(b"".join(line + b"\n" for line in lines))
        return str(path)

    return write


@pytest.fixture
def build(tmp_path: Path) -> Callable[[CorpusConfig], Built]:
    """Runs the corpus step; gives documents, ledger and summary."""

    def run(config: CorpusConfig) -> Built:
        folder = tmp_path / "corpus"
        folder.mkdir(exist_ok=True)
        build_corpus(config, Workspace(folder=folder))
        return (
            list(read_rows(folder / "documents-00000.parquet")),
            list(read_rows(folder / "ledger-00000.parquet")),
            json.loads((folder / "summary.json").read_text()),
        )

    return run
