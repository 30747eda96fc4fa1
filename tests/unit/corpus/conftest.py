"""Inputs written to a temporary folder, and the corpus step run on them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stamm.corpus.config import CorpusConfig
from stamm.corpus.tables import read_parts
from tests.unit.small_corpus import build_corpus

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
        folder = build_corpus(config, tmp_path)
        return (
            list(read_parts(folder, "documents")),
            list(read_parts(folder, "ledger")),
            json.loads((folder / "summary.json").read_text()),
        )

    return run
